"""The parts of the layers around mixing models: norms, short convolution, token shift, channel mixing."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import UsageError

EPSILON = 1e-5
CONVOLUTION = 4  # steps that a short convolution sees
EXPANSION = 2  # how much wider a Mamba block's mixer is than the residual stream
CHANNELS_PER_RANK = 16

RMSNorm = partial(nn.RMSNorm, eps=EPSILON)  # torch's default depends on the dtype
SimpleRMSNorm = partial(nn.RMSNorm, eps=EPSILON, elementwise_affine=False)


def low_rank(inner: int) -> int:
    """Form ⌈d/16⌉ for a residual stream of width d whose mixer has `inner` = 2d channels."""
    return math.ceil(inner / (EXPANSION * CHANNELS_PER_RANK))


def checked_rank(rank: int) -> int:
    """Give the rank of a product of two weights back. Raises UsageError where it is below 1."""
    if rank < 1:
        raise UsageError(f"the rank must be at least 1, got {rank}")
    return rank


def checked_width(width: int | None) -> int | None:
    """Give the width of a layer's input, or None, back. Raises UsageError where it is below 1."""
    if width is not None and width < 1:
        raise UsageError(f"the width must be at least 1, got {width}")
    return width


def below_zero(name: str, value: float) -> float:
    """Give an option back. Raises UsageError where it is not a finite number below 0."""
    if not -math.inf < value < 0:
        raise UsageError(f"{name} must be a finite number below 0, got {value}")
    return value


def above_zero(name: str, value: float) -> float:
    """Give an option back. Raises UsageError where it is not a finite number above 0."""
    if not 0 < value < math.inf:
        raise UsageError(f"{name} must be a finite number above 0, got {value}")
    return value


class GroupNorm(nn.Module):
    """Bring each head's channels to mean 0 and variance 1, then scale and shift each channel."""

    def __init__(self, heads: int, width: int, eps: float = EPSILON) -> None:
        super().__init__()
        self.heads, self.eps = heads, eps
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        rows = functional.group_norm(x.flatten(0, 1), self.heads, self.weight, self.bias, self.eps)
        return rows.view(x.shape)


