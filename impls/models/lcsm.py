"""The LCSM grid: every combination of expand, oscillation, shrink and activation, as `lcsm:e-o-s-a[:tau]`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf import Model, ModelEntry, Shape, UsageError, family, gate_precision

from ._blocks import NormedBlock

PAPER = (
    "Unlocking the Secrets of Linear Complexity Sequence Model from A Unified Perspective "
    "(Qin et al., 2024), eqs. 1-3, Tables 2 and 3"
)
FORM = re.compile(r"lcsm:([01])-(\d+|ssm)-([01])-(\d+)(?::(\d+(?:\.\d+)?))?")
VALID = (
    "lcsm:e-o-s-a[:tau] with e, s: 0 (parameters) or 1 (from x); o: 0 to 11, or ssm; a: 0 to 7; tau > 0, "
    "16 by default; o = 11 and o = ssm need e = s = 1"
)
ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x,
    functional.relu,
    torch.sigmoid,
    lambda x: 1 + functional.elu(x),
    functional.silu,
    functional.elu,
    lambda x: functional.relu(x).square(),
    torch.square,
)
TEMPERATURE = 16.0
DELTA_RANK = 16
# the rows of LCSM's Table 4, and the parameterisation of its Table 5
MEMBERS = (
    "lcsm:0-0-0-0", "lcsm:1-0-0-0", "lcsm:0-0-1-0", "lcsm:0-1-0-0", "lcsm:1-1-0-0", "lcsm:0-1-1-0",
    "lcsm:1-0-1-0", *(f"lcsm:1-{o}-1-0" for o in range(1, 12)), "lcsm:1-ssm-1-0",
)  # fmt: skip

# what each oscillation makes of x: (key factor, value factor), each "x" (a projection of x), "p" (parameters)
# or "-" (none), and whether a k×d parameter multiplies
FACTORS = {
    "0": "--", "1": "xx", "2": "-x", "3": "x-", "4": "p-", "5": "-p", "6": "x-", "7": "-x", "8": "px",
    "9": "xp", "10": "--", "11": "--", "ssm": "--",
}  # fmt: skip
WITH_MATRIX = ("0", "6", "7", "ssm")
INSEPARABLE = ("6", "7", "8", "9")  # the sigmoid is taken of a product
OF_MATRICES = {"0": "const", **dict.fromkeys(INSEPARABLE, "sigmoid"), "ssm": "exp"}
OF_OUTER_PRODUCTS = {"1": "both", "2": "value", "3": "key", "4": "const", "5": "value", "10": "none"}


@dataclass(frozen=True, slots=True)
class Code:
    """e and s: whether expand and shrink depend on x. o: oscillation. a: activation of e and s."""

    e: bool
    o: str
    s: bool
    a: int
    tau: float

    @classmethod
    def parse(cls, name: str) -> Code:
        """Raises UsageError for anything but `VALID`."""
        match = FORM.fullmatch(name)
        if match is None:
            raise UsageError(f"{name!r} is no member of the LCSM grid (valid: {VALID})")
        e, o, s, a, tau = match.groups()
        code = cls(e == "1", o, s == "1", int(a), float(tau or TEMPERATURE))
        needs_both = o in ("11", "ssm") and not (code.e and code.s)
        if o not in FACTORS or code.a >= len(ACTIVATIONS) or code.tau <= 0 or needs_both:
            raise UsageError(f"{name!r} is no member of the LCSM grid (valid: {VALID})")
        return code

    @property
    def recurrence(self) -> str:
        """Where e or s are k×d parameters, the memory is k·d channels, not an outer product."""
        if not (self.e and self.s):
            return "scan"
        return "selective_scan" if self.o in OF_MATRICES else "linear_attention"

    @property
    def gate(self) -> str:
        """The gate kind in that recurrence."""
        if self.recurrence == "scan":
            return "const" if self.o in ("0", "4", "5", "10") else "data"
        if self.recurrence == "selective_scan":
            return OF_MATRICES[self.o]
        return "const_complex" if self.o == "11" else OF_OUTER_PRODUCTS[self.o]


class LCSM(Model):
    """m_t = o_t ⊙ m_{t−1} + e_t i_tᵀ, y_t = m_tᵀ s_t, with a memory m of k × d; i is linear in x.

    Sizes: K and V (with H = 1) or N and D are k and d; with a lowering to `scan`, C is k·d and K is k.
    Projections have no bias. Data-independent e and s are k×d matrices: their input is e ⊙ (1 i_tᵀ), their
    output the sum of m ⊙ s over k. The norm of y and the output projection belong to the block. x and y are
    (B, T, d).

    The oscillation o = ssm is the paper's SSM parameterisation: Δ = softplus(W₂W₁x), i ← Δ ⊙ i,
    o_t = exp(−exp(O) ⊗ Δ_t), O starting at log 1..k.
    """

    block = NormedBlock
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
        self.matrix = nn.Parameter(torch.randn(k, d)) if code.o in WITH_MATRIX else None
        self.delta = None
        if code.o == "ssm":
            self.delta = nn.Sequential(
                nn.Linear(d, delta_rank, bias=False), nn.Linear(delta_rank, d, bias=False)
            )
            rates = torch.arange(1, k + 1, dtype=torch.float32).log()
            self.matrix = nn.Parameter(rates.unsqueeze(-1).repeat(1, d))

    @property
    def width(self) -> int:
        return self.d

    def _factor(self, source: str, size: int) -> nn.Module | nn.Parameter | None:
        if source == "x":
            return nn.Linear(self.d, size, bias=False)
        return nn.Parameter(torch.randn(size)) if source == "p" else None

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
            return (memory * (s.unsqueeze(-1) if self.code.s else s)).sum(-2)
        return output if self.code.recurrence == "selective_scan" else output.squeeze(2)

    def _vector(self, part: nn.Module | nn.Parameter, x: Tensor) -> Tensor:
        """e or s: (B, T, k), or (k, d) if it does not depend on x."""
        activate = ACTIVATIONS[self.code.a]
        return activate(part(x)) if isinstance(part, nn.Module) else activate(part).to(x.dtype)

    def _log_factors(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Log gates of the key axis, (B, T, k) or (k,), and of the value axis."""

        def log_gate(part: nn.Module | nn.Parameter | None) -> Tensor | None:
            if part is None:
                return None
            raw = part(x) if isinstance(part, nn.Module) else part
            return functional.logsigmoid(gate_precision(raw)) / self.code.tau

        return log_gate(self.key_factor), log_gate(self.value_factor)

    def _matrix_gate(self, x: Tensor) -> dict[str, Any]:
        """Gate operands of `selective_scan`; its A is (d, k)."""
        if self.code.o == "ssm":
            delta = gate_precision(functional.softplus(self.delta(x)))
            return {"delta": delta, "A": -torch.exp(gate_precision(self.matrix.mT)), "gate": "exp"}
        if self.code.o == "0":
            A = functional.logsigmoid(gate_precision(self.matrix.mT)) / self.code.tau
            return {"delta": None, "A": A, "gate": "const"}
        g, A = self._product(x)
        return {"delta": None, "A": A, "g": g, "gate": "sigmoid", "tau": self.code.tau}

    def _product(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """g (B, T, d, 1) or (B, T, 1, k), and the parameters (d, k) that it is multiplied with."""
        if self.code.o in ("6", "9"):
            g = self.key_factor(x).unsqueeze(-2)
        else:
            g = self.value_factor(x).unsqueeze(-1)
        if self.matrix is not None:
            return gate_precision(g), gate_precision(self.matrix.mT)
        row = self.value_factor.unsqueeze(-1) if self.code.o == "9" else self.key_factor.unsqueeze(0)
        return gate_precision(g), gate_precision(row.expand(self.d, self.k))

    def _channels(self, x: Tensor, i: Tensor, e: Tensor) -> dict[str, Any]:
        """The memory as k·d channels of `scan`."""
        written = (e.unsqueeze(-1) if self.code.e else e) * i.unsqueeze(-2)
        if self.code.o == "0":
            log_o = (functional.logsigmoid(gate_precision(self.matrix)) / self.code.tau)[None, None]
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
        """θ_c = 10000^(−2c/d) of LRPE, with d the width of the model."""
        channel = torch.arange(self.k, device=x.device, dtype=gate_precision(x.new_empty(0)).dtype)
        return torch.pow(10000.0, -2 * channel / self.d)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, d = x.shape
        k, code, x = self.k, self.code, x.double()
        activation = ACTIVATIONS[code.a]

        def project(name: str, u: Tensor) -> Tensor:
            return u @ W[f"{name}.weight"].mT

        m, y = x.new_zeros(B, k, d, dtype=torch.complex128 if code.o == "11" else torch.float64), []
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
        """o_t of Table 3 as (B, k, d), or what broadcasts to it."""
        code, k, d = self.code, self.k, self.d

        def power(z: Tensor) -> Tensor:
            return torch.sigmoid(z) ** (1 / code.tau)

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
    """k = 128 and d = 512 are the paper's."""

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
    """The model of one code.

    Raises:
        UsageError: the code is not one of the grid.
    """
    code = Code.parse(name)
    cls = type("LCSM", (LCSM,), {"code": code, "__doc__": LCSM.__doc__, "__module__": __name__})
    return ModelEntry(name, cls, code.recurrence, PAPER, code.gate, _presets(code.recurrence))
