"""Kernels of RWKV-7's recurrence alone: how far single channels of their output are off. Needs a GPU.

    python docs/peers/rwkv7_rows.py [--steps 8192] [--sequences 1] [--heads 16] [--words 63] [--seed 0]

The reference walks S ← diag(exp(g_t)) S + b_t (Sᵀ a_t)ᵀ + k_t v_tᵀ, o_t = Sᵀ r_t in float64. Operands are
bfloat16, gates float32. As in a layer over a text, a step is one of --words, the n-th of which is n times as
rare as the first, and has its word's operands: a_t = −κ_t is a unit vector along k_t but for a factor per
channel, b_t = κ_t times a rate in (0, 1) per channel, k_t is scaled by that rate, and g_t is between −0.607
and 0, spread over the channels as RWKV-7's layer has it at its start.

A row is a channel o[:, h, v] over all steps, its error the 2-norm of its difference over its 2-norm; rows
that are smaller than 1/1,024 of the largest are left out. The last lines show the same rows when nothing but
the operands is rounded once more, at random, each step by itself and equal words equally: what any kernel may
lose that rounds its operands to bfloat16. Neither ssmperf nor one of its adapters takes part.
"""

from __future__ import annotations

import argparse
import os
from importlib.metadata import version

import torch
from torch import Tensor
from torch.nn.functional import normalize

os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"  # fla's own Triton kernels; read at its import
STEEPEST = 0.6065  # the most negative log gate is −exp(−½)
SMALLEST = 2.0**-10


def draw(sequences: int, steps: int, heads: int, width: int, words: int) -> dict[str, Tensor]:
    """Draw operands (sequences, steps, heads, width): all but the gate gk in bfloat16."""
    frequency = 1 / torch.arange(1, words + 1, device="cuda")
    text = frequency.multinomial(sequences * steps, replacement=True).view(sequences, steps)
    r, k, v, faster, more = torch.randn(5, words, heads, width, device="cuda")
    rise = torch.linspace(-0.5, 0.5, heads * width, device="cuda").view(heads, width)
    zigzag = torch.linspace(-1, 1, width, device="cuda")
    zigzag = zigzag * zigzag.abs()
    rate = torch.sigmoid(-0.19 + 0.3 * zigzag + 0.4 * rise + 0.1 * more)
    unit = normalize((0.71 - 0.1 * rise) * k, dim=-1)
    gates = -STEEPEST * torch.sigmoid(-5.5 + 6 * (rise + 0.5) + 2.5 * zigzag + 0.1 * faster)
    operands = {"q": 0.29 * r, "k": 0.029 * k * rate, "v": 0.29 * v, "a": -unit, "b": unit * rate}
    by_word = {name: each.bfloat16() for name, each in operands.items()} | {"gk": gates}
    return {name: each[text] for name, each in by_word.items()}


def outputs(operands: dict[str, Tensor]) -> Tensor:
    """Walk through time in float64; gives o (sequences, steps, heads, width)."""
    q, k, v, a, b, gk = (operands[name].double() for name in ("q", "k", "v", "a", "b", "gk"))
    B, T, H, K = k.shape
    state, found = k.new_zeros(B, H, K, K), []
    for t in range(T):
        seen = torch.einsum("bhkv,bhk->bhv", state, a[:, t])
        state = gk[:, t].exp()[..., None] * state + torch.einsum("bhk,bhv->bhkv", b[:, t], seen)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        found.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(found, 1)


def rounded_again(x: Tensor, alike: bool) -> Tensor:
    """Move each number by up to half a unit in the last place of bfloat16; alike: equal steps equally."""
    wide = x.double().flatten(0, 1)
    moved = torch.rand_like(wide) - 0.5
    if alike:
        steps, places = x.flatten(0, 1).unique(dim=0, return_inverse=True)
        moved = moved[: len(steps)][places]
    return (wide * (1 + torch.finfo(torch.bfloat16).eps * moved)).view(x.shape)


def main() -> None:
    from fla.ops.generalized_delta_rule import chunk_dplr_delta_rule, fused_recurrent_dplr_delta_rule

    parser = argparse.ArgumentParser()
    sizes = (("steps", 8192), ("sequences", 1), ("heads", 16), ("width", 64), ("words", 63), ("seed", 0))
    for name, value in sizes:
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    print(
        torch.cuda.get_device_name(), *(f"{name} {version(name)}" for name in ("fla-core", "torch", "triton"))
    )
    torch.manual_seed(chosen.seed)
    operands = draw(chosen.sequences, chosen.steps, chosen.heads, chosen.width, chosen.words)
    wanted = outputs(operands)
    found = {
        "fla, recurrent": fused_recurrent_dplr_delta_rule(**operands, scale=1.0)[0],
        "fla, chunks": chunk_dplr_delta_rule(**operands, scale=1.0)[0],
    }
    for alike in (False, True):
        again = {name: x if name == "gk" else rounded_again(x, alike) for name, x in operands.items()}
        found[f"float64, rounded again{', words alike' if alike else ''}"] = outputs(again)
    lengths = wanted.norm(dim=1)
    large = lengths >= SMALLEST * lengths.max()
    for name, output in found.items():
        errors = ((output.double() - wanted).norm(dim=1) / lengths).where(large, 0)
        print(
            f"{name:36} worst row {float(errors.max()):.4f}, median {float(errors[large].median()):.4f}, "
            f"whole {float((output.double() - wanted).norm() / wanted.norm()):.4f}"
        )


if __name__ == "__main__":
    main()
