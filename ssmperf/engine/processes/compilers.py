"""The folders in which compilers store compiled kernels."""

from __future__ import annotations

from pathlib import Path

COMPILER_CACHES = {  # variables, and folders of their own
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
}


def compiler_caches(folder: Path) -> dict[str, str]:
    """Give the variables by which compilers keep kernels in a folder and not in the user's."""
    return {name: str(folder / part) for name, part in COMPILER_CACHES.items()}