class HeadRMSNorm(nn.Module):
    """Bring each head's channels to mean square 1, then scale each channel; all heads share the scales."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, RMSNorm(width // heads)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x.unflatten(-1, (self.heads, -1)))
        return normed.flatten(-2)


class SimpleHeadRMSNorm(HeadRMSNorm):
    """Bring each head's channels to mean square 1."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__(heads, width)
        self.norm = SimpleRMSNorm(width // heads)


class GroupRMSNorm(nn.Module):
    """Bring each group of neighbouring channels to mean square 1, then scale each channel."""

    def __init__(self, groups: int, width: int) -> None:
        super().__init__()
        self.groups, self.weight = groups, nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        groups = x.unflatten(-1, (self.groups, -1))
        normed = functional.rms_norm(groups, groups.shape[-1:], eps=EPSILON)
        return normed.flatten(-2) * self.weight


def over_all(norm: Callable[[int], nn.Module]) -> Callable[[int, int], nn.Module]:
    """Make a norm over all channels fit where a norm of each head is expected."""
    return lambda heads, width: norm(width)


class ShortConvolution(nn.Module):
    """Causal depthwise convolution over four steps: y (B, T, C) and the last three steps of x (B, T, C)."""

    def __init__(self, width: int, *, bias: bool = True) -> None:
        super().__init__()
        bound = CONVOLUTION**-0.5
        self.weight = nn.Parameter(torch.empty(width, 1, CONVOLUTION).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor, tail: Tensor | None) -> tuple[Tensor, Tensor]:
        if tail is None:
            tail = x.new_zeros(x.shape[0], CONVOLUTION - 1, x.shape[2])
        seen = torch.cat([tail, x], dim=1)
        y = functional.conv1d(seen.mT, self.weight, self.bias, groups=x.shape[2])
        return y.mT, seen[:, 1 - CONVOLUTION :]


def shifted(x: Tensor, last: Tensor | None) -> Tensor:
    """Delay x (B, T, C) by one step; the first step is the token (B, 1, C) before x, or zeros."""
    first = torch.zeros_like(x[:, :1]) if last is None else last
    return torch.cat([first, x[:, :-1]], dim=1)


class Shift(nn.Module):
    """μ ⊙ x_t + (1 − μ) ⊙ x_{t−1}; the parameter μ (C,) starts rising from 0 to 1 over the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.share = nn.Parameter(self.first_share(width))

    def first_share(self, width: int) -> Tensor:
        return torch.linspace(0, 1, width)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        return before + self.share * (x - before)


class PowerShift(Shift):
    """A token shift whose μ starts as (c/C)^power for channel c of C."""

    def __init__(self, width: int, power: float) -> None:
        self.power = power
        super().__init__(width)

    def first_share(self, width: int) -> Tensor:
        return (torch.arange(width) / width) ** self.power


class DataShift(nn.Module):
    """x_t + (x_{t−1} − x_t) ⊙ (λ + tanh(s_t A) B), s_t = x_t + μ ⊙ (x_{t−1} − x_t), AB of rank 32."""

    rank = 32

    def __init__(self, width: int) -> None:
        super().__init__()
        place = torch.linspace(1, 0, width)
        self.first, self.base = nn.Parameter(place), nn.Parameter(place.clone())
        self.down = nn.Linear(width, self.rank, bias=False)
        self.up = nn.Linear(self.rank, width, bias=False)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        change = before - x
        share = self.base + self.up(torch.tanh(self.down(x + self.first * change)))
        mixed: Tensor = x + share * change
        return mixed


class Perceptron(nn.Module):
    """Channel mixing W₂ φ(W₁ x) with φ = GELU, twice as wide inside unless `hidden` says otherwise."""

    activation: ClassVar[Callable[[Tensor], Tensor]] = staticmethod(functional.gelu)
    bias: ClassVar[bool] = False
    expansion: ClassVar[int] = 2

    def __init__(self, width: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = self.expansion * width if hidden is None else hidden
        self.up = nn.Linear(width, hidden, bias=self.bias)
        self.down = nn.Linear(hidden, width, bias=self.bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(type(self).activation(self.up(x)))
        return y


class BiasedPerceptron(Perceptron):
    """A perceptron with biases, four times as wide inside."""

    bias = True
    expansion = 4


class ReLUPerceptron(BiasedPerceptron):
    """A perceptron with biases and φ = ReLU, four times as wide inside."""

    activation: ClassVar[Callable[[Tensor], Tensor]] = staticmethod(functional.relu)


class GLU(nn.Module):
    """Channel mixing W₃(φ(W₁ x) ⊙ W₂ x) with φ = SiLU, `hidden` channels wide inside.

    hidden: 8/3 times the width if None, in multiples of 16.
    """

    activation: ClassVar[Callable[[Tensor], Tensor]] = staticmethod(functional.silu)
    bias: ClassVar[bool] = False

    def __init__(self, width: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = self.default_width(width) if hidden is None else hidden
        self.gate = nn.Linear(width, hidden, bias=self.bias)
        self.up = nn.Linear(width, hidden, bias=self.bias)
        self.down = nn.Linear(hidden, width, bias=self.bias)

    @staticmethod
    def default_width(width: int) -> int:
        return 16 * max(1, round(width / 6))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(type(self).activation(self.gate(x)) * self.up(x))
        return y


def identity(x: Tensor) -> Tensor:
    return x


class LinearGLU(GLU):
    """W₃(W₁ x ⊙ W₂ x)."""

    activation: ClassVar[Callable[[Tensor], Tensor]] = staticmethod(identity)


class GELUGLU(GLU):
    """W₃(GELU(W₁ x) ⊙ W₂ x)."""

    activation: ClassVar[Callable[[Tensor], Tensor]] = staticmethod(functional.gelu)


class NarrowGLU(GLU):
    """A GLU 4/3 times as wide inside: 682 channels for a width of 512."""

    @staticmethod
    def default_width(width: int) -> int:
        return max(1, 4 * width // 3)


class BiasedGLU(GLU):
    """A GLU with biases, 8/3 times as wide inside: 1,365 channels for a width of 512."""

    bias = True

    @staticmethod
    def default_width(width: int) -> int:
        return 8 * width // 3


class EqualGLU(BiasedGLU):
    """A GLU with biases, as wide inside as outside."""

    @staticmethod
    def default_width(width: int) -> int:
        return width


class RWKVChannels(nn.Module):
    """RWKV's channel mixing σ(W_r r) ⊙ W_v ReLU(W_k k)²; r and k mix each token with the one before it."""

    expansion = 3.5

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = round(self.expansion * width)
        self.shift_key, self.shift_receptance = Shift(width), Shift(width)
        self.key = nn.Linear(width, hidden, bias=False)
        self.value = nn.Linear(hidden, width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        kept = functional.relu(self.key(self.shift_key(x, before))).square()
        y: Tensor = torch.sigmoid(self.receptance(self.shift_receptance(x, before))) * self.value(kept)
        return y


class RWKV4Channels(RWKVChannels):
    """RWKV's channel mixing, four times as wide inside."""

    expansion = 4.0


class NarrowRWKVChannels(RWKVChannels):
    """RWKV's channel mixing, three times as wide inside."""

    expansion = 3.0


class LowRank(nn.Module):
    """B φ(A x); its rank is about factor·√width, in multiples of 32. B starts orthogonal, times 0.1."""

    def __init__(
        self, width: int, channels: int, factor: float, activation: Callable[[Tensor], Tensor] = identity
    ) -> None:
        super().__init__()
        rank = max(32, 32 * round(factor * width**0.5 / 32))
        self.activation = activation
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, channels, bias=False)
        nn.init.orthogonal_(self.up.weight, gain=0.1 * max(1.0, rank / channels) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(self.activation(self.down(x)))
        return y


class RWKV7Channels(nn.Module):
    """RWKV-7's channel mixing W_v ReLU(W_k k)², four times as wide inside; k mixes each token with the last.

    power: of the start of the token shift.
    """

    def __init__(self, width: int, power: float) -> None:
        super().__init__()
        self.shift = PowerShift(width, power)
        self.key = nn.Linear(width, 4 * width, bias=False)
        self.value = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        y: Tensor = self.value(functional.relu(self.key(self.shift(x, before))).square())
        return y
