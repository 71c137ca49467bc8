"""flash-linear-attention (fla-core 0.6) in this process: how it is imported, and what it refuses.

fla hands some steps of a kernel to other packages that it finds, such as TileLang. It decides that when it
is imported, so a process has it either with this choice of back ends or without.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType

from ssmperf.authoring import Unsupported

from ._peer import import_all

SWITCH = "FLA_DISABLE_BACKEND_DISPATCH"
CHOSEN = ("tilelang", "flash_qla", "flash_kda")  # packages that fla imports at a call, if they are installed


def load(*, own_choice: bool) -> None:
    """Import fla, with or without its choice of back ends.

    Raises:
        Unsupported: this process has it the other way already, or it is older than 0.6.
    """
    found = sys.modules.get("fla.backends") or _imported(own_choice)
    disabled = bool(found._DISPATCH_DISABLED)
    if disabled == own_choice:
        how = (
            f"without its choice of back ends (by {SWITCH} or fla_triton)" if disabled else "with its choice"
        )
        raise Unsupported(f"this process has imported fla {how}: the other way needs a process of its own")


def _imported(own_choice: bool) -> ModuleType:
    before = os.environ.get(SWITCH)
    try:
        if not own_choice:
            os.environ[SWITCH] = "1"  # read once, at the import
        return importlib.import_module("fla.backends")
    except ModuleNotFoundError as error:
        if error.name != "fla.backends":
            raise
        raise Unsupported("an fla older than 0.6, which does not tell its back ends") from error
    finally:
        if before is None:
            os.environ.pop(SWITCH, None)
        else:
            os.environ[SWITCH] = before


def load_all(modules: tuple[str, ...], *, own_choice: bool) -> None:
    """Import modules of fla, and the packages to which it may hand its steps. Raises what `load` does."""
    load(own_choice=own_choice)
    import_all(modules)
    if own_choice:
        import_all(tuple(name for name in CHOSEN if importlib.util.find_spec(name) is not None))


def refuse_miscompiled(*, tilelang: bool) -> None:
    """Raise Unsupported where fla refuses the backward pass of gates per head, which Triton compiles wrongly.

    tilelang: whether fla hands this step to TileLang where it can use it.
    """
    known = importlib.import_module("fla.utils")
    old, mended = known.TRITON_ABOVE_3_4_0, known.TRITON_ABOVE_3_7_1
    if not known.IS_NVIDIA_HOPPER or not old or mended:
        return
    usable = tilelang and importlib.util.find_spec("tilelang") is not None and known.has_usable_nvcc()
    if not usable:
        raise Unsupported("its backward pass with a gate per head: refused on Hopper by Triton 3.4 to 3.7.0")
