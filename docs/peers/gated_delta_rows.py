"""Kernels of the gated delta rule alone: how far single rows of the last state are off. Needs a GPU.

    python docs/peers/gated_delta_rows.py [--steps 4096] [--sequences 2] [--heads 16]
        [--words 63] [--rates 1] [--widths 128 128] [--seed 0] [--operands FILE]

The reference walks S ← exp(g_t) S, S ← S + β_t k_t (v_t − Sᵀ k_t)ᵀ in float64; operands are bfloat16, gates
and β float32, β between 0 and --rates. --widths are those of keys and values; FlashQLA takes 128 and 128
alone. As in a layer over a text, a step is one of --words, the n-th of which is n times as rare as the first,
and has its word's q, k, v, g and β; keys are unit vectors, and heads forget as Gated DeltaNet's layer lets
them at its start. --operands reads them from a file in which torch.save has put them by these names, each
(sequences, steps, heads, ...).

The error of a row S[k, :] is the 2-norm of its difference over its 2-norm; rows that are smaller than 1/1,024
of the largest are left out. The last lines show the same rows when nothing but q, k and v is rounded once
more, at random, each step by itself and equal words equally: what any kernel may lose that rounds its
operands to bfloat16. Neither ssmperf nor one of its adapters takes part.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"  # fla's own Triton kernels; read at its import
OF_QLA = [128, 128]  # the only widths of keys and values of FlashQLA's kernels
NAMES = ("q", "k", "v", "g", "beta")
SMALLEST = 2.0**-10


def draw(chosen: argparse.Namespace) -> tuple[Tensor, ...]:
    """Draw q, k, v (sequences, steps, heads, width) in bfloat16, and g, β (sequences, steps, heads)."""
    (K, V), H = chosen.widths, chosen.heads
    frequency = 1 / torch.arange(1, chosen.words + 1, device="cuda")
    text = frequency.multinomial(chosen.sequences * chosen.steps, replacement=True)
    text = text.view(chosen.sequences, chosen.steps)
    q, k = (normalize(torch.randn(chosen.words, H, K, device="cuda"), dim=-1) for _ in range(2))
    v = torch.randn(chosen.words, H, V, device="cuda")
    speed, step = 16 * torch.rand(H, device="cuda"), 10 ** (2 * torch.rand(H, device="cuda") - 3)
    g = -speed * softplus(torch.randn(chosen.words, H, device="cuda") / 2 + step.expm1().log())
    beta = chosen.rates * torch.sigmoid(torch.randn(chosen.words, H, device="cuda") / 2)
    return tuple(each[text] for each in (q.bfloat16(), k.bfloat16(), v.bfloat16(), g, beta))


def last_state(k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Walk through time in float64; gives (sequences, heads, K, V)."""
    k, v, g, beta = (each.double() for each in (k, v, g, beta))
    state = k.new_zeros(k.shape[0], k.shape[2], k.shape[3], v.shape[3])
    for t in range(k.shape[1]):
        state = g[:, t].exp()[..., None, None] * state
        missing = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + torch.einsum("bh,bhk,bhv->bhkv", beta[:, t], k[:, t], missing)
    return state


def rounded_again(x: Tensor, alike: bool) -> Tensor:
    """Move each number by up to half a unit in the last place of bfloat16; alike: equal steps equally."""
    wide = x.double().flatten(0, 1)
    moved = torch.rand_like(wide) - 0.5
    if alike:
        steps, places = x.flatten(0, 1).unique(dim=0, return_inverse=True)
        moved = moved[: len(steps)][places]
    return (wide * (1 + torch.finfo(torch.bfloat16).eps * moved)).view(x.shape)


def states(operands: tuple[Tensor, ...]) -> Iterator[tuple[str, Tensor]]:
    """Compute the last states by each kernel, with its name; sequences are packed where it can."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule as of_fla
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule as recurrent

    q, k, v, g, beta = operands
    functions = {"fla, recurrent": recurrent, "fla, Triton": of_fla}
    if [k.shape[3], v.shape[3]] == OF_QLA:
        from flash_qla import chunk_gated_delta_rule as of_qla

        functions |= {"flash_qla": of_qla, "flash_qla, auto_cp=False": partial(of_qla, auto_cp=False)}
    count, steps = q.shape[:2]
    bounds = torch.arange(0, count * steps + 1, steps, device="cuda")
    flat = tuple(x.flatten(0, 1).unsqueeze(0) for x in operands)
    for name, function in functions.items():
        kind = {"output_final_state": True, "scale": 1.0}
        _, dense = function(q, k, v, g=g, beta=beta, **kind)
        _, packed = function(*flat[:3], g=flat[3], beta=flat[4], cu_seqlens=bounds, **kind)
        yield f"{name}, dense", dense
        yield f"{name}, packed", packed
    for alike in (False, True):
        moved = last_state(rounded_again(k, alike), rounded_again(v, alike), g, beta)
        yield f"float64, rounded again{', words alike' if alike else ''}", moved


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("steps", 4096), ("sequences", 2), ("heads", 16), ("words", 63), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rates", type=float, default=1.0)
    parser.add_argument("--widths", type=int, nargs=2, default=OF_QLA)
    parser.add_argument("--operands")
    chosen = parser.parse_args()
    of_qla = ["flash-qla", "tilelang"] if chosen.widths == OF_QLA else []
    packages = (*of_qla, "fla-core", "torch", "triton")
    print(torch.cuda.get_device_name(), *(f"{name} {version(name)}" for name in packages))
    torch.manual_seed(chosen.seed)
    if chosen.operands is None:
        operands = draw(chosen)
    else:
        given = torch.load(chosen.operands, map_location="cuda", weights_only=True)
        operands = tuple(given[name] for name in NAMES)
    wanted = last_state(*operands[1:])
    sizes = wanted.norm(dim=-1)
    large = sizes >= SMALLEST * sizes.max()
    for name, found in states(operands):
        errors = ((found.double() - wanted).norm(dim=-1) / sizes).where(large, 0)
        by_head = errors.amax((0, 2))
        print(
            f"{name:34} worst row {float(errors.max()):.4f} (head {int(by_head.argmax())}), "
            f"median {float(errors[large].median()):.4f}, whole "
            f"{float((found.double() - wanted).abs().max() / wanted.abs().max()):.4f}"
        )


if __name__ == "__main__":
    main()
