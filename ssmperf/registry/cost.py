"""Input and output of a cost model: specs of the operands, and the least work of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ssmperf.cases.shape import Shape
from ssmperf.errors import UsageError


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and width of one tensor; a cost model sees nothing else of it."""

    shape: tuple[int, ...]
    itemsize: int
    complex: bool = False

    @property
    def numel(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


@dataclass(frozen=True, slots=True)
class Cost:
    """The least work of one call. Two calls, one after the other, cost the sum.

    bytes: device memory traffic with every operand read once and every result written once.
    flops: floating-point operations (a fused multiply-add counts two).
    special: special-function evaluations (exp, sin, ...).
    depth: dependent steps of the sequential algorithm.
    """

    bytes: float
    flops: float
    special: float = 0.0
    depth: int = 1

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes + other.bytes,
            self.flops + other.flops,
            self.special + other.special,
            self.depth + other.depth,
        )

    @staticmethod
    def of_pass(pass_: str, forward: Cost, backward: Cost, specs: Mapping[str, Spec]) -> Cost:
        """Compute the cost of any pass from the costs of a forward and of a backward pass.

        A decode step is a forward call of one token that also reads the initial state among `specs` and
        writes a state of the same size.

        Raises:
            UsageError: a decode step has no initial state among `specs`.
        """
        if pass_ == "forward":
            return forward
        if pass_ == "backward":
            return backward
        if pass_ == "decode":
            if "initial_state" not in specs:
                raise UsageError("a decode step reads and writes a state, and these operands have none")
            return forward + Cost(2 * specs["initial_state"].nbytes, 0, 0, 0)
        return forward + backward


CostModel = Callable[[Shape, Mapping[str, Spec], str], Cost]
