"""Ceilings, limits and floors: the ceiling that binds a call, and the time that no correct call can beat."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from ssmperf.authoring import Cost
from ssmperf.engine.machine import ceilings as roofline
from ssmperf.engine.operands.values import specs
from ssmperf.engine.registry.cost import Ceilings, floor_s, limit

CEILINGS = Ceilings(
    copy_bytes_per_s=4e12,
    matmul_flops_per_s={"float32": 5e13, "bfloat16": 8e14},
    peak_bytes_per_s=4.4e12,
    peak_flops_per_s=8.2e14,
    cache_bytes=60_000_000,
)


def test_the_slower_ceiling_binds() -> None:
    assert limit(Cost(4e9, 1e9), CEILINGS, "float32") == ("bandwidth", 1e-3)
    assert limit(Cost(4e6, 5e11), CEILINGS, "float32") == ("matmul", 1e-2)
    assert limit(Cost(4e6, 8e11), CEILINGS, "bfloat16") == ("matmul", 1e-3)


def test_what_a_hot_cache_holds_moves_at_its_rate() -> None:
    cached = replace(CEILINGS, cached_bytes_per_s=4e13)
    assert limit(Cost(4e7, 0), cached, "float32", "hot") == ("bandwidth", pytest.approx(1e-6))
    assert limit(Cost(4e7, 0), cached, "float32", "cold") == ("bandwidth", pytest.approx(1e-5))
    beyond = 6e7 / 4e13 + 4e9 / 4e12
    assert limit(Cost(4.06e9, 0), cached, "float32", "hot") == ("bandwidth", pytest.approx(beyond))
    assert limit(Cost(4e7, 0), CEILINGS, "float32", "hot") == (
        "bandwidth",
        pytest.approx(1e-5),
    )  # of an old run


def test_a_dtype_without_a_matmul_is_held_against_the_best() -> None:
    assert limit(Cost(0, 8.2e11), CEILINGS, "float8") == ("matmul", pytest.approx(1e-3))


def test_no_call_at_its_limit_is_below_the_floor() -> None:
    for cost in (Cost(4e9, 1e9), Cost(4e6, 5e11), Cost(1e3, 1e3)):
        for dtype in ("float32", "bfloat16"):
            assert floor_s(cost, CEILINGS, dtype, CEILINGS.cache_bytes) < limit(cost, CEILINGS, dtype)[1]


def test_a_call_whose_data_fit_the_cache_has_no_bandwidth_floor() -> None:
    assert floor_s(Cost(6e7, 0), CEILINGS, "float32", 60_000_000) == 0
    assert floor_s(Cost(6e7, 0), CEILINGS, "float32", 0) == pytest.approx(0.9 * 6e7 / 4.4e12)


def test_a_claim_that_no_device_could_reach_is_below_the_floor() -> None:
    """Claim to move eight gigabytes in a microsecond."""
    assert floor_s(Cost(8e9, 0), CEILINGS, "float32", CEILINGS.cache_bytes) > 1e-3
    assert floor_s(Cost(0, 8e14), CEILINGS, "float32", 0) > 0.8


def test_the_floor_uses_the_best_rate_of_any_dtype() -> None:
    cost = Cost(0, 1e12)
    assert floor_s(cost, CEILINGS, "float32", 0) == floor_s(cost, CEILINGS, "bfloat16", 0)


def test_ceilings_survive_json() -> None:
    assert Ceilings.from_json(json.loads(json.dumps(CEILINGS.to_json()))) == CEILINGS


def test_old_ceilings_say_nothing_of_the_cache() -> None:
    old = CEILINGS.to_json()
    del old["cached_bytes_per_s"]
    assert Ceilings.from_json(old) == CEILINGS


def test_only_buffers_that_fit_twice_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def times(device: torch.device, call: Any, count: int) -> list[float]:
        sizes.append(call().nbytes)
        return [2.0, 1.0]

    monkeypatch.setattr(roofline, "_times", times)
    assert roofline._cached_bytes_per_s(2**20) == 2.0 * 2**19
    assert max(sizes) == 2**19
    assert roofline._cached_bytes_per_s(0) == 0.0


def test_ceilings_of_this_cpu() -> None:
    ceilings = roofline.measure_ceilings("cpu")
    assert ceilings.cached_bytes_per_s > 0 or not ceilings.cache_bytes
    assert 0 < ceilings.copy_bytes_per_s <= ceilings.peak_bytes_per_s
    assert set(ceilings.matmul_flops_per_s) == {"float64", "float32", "bfloat16"}
    assert min(ceilings.matmul_flops_per_s.values()) > 0
    assert max(ceilings.matmul_flops_per_s.values()) <= ceilings.peak_flops_per_s


def test_a_copy_counts_reads_and_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "CPU_BUFFER_BYTES", (2**22, 2**22))
    monkeypatch.setattr(roofline, "_times", lambda device, call, count: [3.0, 1.0, 2.0])
    copies, reads = roofline._bandwidths(torch.device("cpu"), 0)
    assert sorted(copies) == [2 * 2**22 / 3, 2**22, 2 * 2**22] and max(reads) == 2**22
    monkeypatch.setattr(roofline, "_matmul_rates", lambda *a: [1.0, 5.0, 2.0])
    monkeypatch.setattr(roofline, "_cores_flops_per_s", lambda: 4.0)
    ceilings = roofline.measure_ceilings("cpu")
    assert ceilings.copy_bytes_per_s == 2**22 and ceilings.peak_bytes_per_s == 2 * 2**22
    assert ceilings.matmul_flops_per_s["float32"] == 2.0 and ceilings.peak_flops_per_s == 5.0
    monkeypatch.setattr(roofline, "_cores_flops_per_s", lambda: 6.0)
    assert roofline.measure_ceilings("cpu").peak_flops_per_s == 6.0


def test_specs_count_what_lies_in_memory() -> None:
    q = torch.zeros(2, 8, 4, 16, dtype=torch.bfloat16)
    gate = torch.zeros(4).view(1, 1, 4, 1).expand(2, 8, 4, 16)
    turned = torch.zeros(3, 5, dtype=torch.complex64).T
    found = specs({"q": q, "log_a": gate, "phase": None, "b": turned})
    assert set(found) == {"q", "log_a", "b"}
    assert found["q"].shape == (2, 8, 4, 16) and found["q"].nbytes == 2 * 2 * 8 * 4 * 16
    assert found["log_a"].shape == (1, 1, 4, 1) and found["log_a"].nbytes == 16
    assert found["b"].complex and found["b"].nbytes == 15 * 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_ceilings_of_this_gpu() -> None:
    ceilings = roofline.measure_ceilings("cuda")
    assert set(ceilings.matmul_flops_per_s) == set(roofline.GPU_DTYPES)
    assert ceilings.matmul_flops_per_s["bfloat16"] > ceilings.matmul_flops_per_s["float32"]
    assert ceilings.cache_bytes > 0 and ceilings.copy_bytes_per_s > 1e10
