"""HGRN2's parameter-efficient state expansions (PESE): HGRN with n states per channel, in six ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import UsageError, model

from . import _papers as papers
from .hgrn import Bound, Bounded, forget_gate

PAPER = f"{papers.HGRN2}, section 3.1 and Table 2, "
GATES = ("forget", "input", "output")
STATES = 4


class Expanded(Bounded):
    """HGRN on n·d channels whose f, i and o are expanded from d to (n, d); y_t = Σ_n o_t ⊙ h_t.

    h_t = f_t ⊙ h_{t−1} + (1 − f_t) ⊙ i_t, f_t = β + (1 − β)σ(·), i = SiLU(·), o = σ(·), each (n, d) and each
    with an expansion of its own, without biases. The operand C is n·d, so x and y are (B, T, C/n). β as in
    HGRN, a number or a tensor (d,) for all n states of a channel. The norm of y belongs to the block.

    A subclass gives the einsum of its expansion, the sizes of the weights, and how to compute it.

    n: the expansion, 4 in the paper's ablation.

    Raises:
        UsageError: C is not divisible by n, or d not by the groups of the expansion.
    """

    einsum: ClassVar[str]
    grouped: ClassVar[bool] = False  # whether x comes in n groups of e = d/n channels
    forget: nn.ParameterList
    input: nn.ParameterList
    output: nn.ParameterList

    def __init__(self, shape: Mapping[str, int], *, n: int = STATES, lower_bound: Bound = 0.0) -> None:
        C = shape["C"]
        if n < 1 or C % n or (self.grouped and C // n % n):
            need = "n² divide C" if self.grouped else "n divide C"
            raise UsageError(f"{self.name} expands {n} times and needs that {need}, got C={C}")
        super().__init__(shape, lower_bound=lower_bound)
        self.n = n
        for gate in GATES:
            weights = [
                nn.Parameter(torch.empty(size).uniform_(-1, 1) / math.sqrt(fan_in))
                for size, fan_in in self.weights(self.width, n)
            ]
            setattr(self, gate, nn.ParameterList(weights))

    @staticmethod
    def weights(d: int, n: int) -> list[tuple[tuple[int, ...], int]]:
        """List (size, inputs that one output sums over) of each weight of an expansion."""
        raise NotImplementedError

    def expand(self, x: Tensor, weights: nn.ParameterList) -> Tensor:
        """Expand x (B, T, d) to (B, T, n, d)."""
        raise NotImplementedError

    @staticmethod
    def bounded_channels(shape: Mapping[str, int], options: Mapping[str, Any]) -> int:
        return shape["C"] // int(options.get("n", STATES))

    @property
    def width(self) -> int:
        """The channels d of x and y; the state has n·d."""
        return self.shape["C"] // self.n

    def operands(self, x: Tensor) -> dict[str, Any]:
        log_f, rest = forget_gate(self.expand(x, self.forget), self.bound())
        candidate = functional.silu(self.expand(x, self.input))
        return {"log_a": log_f.flatten(-2), "b": (rest * candidate).flatten(-2).to(x.dtype)}

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.expand(x, self.output))
        y: Tensor = (gate * output.unflatten(-1, (self.n, -1))).sum(-2)
        return y

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x, n, beta = x.double(), self.n, self.exact_bound().to(x.device)
        source = x.unflatten(-1, (n, x.shape[-1] // n)) if self.grouped else x
        z = {}
        for gate in GATES:
            weights = [W[name] for name in W if name.startswith(f"{gate}.")]
            z[gate] = torch.stack([torch.einsum(self.einsum, x_t, *weights) for x_t in source.unbind(1)])
        f = beta + (1 - beta) * torch.sigmoid(z["forget"])
        i = z["input"] * torch.sigmoid(z["input"])
        o = torch.sigmoid(z["output"])
        h, y = torch.zeros_like(f[0]), []
        for t in range(x.shape[1]):
            h = f[t] * h + (1 - f[t]) * i[t]
            y.append((o[t] * h).sum(1))
        return torch.stack(y, dim=1)


@model("pese_naive", recurrence="scan", paper=PAPER + "naive", gate="data")
class Naive(Expanded):
    """HGRN with an n-fold state by a full linear map: d, (d nd) → nd; n·d² parameters per expansion."""

    einsum = "bd,dnc->bnc"

    @staticmethod
    def weights(d: int, n: int) -> list[tuple[tuple[int, ...], int]]:
        return [((d, n, d), d)]

    def expand(self, x: Tensor, weights: nn.ParameterList) -> Tensor:
        expanded: Tensor = (x @ weights[0].flatten(1)).unflatten(-1, (self.n, -1))
        return expanded


@model("pese_lr", recurrence="scan", paper=PAPER + "low rank", gate="data")
class LowRank(Expanded):
    """HGRN with an n-fold state by a low-rank map: d, (d r), (r nd) → nd; d·r·(n + 1) ≈ d² parameters.

    r = d/(n + 1), rounded, and at least 1.
    """

    einsum = "bd,dr,rnc->bnc"

    @staticmethod
    def weights(d: int, n: int) -> list[tuple[tuple[int, ...], int]]:
        r = max(1, round(d / (n + 1)))
        return [((d, r), d), ((r, n, d), r)]

    def expand(self, x: Tensor, weights: nn.ParameterList) -> Tensor:
        expanded: Tensor = (x @ weights[0] @ weights[1].flatten(1)).unflatten(-1, (self.n, -1))
        return expanded


@model("pese_glt", recurrence="scan", paper=PAPER + "group linear transformation", gate="data")
class GroupLinear(Expanded):
    """HGRN with an n-fold state, one part from each of x's n groups: (ne), (ned) → nd; d² parameters."""

    einsum = "bne,nec->bnc"
    grouped = True

    @staticmethod
    def weights(d: int, n: int) -> list[tuple[tuple[int, ...], int]]:
        return [((n, d // n, d), d // n)]

    def expand(self, x: Tensor, weights: nn.ParameterList) -> Tensor:
        groups = x.unflatten(-1, (self.n, 1, -1))  # (B, T, n, 1, e)
        expanded: Tensor = (groups @ weights[0]).squeeze(-2)
        return expanded


@model(
    "pese_glti", recurrence="scan", paper=PAPER + "group linear transformation with interaction", gate="data"
)
class GroupLinearInteraction(GroupLinear):
    """Group linear transformation, and a mix of the n states: (ne), (ned), (nm) → md; d² + n² parameters."""

    einsum = "bne,nec,nm->bmc"

    @staticmethod
    def weights(d: int, n: int) -> list[tuple[tuple[int, ...], int]]:
        return [((n, d // n, d), d // n), ((n, n), n)]

    def expand(self, x: Tensor, weights: nn.ParameterList) -> Tensor:
        expanded: Tensor = weights[1].mT @ super().expand(x, weights)
        return expanded


@model("pese_krp", recurrence="scan", paper=PAPER + "Khatri-Rao product", gate="data")
class KhatriRao(Expanded):
    """HGRN with an n-fold state that scales each channel n times: d, (nd) → nd; n·d parameters."""

    einsum = "bd,nd->bnd"

    @staticmethod
    def weights(d: int, n: int) -> list[tuple[tuple[int, ...], int]]:
        return [((n, d), 1)]

    def expand(self, x: Tensor, weights: nn.ParameterList) -> Tensor:
        expanded: Tensor = x.unsqueeze(-2) * weights[0]
        return expanded


@model("pese_kp", recurrence="scan", paper=PAPER + "Kronecker product", gate="data")
class Kronecker(Expanded):
    """HGRN with an n-fold state that scales one linear map n times: c, (cd), n → nd; d² + n parameters."""

    einsum = "bc,cd,n->bnd"

    @staticmethod
    def weights(d: int, n: int) -> list[tuple[tuple[int, ...], int]]:
        return [((d, d), d), ((n,), 1)]

    def expand(self, x: Tensor, weights: nn.ParameterList) -> Tensor:
        expanded: Tensor = (x @ weights[0]).unsqueeze(-2) * weights[1].unsqueeze(-1)
        return expanded
