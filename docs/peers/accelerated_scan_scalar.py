"""accelerated-scan's scalar scan alone, beside h_t = a_t h_{t-1} + b_t in float64. Needs a GPU.

    python docs/peers/accelerated_scan_scalar.py [--batch 2] [--steps 4096] [--channels 1024] [--seed 0]

The kernel takes gates and inputs in one dtype, and bfloat16 rounds a gate of 0.999 to 1. So there are two
references in float64: one with the gates before they were rounded, one with the rounded gates. The second
tells the scan's own error from that of its gates. Per set of gates, dtype and quantity, the largest error
over the largest value is printed. Neither ssmperf nor one of its adapters takes part.
"""

from __future__ import annotations

import argparse
from importlib.metadata import version

import torch
from accelerated_scan.scalar import scan
from torch import Tensor

NAMES = ("output", "gradient of the gates", "gradient of the inputs")
BLOCK = 2048  # the backward pass of some versions reads past the end of shorter sequences


def rg_lru(batch: int, channels: int, steps: int) -> tuple[Tensor, Tensor]:
    """Draw gates and inputs (batch, channels, steps) of RG-LRU (Griffin), in float32."""
    ring = torch.sqrt(0.81 + (0.998001 - 0.81) * torch.rand(channels, 1, device="cuda"))
    gate, inside, x = torch.randn(3, batch, channels, steps, device="cuda")
    log_a = 8 * torch.sigmoid(gate) * torch.log(ring)
    return log_a.exp(), torch.sqrt(-torch.expm1(2 * log_a)) * torch.sigmoid(inside) * x


def hgrn(batch: int, channels: int, steps: int) -> tuple[Tensor, Tensor]:
    """Draw gates f and inputs (1 − f) ⊙ i of HGRN, which PESE maps expand; lower bounds up to 0.99."""
    bound = 0.99 * torch.rand(channels, 1, device="cuda")
    gate, x = torch.randn(2, batch, channels, steps, device="cuda")
    f = bound + (1 - bound) * torch.sigmoid(gate)
    return f, (1 - f) * torch.nn.functional.silu(x)


def reference(a: Tensor, b: Tensor, incoming: Tensor) -> list[Tensor]:
    """Walk through time in float64, and back."""
    a, b, incoming = a.double(), b.double(), incoming.double()
    h, states = torch.zeros_like(b[..., 0]), []
    for a_t, b_t in zip(a.unbind(-1), b.unbind(-1), strict=True):
        h = a_t * h + b_t
        states.append(h)
    output = torch.stack(states, -1)
    before = torch.cat([torch.zeros_like(output[..., :1]), output[..., :-1]], -1)
    dh, gradients = torch.zeros_like(h), []
    for t in range(b.shape[-1] - 1, -1, -1):
        dh = dh + incoming[..., t]
        gradients.append(dh)
        dh = dh * a[..., t]
    gradient = torch.stack(gradients[::-1], -1)
    return [output, gradient * before, gradient]


def peer(a: Tensor, b: Tensor, incoming: Tensor) -> list[Tensor]:
    """Call the scan and its backward pass."""
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    output = scan(a, b)
    return [output.detach(), *torch.autograd.grad(output, (a, b), incoming)]


def error(found: Tensor, right: Tensor) -> float:
    return float((found.double() - right).abs().max() / right.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("batch", 2), ("steps", 2 * BLOCK), ("channels", 1024), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    if chosen.steps % BLOCK:
        parser.error(f"--steps must be a multiple of {BLOCK}")
    versions = (f"{name} {version(name)}" for name in ("accelerated-scan", "torch", "triton"))
    print(torch.cuda.get_device_name(), *versions)
    torch.manual_seed(chosen.seed)
    for draw in (rg_lru, hgrn):
        a, b = draw(chosen.batch, chosen.channels, chosen.steps)
        for dtype in (torch.bfloat16, torch.float32):
            incoming = torch.randn_like(b).to(dtype)
            given = a.to(dtype), b.to(dtype), incoming
            meant, rounded = reference(a, b.to(dtype), incoming), reference(*given)
            for name, found, *right in zip(NAMES, peer(*given), meant, rounded, strict=True):
                of_meant, of_rounded = (error(found, each) for each in right)
                print(
                    f"{draw.__name__:7} {dtype!s:15} {name:22} error {of_meant:.2g}, "
                    f"of the rounded gates {of_rounded:.2g}"
                )


if __name__ == "__main__":
    main()
