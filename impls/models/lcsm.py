"""The LCSM grid: every combination of expand, oscillation, shrink and activation, as `lcsm:e-o-s-a[:tau]`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, ModelEntry, Shape, UsageError, family, gate_precision

from . import _papers as papers
from ._blocks import LCSMBlock
from ._lcsm_code import CONSTANT, FACTORS, INSEPARABLE, MEMBERS, WITH_MATRIX, Code, Factor

ACTIVATION_FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x,
    functional.relu,
    torch.sigmoid,
    lambda x: 1 + functional.elu(x),
    functional.silu,
    functional.elu,
    lambda x: functional.relu(x).square(),
    torch.square,
)
DELTA_RANK = 16
PAPER = f"{papers.LCSM}, eqs. 1–3, Tables 2 and 3"


def slopes(count: int, like: Tensor) -> Tensor:
    """Form ALiBi's slopes 2^(−8h/count), h = 1 .. count, in the dtype and on the device of a tensor."""
    return torch.exp2(-8 / count * torch.arange(1, count + 1, dtype=like.dtype, device=like.device))


def sloped(*size: int, tau: float) -> nn.Parameter:
    """Make a parameter P of that size with σ(P)^(1/τ) = exp(−slope), each entry with a slope of its own."""
    decay = tau * slopes(math.prod(size), torch.empty(0)).view(size)
    return nn.Parameter(-decay - torch.log(-torch.expm1(-decay)))  # log σ(P) = −decay


