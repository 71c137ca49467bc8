"""Ceilings of a device as data, and the time that they allow a call of some cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ssmperf.registry.cost import Cost

FLOOR_MARGIN = 0.9  # ceilings are measured, so a correct call may come in a little under them


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The rates that a device was seen to reach.

    copy_bytes_per_s: median rate of copying a large buffer, bytes read and written both counted.
    matmul_flops_per_s: median rate of a square matmul by dtype.
    peak_bytes_per_s, peak_flops_per_s: the fastest single run of all (copies and reads; any dtype), for the
        floor that no call can beat.
    cache_bytes: last-level cache, 0 if unknown.
    """

    copy_bytes_per_s: float
    matmul_flops_per_s: Mapping[str, float]
    peak_bytes_per_s: float
    peak_flops_per_s: float
    cache_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ceilings:
        return cls(**data)


def limit(cost: Cost, ceilings: Ceilings, dtype: str) -> tuple[str, float]:
    """Say which ceiling binds a call (`bandwidth` or `matmul`), and the seconds that it alone would take.

    A dtype whose matmul was not measured is held against the best one.
    """
    rate = ceilings.matmul_flops_per_s.get(dtype, ceilings.peak_flops_per_s)
    moving, computing = cost.bytes / ceilings.copy_bytes_per_s, cost.flops / rate
    return ("bandwidth", moving) if moving >= computing else ("matmul", computing)


def floor_s(cost: Cost, ceilings: Ceilings, dtype: str, cache_bytes: int) -> float:
    """Compute the seconds that no correct call of this cost can beat, whatever its cache holds.

    Only traffic that the cache cannot absorb counts, at the fastest rates seen, of any dtype (`dtype` is
    what the call claims to use; a kernel may compute in another), less 10 %.
    """
    moving = max(cost.bytes - cache_bytes, 0) / ceilings.peak_bytes_per_s
    computing = cost.flops / max(ceilings.peak_flops_per_s, ceilings.matmul_flops_per_s.get(dtype, 0.0))
    return FLOOR_MARGIN * max(moving, computing)
