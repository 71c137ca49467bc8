"""FlashQLA alone, on packed sequences of which one is empty. Needs a GPU.

    python docs/peers/flash_qla_empty.py [--lengths 60 67 0 70] [--heads 4] [--seed 0] [--fla]

The reference walks S ← exp(g_t) S, S ← S + β_t k_t (v_t − Sᵀ k_t)ᵀ, o_t = Sᵀ q_t in float64, through each
sequence by itself. An empty sequence adds no step, so calls with and without it differ in cu_seqlens alone.
Per call, the largest error over the largest value is printed, for each output that is not empty and for the
last states; or the exception of a call that refuses.

FlashQLA is called with auto_cp, its default, and without. --fla also calls chunk_gated_delta_rule of
flash-linear-attention, which hands the call to FlashQLA. Neither ssmperf nor one of its adapters takes part.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from itertools import accumulate, pairwise
from typing import Any

import torch
from flash_qla import chunk_gated_delta_rule
from torch import Tensor
from torch.nn.functional import normalize

WIDTH = 128  # of keys and values, the only one of FlashQLA's kernels


def draw(steps: int, heads: int, seed: int) -> tuple[Tensor, ...]:
    """Draw q, k, v (1, steps, heads, WIDTH) in bfloat16, and g, β (1, steps, heads) in float32."""
    torch.manual_seed(seed)
    q, k, v = torch.randn(3, 1, steps, heads, WIDTH, device="cuda")
    g, beta = torch.rand(2, 1, steps, heads, device="cuda")
    return normalize(q, dim=-1).bfloat16(), normalize(k, dim=-1).bfloat16(), v.bfloat16(), -0.1 * g, beta


def reference(operands: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Walk through one sequence in float64; gives o (1, steps, heads, WIDTH) and the last state."""
    q, k, v, g, beta = (each[0].double() for each in operands)
    state, output = q.new_zeros(q.shape[1], WIDTH, WIDTH), torch.empty_like(v)
    for t in range(len(q)):
        state = g[t].exp()[:, None, None] * state
        missing = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
        state = state + torch.einsum("h,hk,hv->hkv", beta[t], k[t], missing)
        output[t] = torch.einsum("hkv,hk->hv", state, q[t])
    return output[None], state


def error(found: Tensor, right: Tensor) -> str:
    return f"{float((found.double() - right).abs().max() / right.abs().max()):.2g}"


def errors(call: Callable[..., Any], operands: tuple[Tensor, ...], lengths: list[int]) -> str:
    """Call a function with packed sequences, and say how far it is from the reference."""
    ends = [0, *accumulate(lengths)]
    bounds = torch.tensor(ends, device="cuda")
    sequences = [tuple(x[:, a:b] for x in operands) for a, b in pairwise(ends)]
    outputs, states = zip(*map(reference, sequences), strict=True)
    try:
        found, last = call(*operands, scale=1.0, output_final_state=True, cu_seqlens=bounds)
    except ValueError as refusal:
        return f"ValueError: {refusal}"
    parts = zip(found.split(lengths, 1), outputs, strict=True)
    of_outputs = ", ".join(error(part, right) for part, right in parts if right.numel())
    return f"outputs {of_outputs}; last states {error(last, torch.stack(states))}"


def calls(with_fla: bool) -> Iterator[tuple[str, Callable[..., Any]]]:
    """List what is called, by name."""
    yield "flash_qla, auto_cp=False", partial(chunk_gated_delta_rule, auto_cp=False)
    yield "flash_qla", chunk_gated_delta_rule
    if with_fla:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule as of_fla

        yield "fla", of_fla


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", type=int, nargs="+", default=[60, 67, 0, 70])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fla", action="store_true")
    chosen = parser.parse_args()
    packages = ("flash-qla", "tilelang", "torch", *(("fla-core",) if chosen.fla else ()))
    print(torch.cuda.get_device_name(), *(f"{name} {version(name)}" for name in packages))
    operands = draw(sum(chosen.lengths), chosen.heads, chosen.seed)
    # With the empty sequence first: memory that a right call has left could hide what is never written.
    for lengths in (chosen.lengths, [each for each in chosen.lengths if each]):
        for name, call in calls(chosen.fla):
            print(f"{name:24} lengths {lengths}: {errors(call, operands, lengths)}")


if __name__ == "__main__":
    main()
