"""Modes of torch that change what its functions do, and the folder of Triton's cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils import _python_dispatch

# Starts of dispatch keys of real tensors; torch itself adds kernels for shapes (Meta) and for vmap later.
_REACHED = ("CPU", "CUDA", "Autograd", "Autocast", "Composite", "ADInplaceOrView", "BackendSelect")


def name_triton_cache() -> None:
    """Set the folder of Triton's cache to its default, if it is not set.

    Otherwise torch's compiler sets it to a folder of its own, where kernels that have been compiled are not.
    """
    home = os.environ.get("TRITON_HOME") or str(Path.home())
    os.environ.setdefault("TRITON_CACHE_DIR", str(Path(home, ".triton", "cache")))


def _function_modes() -> dict[str, bool]:
    """Name the function modes that are on, without the one by which torch keeps a default device."""
    modes = torch.overrides._get_current_function_mode_stack()
    return {type(mode).__qualname__: True for mode in modes if type(mode).__module__ != "torch.utils._device"}


def _dispatch_modes() -> dict[str, bool]:
    return {type(mode).__qualname__: True for mode in _python_dispatch._get_current_dispatch_mode_stack()}


def _dispatch_keys() -> dict[str, bool]:
    """List the dispatch keys that this thread adds or leaves out, but for those of modes and of autocast."""
    own = ("Autocast", "Autograd", "ADInplaceOrView", "Python", "BackendSelect")
    sets = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())
    keys = [key for each in sets for key in str(each).removesuffix(")").partition("(")[2].split(", ")]
    return {key: True for key in keys if key and not key.startswith(own)}


def _replaced_kernels() -> dict[str, bool]:
    """Name torch's operators that have a kernel from Python where real tensors reach it."""
    ours = [name for name in torch.library._impls if name.startswith("aten/")]
    return {name: True for name in ours if name.rpartition("/")[2].startswith(_REACHED)}


# By their name in words. No library leaves one on.
MODES: dict[str, Callable[[], Any]] = {
    "torch's function mode": _function_modes,
    "torch's dispatch mode": _dispatch_modes,
    "the level of torch.func's transforms": lambda: torch._C._functorch.maybe_current_level(),
    "the dispatch key": _dispatch_keys,
    "the replacement of torch's kernel": _replaced_kernels,
    "the callback of torch's compiler": lambda: torch._C._dynamo.eval_frame.get_eval_frame_callback(),
    "the handling of __torch_function__": lambda: torch._C._is_torch_function_enabled(),
}
