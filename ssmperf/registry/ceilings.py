"""Ceilings of a device as data, and the least time of a call under them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ssmperf.registry.cost import Cost

FLOOR_MARGIN = 0.9  # ceilings are measured, so a correct call may be a little faster than they allow


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The measured rates of a device.

    copy_bytes_per_s: median rate of copying a large buffer; bytes read and bytes written both count.
    matmul_flops_per_s: median rate of a square matmul, by dtype.
    peak_bytes_per_s, peak_flops_per_s: rates of the fastest single run (among copies and reads; of any
        dtype), for the floor that no call can beat.
    cache_bytes: size of the last-level cache, 0 if unknown.
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
    """Name the ceiling that limits a call (`bandwidth` or `matmul`), and the seconds that it allows.

    For a dtype whose matmul was not measured, the fastest matmul counts.
    """
    rate = ceilings.matmul_flops_per_s.get(dtype, ceilings.peak_flops_per_s)
    moving, computing = cost.bytes / ceilings.copy_bytes_per_s, cost.flops / rate
    return ("bandwidth", moving) if moving >= computing else ("matmul", computing)


def floor_s(cost: Cost, ceilings: Ceilings, dtype: str, cache_bytes: int) -> float:
    """Compute the seconds that no correct call of this cost can beat, whatever the cache holds.

    Only traffic that the cache cannot absorb counts. The rates are the fastest of any dtype, since a kernel
    may compute in another dtype than its operands' (`dtype`). The result is reduced by 10 %.
    """
    moving = max(cost.bytes - cache_bytes, 0) / ceilings.peak_bytes_per_s
    computing = cost.flops / max(ceilings.peak_flops_per_s, ceilings.matmul_flops_per_s.get(dtype, 0.0))
    return FLOOR_MARGIN * max(moving, computing)
