"""flash-linear-attention's chunk_hgrn alone, beside h_t = exp(g_t) h_{t-1} + x_t in float64. Needs a GPU.

    python docs/peers/fla_hgrn.py [--batch 2] [--steps 4096] [--channels 1024] [--seed 0]

Gates and inputs are those of RG-LRU (Griffin), drawn at random: log gates in float32, inputs in bfloat16, and
once more in float32. Per quantity it prints the largest error over the largest value, and whether a second
call gives the same bits. Neither ssmperf nor one of its adapters takes part.
"""

from __future__ import annotations

import argparse
from importlib.metadata import version

import torch
from fla.ops.hgrn import chunk_hgrn
from torch import Tensor

NAMES = ("output", "gradient of x", "gradient of g")


def operands(batch: int, steps: int, channels: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw inputs x, log gates g and a gradient at the output, (batch, steps, channels) in float32."""
    torch.manual_seed(seed)
    ring = torch.sqrt(0.81 + (0.998001 - 0.81) * torch.rand(channels, device="cuda"))  # radius 0.9 to 0.999
    gate, inside, x, incoming = torch.randn(4, batch, steps, channels, device="cuda")
    g = 8 * torch.sigmoid(gate) * torch.log(ring)
    return torch.sqrt(-torch.expm1(2 * g)) * torch.sigmoid(inside) * x, g, incoming


def reference(x: Tensor, g: Tensor, incoming: Tensor) -> list[Tensor]:
    """Walk through time in float64, and back."""
    x, a, incoming = x.double(), g.double().exp(), incoming.double()
    h, states = torch.zeros_like(x[:, 0]), []
    for a_t, x_t in zip(a.unbind(1), x.unbind(1), strict=True):
        h = a_t * h + x_t
        states.append(h)
    output = torch.stack(states, 1)
    before = torch.cat([torch.zeros_like(output[:, :1]), output[:, :-1]], 1)
    dh, dx = torch.zeros_like(h), []
    for t in range(x.shape[1] - 1, -1, -1):
        dh = dh + incoming[:, t]
        dx.append(dh)
        dh = dh * a[:, t]
    gradient = torch.stack(dx[::-1], 1)
    return [output, gradient, gradient * before * a]


def peer(x: Tensor, g: Tensor, incoming: Tensor) -> list[Tensor]:
    """Call chunk_hgrn and its backward pass."""
    x, g = x.detach().requires_grad_(), g.detach().requires_grad_()
    output, _ = chunk_hgrn(x, g)
    return [output.detach(), *torch.autograd.grad(output, (x, g), incoming)]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("batch", 2), ("steps", 4096), ("channels", 1024), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = operands(**vars(parser.parse_args()))
    print(
        torch.cuda.get_device_name(), *(f"{name} {version(name)}" for name in ("fla-core", "torch", "triton"))
    )
    for dtype in (torch.bfloat16, torch.float32):
        x, g, incoming = given[0].to(dtype), given[1], given[2].to(dtype)
        wanted, first, second = reference(x, g, incoming), peer(x, g, incoming), peer(x, g, incoming)
        for name, right, found, again in zip(NAMES, wanted, first, second, strict=True):
            error = (found.double() - right).abs().max() / right.abs().max()
            print(f"{dtype!s:15} {name:14} error {error:.2g}  same bits twice: {torch.equal(found, again)}")


if __name__ == "__main__":
    main()
