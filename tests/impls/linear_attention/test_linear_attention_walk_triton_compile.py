"""The walk's machine code, compiled without a GPU."""

from __future__ import annotations

import pytest
from support.without_gpu.compiled import SHARED_BYTES
from support.without_gpu.compiled_cases import BFLOAT, FLOAT, HALF, Operand, TritonCase

K = V = 128


def walks(T: int) -> set[bytes]:
    """Compile the walks of scalar gates over T steps."""
    operands = {name: ((1, T, 2, width), HALF) for name, width in (("q", K), ("k", K), ("v", V))}
    case = TritonCase("linear_attention/triton", "", {**operands, "log_a": ((1, T, 2), FLOAT)})
    if reason := case.missing():
        pytest.skip(reason)
    return {
        kernel.asm["cubin"]
        for name, kernel in case.kernels(90).items()
        if name.partition(" ")[0] == "la_walk"
    }


@pytest.mark.slow
def test_a_single_chunk_is_walked_by_the_kernels_of_several() -> None:
    """A loop that is known to have one step would not be pipelined, and kernels like that have failed."""
    assert walks(64) == walks(640)


@pytest.mark.slow
@pytest.mark.parametrize(("K", "V"), [(160, 36), (160, 100), (80, 36), (192, 132), (256, 64)])
def test_walks_of_any_rows_fit_into_shared_memory(K: int, V: int) -> None:
    """Rows of states that are no whole vectors are rearranged there; eight warps exchange more than four."""
    operands = {name: ((1, 128, 2, width), HALF) for name, width in (("q", K), ("k", K), ("v", V))}
    case = TritonCase("linear_attention/triton", "", {**operands, "log_a": ((1, 128, 2, K), FLOAT)})
    if reason := case.missing():
        pytest.skip(reason)
    walked = {name: kernel for name, kernel in case.kernels(90).items() if name.startswith("la_walk")}
    assert walked and all(kernel.metadata.shared <= SHARED_BYTES[90] for kernel in walked.values())


@pytest.mark.slow(but=("16-48-none",))
@pytest.mark.parametrize(("K", "V", "gate"), [(16, 48, "none"), (16, 48, "const"), (32, 64, "key")])
def test_gradients_of_narrow_heads_keep_their_loop_over_values(K: int, V: int, gate: str) -> None:
    """Where it was folded, Triton 3.6 has made kernels for Hopper that read outside of shared memory."""
    gates = {"const": (2,), "key": (1, 128, 2, K)}
    operands: dict[str, Operand] = {
        name: ((1, 128, 2, width), BFLOAT) for name, width in (("q", K), ("k", K), ("v", V))
    }
    operands |= {"log_a": (gates[gate], FLOAT)} if gate in gates else {}
    case = TritonCase("linear_attention/triton", "", operands)
    if reason := case.missing():
        pytest.skip(reason)
    assert "scf.for" in case.kernels(90)["la_grads"].asm["ttgir"]
