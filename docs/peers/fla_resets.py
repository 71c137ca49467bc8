"""flash-linear-attention's gated kernels alone, with one log gate of −∞ (a reset). Needs a GPU.

    python docs/peers/fla_resets.py [--steps 256] [--heads 4] [--width 64] [--seed 0]

The reference walks S_t = exp(g_t) S_{t-1} + k_t v_tᵀ, o_t = S_tᵀ q_t in float64, where exp(−∞) is 0. Per
function, the number of outputs that are not finite is printed, and the largest error of the others over the
largest value. Neither ssmperf nor one of its adapters takes part.
"""

from __future__ import annotations

import argparse
from importlib.metadata import version

import torch
from fla.ops.gla import chunk_gla, fused_recurrent_gla
from fla.ops.simple_gla import chunk_simple_gla
from torch import Tensor


def reference(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Walk through time in float64; g is (batch, steps, heads, width or 1)."""
    q, k, v, a = (each.double() for each in (q, k, v, g.exp()))
    state, outputs = torch.zeros(1, q.shape[2], q.shape[3], v.shape[3], dtype=q.dtype, device=q.device), []
    for t in range(q.shape[1]):
        state = a[:, t].unsqueeze(-1) * state + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
        outputs.append((q[:, t].unsqueeze(-1) * state).sum(-2))
    return torch.stack(outputs, 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("steps", 256), ("heads", 4), ("width", 64), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    print(
        torch.cuda.get_device_name(), *(f"{name} {version(name)}" for name in ("fla-core", "torch", "triton"))
    )
    torch.manual_seed(chosen.seed)
    shape = (1, chosen.steps, chosen.heads, chosen.width)
    q, k, v = (torch.randn(shape, device="cuda") for _ in range(3))
    for function, last, name in (
        (chunk_gla, chosen.width, "g"),
        (fused_recurrent_gla, chosen.width, "gk"),
        (chunk_simple_gla, 1, "g"),
    ):
        g = -0.1 * torch.rand(*shape[:3], last, device="cuda")
        for reset in (False, True):
            if reset:
                g[:, chosen.steps // 2 + 5, 0] = -torch.inf
            gates = g.squeeze(-1) if last == 1 else g
            output, _ = function(q, k, v, **{name: gates}, scale=1.0)
            wanted, finite = reference(q, k, v, g), output.isfinite()
            error = (output.double() - wanted)[finite].abs().max() / wanted.abs().max()
            print(
                f"{function.__name__:20} {'with a reset' if reset else 'no reset':12} "
                f"not finite: {int((~finite).sum())} of {finite.numel()}, error of the others {error:.2g}"
            )


if __name__ == "__main__":
    main()
