"""Kernels that Triton cannot compile."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def helper(x, n: tl.constexpr):
    y = tl.load(x)
    # the fault is in a function that the kernel calls
    return y.no_such_method(n)


@triton.jit
def calls_helper(x, n: tl.constexpr):
    tl.store(x, helper(x, n))


@triton.jit
def no_power_of_two(x, n: tl.constexpr):

    tl.store(x + tl.arange(0, n), 0.0)


@triton.jit
def asserts(x, n: tl.constexpr):
    tl.static_assert(n == 4, "n must be 4")


KERNELS = {5: calls_helper, 6: no_power_of_two, 7: asserts}


def compile_for_gpu(T: int) -> None:
    """Compile the kernel of a length for a GPU, which need not be there."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(KERNELS[T], {"x": "*fp32", "n": "constexpr"}, {"n": T})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
