"""Names of dtypes: full ones, short ones, and torch's own, without torch."""

from __future__ import annotations

from typing import Any

DTYPES = ("float64", "float32", "bfloat16", "float16")
# short names of dtypes; in Python, torch's dtypes are values, too
DTYPE_ALIASES = {
    "fp64": "float64",
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
}
TORCH_DTYPE = ("torch", "dtype")  # the type of torch's dtypes, which this module does not import


def dtype_name(value: Any) -> Any:
    """Give the full name of a dtype: `bf16`, `torch.bfloat16` and `bfloat16` are `bfloat16`.

    Any other value is returned unchanged, for the message that lists the legal ones.
    """
    kind = type(value)
    name = str(value).removeprefix("torch.") if (kind.__module__, kind.__name__) == TORCH_DTYPE else value
    return DTYPE_ALIASES.get(name, name) if isinstance(name, str) else name


def dtype_names(values: Any) -> Any:
    """Give the full names of several dtypes; anything but a sequence of values is returned unchanged."""
    return tuple(map(dtype_name, values)) if isinstance(values, (tuple, list)) else values