class LCSM(Model):
    """m_t = o_t ⊙ m_{t−1} + e_t i_tᵀ, y_t = m_tᵀ s_t, with a memory m of k × d; i is linear in x.

    Sizes: K and V (with H = 1) or N and D are k and d; with a lowering to `scan`, C is k·d and K is k.
    Projections have no bias. Data-independent e and s are k×d matrices: their input is e ⊙ (1 i_tᵀ), their
    output the sum of m ⊙ s over k. The norm of y and the output projection belong to the block. x and y are
    (B, T, d).

    A data-independent oscillation σ(P)^(1/τ) starts as exp(−slope) with ALiBi's slopes, one per entry; if it
    is not learned (0f, 4f, 5f), it stays that. The slopes are a geometric sequence for every number of
    entries, ALiBi's where that is a power of 2.

    The oscillation o = ssm is the paper's SSM parameterisation: Δ = softplus(W₂W₁x), i ← Δ ⊙ i,
    o_t = exp(−exp(O) ⊗ Δ_t), O starting at log 1..k.

    delta_rank: of W₂W₁.
    """

    block = LCSMBlock
    code: ClassVar[Code]

    def __init__(self, shape: Mapping[str, int], *, delta_rank: int = DELTA_RANK) -> None:
        super().__init__(shape)
        if "C" in self.shape:
            self.k = self.shape["K"]
            if self.shape["C"] % self.k:
                raise UsageError(f"lcsm: C = k·d must be a multiple of K = k, got {dict(self.shape)}")
            self.d = self.shape["C"] // self.k
        elif "D" in self.shape:
            self.k, self.d = self.shape["N"], self.shape["D"]
        else:
            if self.shape["H"] != 1:
                raise UsageError(f"lcsm has one head: H must be 1, got {self.shape['H']}")
            self.k, self.d = self.shape["K"], self.shape["V"]
        k, d, code = self.k, self.d, self.code
        self.input = nn.Linear(d, d, bias=False)
        self.expand = nn.Linear(d, k, bias=False) if code.e else nn.Parameter(torch.randn(k, d))
        self.shrink = nn.Linear(d, k, bias=False) if code.s else nn.Parameter(torch.randn(k, d) * k**-0.5)
        key, value = FACTORS[code.o]
        self.key_factor = self._factor(key, k)
        self.value_factor = self._factor(value, d)
        self.matrix = self._matrix(k, d)
        self.delta: nn.Sequential | None = None
        if code.o == "ssm":
            self.delta = nn.Sequential(
                nn.Linear(d, delta_rank, bias=False), nn.Linear(delta_rank, d, bias=False)
            )

    @property
    def width(self) -> int:
        return self.d

    def _factor(self, source: Factor, size: int) -> nn.Linear | nn.Parameter | None:
        if source == "x":
            return nn.Linear(self.d, size, bias=False)
        if source is None or self.code.fixed:
            return None
        constant = self.code.o in CONSTANT
        return sloped(size, tau=self.code.tau) if constant else nn.Parameter(torch.randn(size))

    def _matrix(self, k: int, d: int) -> nn.Parameter | None:
        if self.code.o not in WITH_MATRIX or self.code.fixed:
            return None
        if self.code.o == "ssm":
            return nn.Parameter(torch.arange(1.0, k + 1).log().unsqueeze(-1).repeat(1, d))
        return sloped(k, d, tau=self.code.tau) if self.code.o == "0" else nn.Parameter(torch.randn(k, d))

    def operands(self, x: Tensor) -> dict[str, Any]:
        i = self.input(x)
        e, s = (self._vector(part, x) for part in (self.expand, self.shrink))
        if self.code.recurrence == "scan":
            return self._channels(x, i, e)
        if self.code.recurrence == "selective_scan":
            return {"x": i, "k": e, "q": s, **self._matrix_gate(x)}
        heads = {"q": s.unsqueeze(2), "k": e.unsqueeze(2), "v": i.unsqueeze(2)}
        if self.code.o == "11":
            return {**heads, "phase": self._angles(x).unsqueeze(0)}
        log_key, log_value = self._log_factors(x)
        if log_key is not None:  # (k,) per head, or (B, T, k)
            heads["log_a"] = log_key.unsqueeze(0) if log_key.dim() == 1 else log_key.unsqueeze(2)
        if log_value is not None:
            heads["log_b"] = log_value.expand(*x.shape[:2], self.d).unsqueeze(2)
        return heads

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        if self.code.recurrence == "scan":
            memory = output.unflatten(-1, (self.k, self.d))
            s = self._vector(self.shrink, x)
            y: Tensor = (memory * (s.unsqueeze(-1) if self.code.s else s)).sum(-2)
            return y
        return output if self.code.recurrence == "selective_scan" else output.squeeze(2)

    def _vector(self, part: nn.Linear | nn.Parameter, x: Tensor) -> Tensor:
        """Form e or s: (B, T, k), or (k, d) if it does not depend on x."""
        activate = ACTIVATION_FUNCTIONS[self.code.a]
        return activate(part(x)) if isinstance(part, nn.Linear) else activate(part).to(x.dtype)

    def _log_gate(self, part: nn.Linear | nn.Parameter, x: Tensor) -> Tensor:
        raw = part(x) if isinstance(part, nn.Linear) else part
        return functional.logsigmoid(gate_precision(raw)) / self.code.tau

    def _log_factors(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Form the log gates of the key axis, (B, T, k) or (k,), and of the value axis."""
        if self.code.fixed:
            wide = gate_precision(x.new_empty(0))
            return (-slopes(self.k, wide), None) if self.code.o == "4" else (None, -slopes(self.d, wide))
        key, value = self.key_factor, self.value_factor
        return (
            None if key is None else self._log_gate(key, x),
            None if value is None else self._log_gate(value, x),
        )

    def _log_matrix(self, x: Tensor) -> Tensor:
        """Form the log gate of oscillation 0, (k, d)."""
        if self.matrix is None:
            return -slopes(self.k * self.d, gate_precision(x.new_empty(0))).view(self.k, self.d)
        return self._log_gate(self.matrix, x)

    def _matrix_gate(self, x: Tensor) -> dict[str, Any]:
        """Give the gate operands of `selective_scan`; its A is (d, k)."""
        if self.code.o == "0":
            return {"delta": None, "A": self._log_matrix(x).mT, "gate": "const"}
        if self.delta is not None and self.matrix is not None:
            delta = gate_precision(functional.softplus(self.delta(x)))
            return {"delta": delta, "A": -torch.exp(gate_precision(self.matrix.mT)), "gate": "exp"}
        g, A = self._product(x)
        return {"delta": None, "A": A, "g": g, "gate": "sigmoid", "tau": self.code.tau}

    def _product(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Give g (B, T, d, 1) or (B, T, 1, k), and the parameters (d, k) that multiply it."""
        by_key, by_value = self.key_factor, self.value_factor
        if isinstance(by_key, nn.Linear):
            g, row = by_key(x).unsqueeze(-2), by_value
        else:
            assert isinstance(by_value, nn.Linear)
            g, row = by_value(x).unsqueeze(-1), by_key
        if self.matrix is not None:
            return gate_precision(g), gate_precision(self.matrix.mT)
        assert isinstance(row, Tensor)  # a Parameter, or what a functional call puts in its place
        column = row.unsqueeze(0) if row is by_key else row.unsqueeze(-1)
        return gate_precision(g), gate_precision(column.expand(self.d, self.k))

    def _channels(self, x: Tensor, i: Tensor, e: Tensor) -> dict[str, Any]:
        """Give the operands of the memory as k·d channels of `scan`."""
        written = (e.unsqueeze(-1) if self.code.e else e) * i.unsqueeze(-2)
        if self.code.o == "0":
            log_o = self._log_matrix(x)[None, None]
        elif self.code.o in INSEPARABLE:
            g, A = self._product(x)
            log_o = (functional.logsigmoid(g * A) / self.code.tau).mT
        else:
            log_key, log_value = self._log_factors(x)
            zero = gate_precision(x.new_zeros(1, 1, self.k, self.d))
            log_o = zero if log_key is None else log_key[..., None] + zero
            log_o = log_o if log_value is None else log_o + log_value.unsqueeze(-2)
        return {"log_a": log_o.flatten(-2), "b": written.flatten(-2)}

    def _angles(self, x: Tensor) -> Tensor:
        """Form θ_c = 10000^(−2c/d) of LRPE, with d the width of the model."""
        channel = torch.arange(self.k, device=x.device, dtype=gate_precision(x.new_empty(0)).dtype)
        return torch.pow(10000.0, -2 * channel / self.d)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, d = x.shape
        k, code, x = self.k, self.code, x.double()
        activation = ACTIVATION_FUNCTIONS[code.a]

        def project(name: str, u: Tensor) -> Tensor:
            return u @ W[f"{name}.weight"].mT

        y: list[Tensor] = []
        m = x.new_zeros(B, k, d, dtype=torch.complex128 if code.o == "11" else torch.float64)
        for t in range(T):
            i_t = project("input", x[:, t])
            e_t = activation(project("expand", x[:, t])[:, :, None] if code.e else W["expand"])
            s_t = activation(project("shrink", x[:, t])[:, :, None] if code.s else W["shrink"])
            if code.o == "ssm":
                delta = torch.log1p(torch.exp(project("delta.1", project("delta.0", x[:, t]))))
                i_t = delta * i_t
                o_t = torch.exp(-torch.exp(W["matrix"]) * delta[:, None, :])
            else:
                o_t = self._oscillation(W, functools.partial(project, u=x[:, t]))
            m = o_t * m + e_t * i_t[:, None, :]
            y.append((m * s_t).sum(1).real)
        return torch.stack(y, dim=1)

    def _oscillation(self, W: Mapping[str, Tensor], project: Callable[[str], Tensor]) -> Any:
        """Form o_t of Table 3, as (B, k, d) or broadcast to it."""
        code, k, d = self.code, self.k, self.d

        def power(z: Tensor) -> Tensor:
            return torch.sigmoid(z) ** (1 / code.tau)

        if code.fixed:
            n = {"0": k * d, "4": k, "5": d}[code.o]
            decay = [math.exp(-(2 ** (-8 * h / n))) for h in range(1, n + 1)]
            fixed = torch.tensor(decay, dtype=torch.float64, device=W["input.weight"].device)
            return fixed.view({"0": (k, d), "4": (k, 1), "5": (1, d)}[code.o])
        if code.o == "0":
            return power(W["matrix"])
        if code.o == "1":
            return power(project("key_factor"))[:, :, None] * power(project("value_factor"))[:, None, :]
        if code.o == "2":
            return power(project("value_factor"))[:, None, :]
        if code.o == "3":
            return power(project("key_factor"))[:, :, None]
        if code.o == "4":
            return power(W["key_factor"])[:, None]
        if code.o == "5":
            return power(W["value_factor"])[None, :]
        if code.o == "6":
            return power(project("key_factor")[:, :, None] * W["matrix"])
        if code.o == "7":
            return power(project("value_factor")[:, None, :] * W["matrix"])
        if code.o == "8":
            return power(project("value_factor")[:, None, :] * W["key_factor"][:, None])
        if code.o == "9":
            return power(project("key_factor")[:, :, None] * W["value_factor"])
        if code.o == "10":
            return 1.0
        theta = torch.tensor(
            [10000 ** (-2 * c / d) for c in range(k)], dtype=torch.float64, device=W["input.weight"].device
        )
        return torch.exp(1j * theta)[:, None]


def _presets(recurrence: str) -> dict[str, tuple[Shape, ...]]:
    """Give the shapes of each preset; k = 128 and d = 512 are the paper's."""

    def shape(B: int, T: int, k: int, d: int) -> Shape:
        if recurrence == "scan":
            return Shape(B=B, T=T, C=k * d, K=k)
        return Shape(B=B, T=T, D=d, N=k) if recurrence == "selective_scan" else Shape(B=B, T=T, H=1, K=k, V=d)

    return {
        "smoke": (shape(1, 64, 8, 16),),
        "standard": (shape(8, 512, 128, 512),),
        "long": (shape(1, 65536, 128, 512),),
    }


@family("lcsm", members=MEMBERS)
def lcsm(name: str) -> ModelEntry:
    """Make the model of one code.

    Raises:
        UsageError: the code is not one of the grid.
    """
    code = Code.parse(name)
    cls = type("LCSM", (LCSM,), {"code": code, "__doc__": LCSM.__doc__, "__module__": __name__})
    of_channels = (code.recurrence, code.gate) == ("linear_attention", "const")
    return ModelEntry(
        name,
        cls,
        code.recurrence,
        PAPER,
        code.gate,
        _presets(code.recurrence),
        cost_gate="key" if of_channels else None,
    )
