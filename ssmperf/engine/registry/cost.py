"""The least work of a call by a cost model, the ceilings of a device, and the time that both allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ssmperf.engine.cases.shape import Shape
from ssmperf.errors import UsageError

FLOOR_MARGIN = 0.9  # ceilings are measured, so a correct call may come in a little under them


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
    flops: floating-point operations of the recurrence, step by step (a fused multiply-add counts two).
    special: special-function evaluations (exp, sin, ...).
    depth: dependent steps of the sequential algorithm.
    fewest_flops: of another algorithm that needs fewer at this shape; None if there is none.
    """

    bytes: float
    flops: float
    special: float = 0.0
    depth: int = 1
    fewest_flops: float | None = None

    @property
    def least_flops(self) -> float:
        """Operations that no algorithm can do without."""
        return self.flops if self.fewest_flops is None else self.fewest_flops

    def __add__(self, other: Cost) -> Cost:
        counted = (self.fewest_flops, other.fewest_flops) != (None, None)
        return Cost(
            self.bytes + other.bytes,
            self.flops + other.flops,
            self.special + other.special,
            self.depth + other.depth,
            self.least_flops + other.least_flops if counted else None,
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


def least_count(*counts: float) -> float | None:
    """Choose the least of several counts; None for symbols, which cannot be compared."""
    try:
        return min(counts)
    except TypeError:
        return None


CostModel = Callable[[Shape, Mapping[str, Spec], str], Cost]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The rates that a device was seen to reach.

    copy_bytes_per_s: median rate of copying a large buffer, bytes read and written both counted.
    matmul_flops_per_s: median rate of a square matmul by dtype.
    peak_bytes_per_s, peak_flops_per_s: the fastest single run of all (copies and reads; any dtype), for the
        floor that no call can beat.
    cache_bytes: last-level cache, 0 if unknown.
    cached_bytes_per_s: the fastest single run of all copies and reads of buffers that fit a CPU's cache; 0 if
        it was not measured.
    """

    copy_bytes_per_s: float
    matmul_flops_per_s: Mapping[str, float]
    peak_bytes_per_s: float
    peak_flops_per_s: float
    cache_bytes: int = 0
    cached_bytes_per_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ceilings:
        return cls(**data)


def limit(cost: Cost, ceilings: Ceilings, dtype: str, cache: str = "cold") -> tuple[str, float]:
    """Say which ceiling binds a call (`bandwidth` or `matmul`), and the seconds that it alone would take.

    A dtype whose matmul was not measured is held against the best one. cache: the state in which a call finds
    the cache; what a hot one can hold of the operands and results moves at the cache's rate.
    """
    rate = ceilings.matmul_flops_per_s.get(dtype, ceilings.peak_flops_per_s)
    held = min(cost.bytes, ceilings.cache_bytes) if cache == "hot" else 0
    cached_rate = max(ceilings.cached_bytes_per_s, ceilings.copy_bytes_per_s)
    moving = held / cached_rate + (cost.bytes - held) / ceilings.copy_bytes_per_s
    computing = cost.least_flops / rate
    return ("bandwidth", moving) if moving >= computing else ("matmul", computing)


def floor_s(cost: Cost, ceilings: Ceilings, dtype: str, cache_bytes: int) -> float:
    """Compute the seconds that no correct call of this cost can beat, whatever its cache holds.

    Only traffic that the cache cannot absorb counts, at the fastest rates seen, of any dtype (`dtype` is
    what the call claims to use; a kernel may compute in another), less 10 %.
    """
    moving = max(cost.bytes - cache_bytes, 0) / ceilings.peak_bytes_per_s
    computing = cost.least_flops / max(ceilings.peak_flops_per_s, ceilings.matmul_flops_per_s.get(dtype, 0.0))
    return FLOOR_MARGIN * max(moving, computing)
