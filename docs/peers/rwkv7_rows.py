"""Kernels of RWKV-7's recurrence alone: how far single rows of their output are off. Needs a GPU.

    python docs/peers/rwkv7_rows.py [--steps 1024] [--sequences 2] [--heads 16] [--width 64] [--seed 0]

The reference walks S ← diag(exp(g_t)) S + b_t (Sᵀ a_t)ᵀ + k_t v_tᵀ, o_t = Sᵀ r_t in float64. Operands are
bfloat16, gates float32. As in RWKV-7, a_t = −κ_t is a unit vector, b_t = κ_t times a rate in (0, 1) per
channel, k_t is scaled by that rate, and g_t is between −0.6 and 0. The error of a row o[t, h, :] is the
2-norm of its difference over its 2-norm; rows that are smaller than 1/1,024 of the largest are left out. The
last line shows the same rows when nothing but the operands is rounded, once more and at random: what any
kernel with bfloat16 operands may lose. Neither ssmperf nor one of its adapters takes part.
"""

from __future__ import annotations

import argparse
import os
from importlib.metadata import version

import torch
from torch import Tensor
from torch.nn.functional import normalize

os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"  # fla's own Triton kernels; read at its import
STEEPEST = 0.6  # the most negative log gate is −exp(−½)
SMALLEST = 2.0**-10


def draw(sizes: tuple[int, ...]) -> dict[str, Tensor]:
    """Draw operands of sizes (sequences, steps, heads, width): all but the gate gk in bfloat16."""
    r, v, k, key = torch.randn(4, *sizes, device="cuda")
    rate = torch.rand(sizes, device="cuda")
    key = normalize(key, dim=-1)
    operands = {"q": 0.125 * r, "k": 0.125 * k * rate, "v": v, "a": -key, "b": key * rate}
    gates = -STEEPEST * torch.rand(sizes, device="cuda")
    return {name: each.bfloat16() for name, each in operands.items()} | {"gk": gates}


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


def rounded_again(x: Tensor) -> Tensor:
    """Move each number by up to half a unit in the last place of bfloat16."""
    return x.double() * (1 + torch.finfo(torch.bfloat16).eps * (torch.rand_like(x.double()) - 0.5))


def main() -> None:
    from fla.ops.generalized_delta_rule import chunk_dplr_delta_rule, fused_recurrent_dplr_delta_rule

    parser = argparse.ArgumentParser()
    for name, value in (("steps", 1024), ("sequences", 2), ("heads", 16), ("width", 64), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    print(
        torch.cuda.get_device_name(), *(f"{name} {version(name)}" for name in ("fla-core", "torch", "triton"))
    )
    torch.manual_seed(chosen.seed)
    operands = draw((chosen.sequences, chosen.steps, chosen.heads, chosen.width))
    wanted = outputs(operands)
    again = {name: each if name == "gk" else rounded_again(each) for name, each in operands.items()}
    found = {
        "fla, recurrent": fused_recurrent_dplr_delta_rule(**operands, scale=1.0)[0],
        "fla, chunks": chunk_dplr_delta_rule(**operands, scale=1.0)[0],
        "float64, rounded again": outputs(again),
    }
    sizes = wanted.norm(dim=-1)
    large = sizes >= SMALLEST * sizes.max()
    for name, output in found.items():
        errors = ((output.double() - wanted).norm(dim=-1) / sizes).where(large, 0)
        print(
            f"{name:24} worst row {float(errors.max()):.4f}, median {float(errors[large].median()):.4f}, "
            f"whole {float((output.double() - wanted).norm() / wanted.norm()):.4f}"
        )


if __name__ == "__main__":
    main()
