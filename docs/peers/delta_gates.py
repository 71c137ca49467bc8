"""Kernels of the gated delta rule and of Kimi Delta Attention alone, from slow gates to resets. Needs a GPU.

    python docs/peers/delta_gates.py [--steps 1024] [--heads 4] [--seed 0] [--means 0.1 0.5 1 2.5 5]

The reference walks S ← diag(exp(g_t)) S, S ← S + β_t k_t (v_t − Sᵀ k_t)ᵀ, o_t = Sᵀ q_t in float64. Operands
are bfloat16, keys unit vectors, g and β float32, β in (0, 1). Rates of forgetting are spread by a factor of
100, as layers draw them: among a head's key channels, or, for kernels that take one gate per head, among
heads. A log gate is between half and one and a half of its rate; --means are what log gates are on average,
times −1. In the last call one log gate in the middle is −∞, a reset, and the others are as in the first.

Per kernel and call, the number of outputs that are not finite is printed, and the largest error of the others
over the largest value. A package that is missing is left out, and cuDNN's kernel needs a Hopper. Neither
ssmperf nor one of its adapters takes part.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import normalize

os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"  # fla's own Triton kernels; read at its import
WIDTH = 128  # of keys and values: the only one of FlashQLA's and cuDNN's kernels
PACKAGES = ("fla-core", "flash-qla", "nvidia-cudnn-frontend", "torch", "triton")


def draw(steps: int, heads: int) -> dict[str, Tensor]:
    """Draw q, k, v (1, steps, heads, width) in bfloat16, beta (1, steps, heads), g with a mean of −1."""
    q, k, v, gates = torch.randn(4, 1, steps, heads, WIDTH, device="cuda")
    data = {"q": normalize(q, dim=-1), "k": normalize(k, dim=-1), "v": v}
    beta = torch.rand(1, steps, heads, device="cuda")
    return {name: each.bfloat16() for name, each in data.items()} | {
        "g": -spread(WIDTH) * (0.5 + torch.rand_like(gates)),
        "beta": beta,
    }


def spread(count: int) -> Tensor:
    """Rates from 1 to 100, with a mean of 1."""
    rates = torch.logspace(0, 2, count, device="cuda")
    return rates / rates.mean()


def per_head(g: Tensor) -> Tensor:
    """Turn gates per key channel into gates per head (1, steps, heads) with the same mean."""
    noise = g[..., 0] / g[..., 0].mean()
    return g.mean() * noise * spread(g.shape[2])


def reference(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Walk through time in float64; g is (1, steps, heads, width or 1)."""
    q, k, v, a, beta = (each.double() for each in (q, k, v, g.exp(), beta))
    state, outputs = q.new_zeros(1, q.shape[2], WIDTH, WIDTH), []
    for t in range(q.shape[1]):
        state = a[:, t].unsqueeze(-1) * state
        missing = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + torch.einsum("bh,bhk,bhv->bhkv", beta[:, t], k[:, t], missing)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1)


def of_cudnn(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float) -> tuple[Tensor, None]:
    """Call cuDNN's Kimi Delta Attention with its plan for Hopper, as one packed row."""
    from cudnn.linear_attention.ops.kda import kimi_delta_attention

    bounds = torch.tensor([0, q.shape[1]], dtype=torch.int32, device="cuda")
    rows = (each[0] for each in (q, k, v, g, beta))
    found = kimi_delta_attention(*rows, bounds, scale, plan_name="kda_hopper_cuda")
    return (found[0] if isinstance(found, tuple) else found).unsqueeze(0), None


def kernels() -> dict[str, tuple[bool, Callable[..., tuple[Tensor, Tensor | None]]]]:
    """The kernels of installed packages, and whether each takes a gate per key channel."""
    found: dict[str, tuple[bool, Callable[..., tuple[Tensor, Tensor | None]]]] = {}
    if find_spec("fla"):
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
        from fla.ops.kda import chunk_kda, fused_recurrent_kda

        found |= {"fla chunk_gated_delta_rule": (False, chunk_gated_delta_rule)}
        found |= {"fla fused_recurrent_gated_delta_rule": (False, fused_recurrent_gated_delta_rule)}
        found |= {"fla chunk_kda": (True, chunk_kda), "fla fused_recurrent_kda": (True, fused_recurrent_kda)}
    if find_spec("flash_qla"):
        from flash_qla import chunk_gated_delta_rule as of_qla

        found["flash_qla"] = False, of_qla
        found["flash_qla auto_cp=False"] = False, partial(of_qla, auto_cp=False)
    if find_spec("cudnn"):
        found["cudnn kda_hopper_cuda"] = True, of_cudnn
    return found


def installed(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("steps", 1024), ("heads", 4), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--means", type=float, nargs="+", default=[0.1, 0.5, 1.0, 2.5, 5.0])
    chosen = parser.parse_args()
    print(torch.cuda.get_device_name(), *map(installed, PACKAGES))
    torch.manual_seed(chosen.seed)
    operands = draw(chosen.steps, chosen.heads)
    calls = [(f"−{mean:g} on average", mean * operands["g"]) for mean in chosen.means]
    reset = calls[0][1].clone()
    reset[:, chosen.steps // 2 + 5, 0] = -torch.inf
    for label, g in (*calls, ("a reset", reset)):
        for name, (by_channel, function) in kernels().items():
            gates = g if by_channel else per_head(g.where(g.isfinite(), 0))
            if label == "a reset" and not by_channel:
                gates[:, chosen.steps // 2 + 5, 0] = -torch.inf
            output = function(**operands | {"g": gates}, scale=1.0)[0]
            wanted = reference(**operands | {"g": gates if by_channel else gates.unsqueeze(-1)})
            finite = output.isfinite()
            others = (output.double() - wanted)[finite].abs()
            error = float(others.max() / wanted.abs().max()) if len(others) else torch.nan
            print(
                f"{name:36} {label:18} not finite: {int((~finite).sum())} of {finite.numel()}, "
                f"error of the others {error:.2g}"
            )


if __name__ == "__main__":
    main()
