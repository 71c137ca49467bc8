"""Fill fresh memory with NaN, so that an element that a kernel fails to write is noticed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ssmperf.engine.operands.dtypes import differentiable

_UNINITIALISED = (
    "aten::empty",
    "aten::new_empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty_strided",
)
MOST_FILLED = 2**25  # elements


def _never_traced(function: Any) -> bool:
    """Keep compiled functions from tracing a function and what it calls; False if this torch cannot."""
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:
        return False
    skip = _FrameAction.SKIP
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(skip, skip))
    return True


class _FillEmpty(TorchDispatchMode):
    """Fills the results of torch.empty and similar functions with NaN; only the end of a very large block."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell torch whether to keep compiled functions from tracing the handler, which is done here.

        torch does it with a wrapper that imports the whole compiler, a second of work for each worker.
        """
        return not _never_traced(cls.__torch_dispatch__)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name in _UNINITIALISED and (result.is_floating_point() or result.is_complex()):
            _fill(result)
        return result


def _fill(block: Tensor) -> None:
    if block.numel() <= MOST_FILLED or not block.is_contiguous():
        block.fill_(float("nan"))
    else:
        block.view(-1)[-MOST_FILLED:].fill_(float("nan"))


@contextmanager
def poisoned(device: torch.device, *, like: Sequence[Tensor]) -> Iterator[None]:
    """Make uninitialised memory read as NaN within the block.

    On the CPU every torch.empty is filled. On CUDA a dispatch mode would keep compiled functions from
    compiling, so there the allocator's free blocks of the sizes of `like` are filled in advance.
    """
    if device.type == "cpu":
        with _FillEmpty():  # type: ignore[no-untyped-call]
            yield
        return
    numbers = [tensor for tensor in like if differentiable(tensor)]
    blocks = [torch.full_like(tensor, float("nan")) for tensor in numbers for _ in range(2)]
    del blocks
    yield
