"""A plug-in of backends for `scan` that crash: test_crashes.py says where each is at fault."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

import torch
from torch import Tensor

import ssmperf

Result = tuple[Tensor, Tensor]
LOG = """6: NVRTC_ERROR_COMPILATION, compilation log:

FILE(9): error: identifier "missing" is undefined
          x[i] = missing;
                 ^

1 error detected in the compilation of "FILE".
"""


def right(log_a: Tensor, b: Tensor, initial_state: Tensor | None) -> Result:
    """The scan, one step after another."""
    state = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    states = []
    for a_t, b_t in zip(torch.exp(log_a).expand(b.shape).unbind(1), b.unbind(1), strict=True):
        state = a_t * state + b_t
        states.append(state)
    return torch.stack(states, 1), state


def crashing(name: str):
    """Register under crashing_<name>, for forward and backward with real gates."""
    return ssmperf.backend("scan", name=f"crashing_{name}", dtypes=("float32",), gates=("const", "data"))


def helper(size: int) -> int:
    return size[0]  # of an int


@crashing("helper")
def in_helper(log_a, b, initial_state=None, *, phase=None) -> Result:
    return right(log_a, b[: helper(b.shape[0])], initial_state)


@crashing("torch")
def in_torch(log_a, b, initial_state=None, *, phase=None) -> Result:
    return torch.nn.functional.linear(b, b), b[:, 0]  # b has three axes


@crashing("library")
def in_library(log_a, b, initial_state=None, *, phase=None) -> Result:
    json.loads(f"{{{b.shape[0]}")  # no JSON
    return right(log_a, b, initial_state)


@crashing("wordy")
def wordy(log_a, b, initial_state=None, *, phase=None) -> Result:
    raise ValueError("many words " * 200)


def descend(b: Tensor) -> Result:
    return descend(b)  # without end


@crashing("deep")
def deep(log_a, b, initial_state=None, *, phase=None) -> Result:
    return descend(b)  # Python 3.13.0 sees no end of calls that leave keywords out, until memory ends


class Backward(torch.autograd.Function):
    """Passes its input on, and fails on the way back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.reshape(7, 11, 13)  # another size


@crashing("backward")
def in_backward(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state)
    return Backward.apply(output), state


class Fatal(torch.autograd.Function):
    """Passes its input on, and reads address 0 on the way back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctypes.string_at(0)  # in backward


@crashing("fatal")
def fatal(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state)
    return Fatal.apply(output), state


@crashing("exits_later")
def exits_later(log_a, b, initial_state=None, *, phase=None) -> Result:
    if b.shape[1] == 6:
        os._exit(7)
    print("the words of an earlier case", flush=True)
    return right(log_a, b, initial_state)


@crashing("nvrtc")
def nvrtc(log_a, b, initial_state=None, *, phase=None) -> Result:
    raise RuntimeError(LOG.replace("FILE", "crashing.cu"))


@crashing("nvrtc_text")
def nvrtc_text(log_a, b, initial_state=None, *, phase=None) -> Result:
    raise RuntimeError(LOG.replace("FILE", "program"))  # which is no file


@crashing("triton")
def in_triton(log_a, b, initial_state=None, *, phase=None) -> Result:
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    try:
        import crashing_kernels
    finally:
        sys.path.pop(0)
    crashing_kernels.compile_for_gpu(int(b.shape[1]))
    return right(log_a, b, initial_state)
