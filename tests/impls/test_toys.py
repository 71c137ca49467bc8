"""Properties that tell the backends from toys: the amount of work, and that nothing is quietly refused."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from support.kernels.table import DTYPES, GATE_KINDS, SHAPES, detached, sample
from torch.utils._python_dispatch import TorchDispatchMode

from ssmperf.suitekit import registry

# backends that must run every gate kind in every dtype
EVERYWHERE = (
    "sequential",
    "blelloch",
    "hillis_steele",
    "logspace",
    "surrogate",
    "surrogate_raw",
    "torch_scan",
)
# the others have fewer backends and gate kinds: must_be_ok.json lists theirs
MUST_RUN = [(recurrence, name) for recurrence in ("scan", "linear_attention") for name in EVERYWHERE]
MUST_RUN.append(("linear_attention", "chunkwise"))


class CountOperators(TorchDispatchMode):
    """Counts the operators dispatched while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators(recurrence: str, backend: str, T: int, kind: str) -> int:
    """Operators of a forward call."""
    operands = detached(
        sample(recurrence, SHAPES[recurrence].with_(T=T), regime="s4d", kind=kind, dtype="float32")
    )
    with CountOperators() as counter, torch.no_grad():
        registry.backend(recurrence, backend).function(**operands)
    return counter.count


@pytest.mark.parametrize(("recurrence", "backend"), MUST_RUN)
def test_every_gate_kind_and_dtype_runs(recurrence: str, backend: str) -> None:
    entry = registry.backend(recurrence, backend)
    for kind in GATE_KINDS[recurrence]:
        for dtype in DTYPES:
            assert entry.refusal(device="cpu", dtype=dtype, gate_kind=kind, length=7) is None
            operands = sample(recurrence, SHAPES[recurrence].with_(T=7), regime="gla", kind=kind, dtype=dtype)
            output, _ = entry.function(**operands)
            output.sum().abs().backward()
            assert bool(torch.isfinite(torch.view_as_real(output) if output.is_complex() else output).all())


@pytest.mark.parametrize(
    ("recurrence", "T"), [("scan", 1), ("scan", 13), ("scan", 64), ("linear_attention", 37)]
)
def test_blelloch_combines_as_often_as_it_should(
    recurrence: str, T: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("ssmperf.impls.scan.blelloch")
    combine, combined = module.combine, []

    def counting(left: Any, right: Any) -> Any:
        combined.append(max(left[1].shape[1], right[1].shape[1]))
        return combine(left, right)

    monkeypatch.setattr(module, "combine", counting)
    kind = "data" if recurrence == "scan" else "key"
    operands = detached(sample(recurrence, SHAPES[recurrence].with_(T=T), kind=kind, dtype="float32"))
    registry.backend(recurrence, "blelloch").function(**operands)
    N = 1 << (T - 1).bit_length()
    assert sum(combined) == 2 * (N - 1) + T
    assert len(combined) == 2 * (N.bit_length() - 1) + 1, "not level by level"


def test_hillis_steele_combines_as_often_as_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("ssmperf.impls.scan.hillis_steele")
    combine, combined = module.combine, []

    def counting(left: Any, right: Any) -> Any:
        combined.append(left[1].shape[1])
        return combine(left, right)

    monkeypatch.setattr(module, "combine", counting)
    operands = detached(sample("scan", SHAPES["scan"].with_(T=64), kind="data", dtype="float32"))
    registry.backend("scan", "hillis_steele").function(**operands)
    assert sum(combined) == 64 * 6 - 64 + 1
    assert len(combined) == 6


@pytest.mark.parametrize("kind", ["scalar", "key", "both_complex"])
def test_chunkwise_loops_over_chunks_and_not_over_steps(kind: str) -> None:
    counts = [operators("linear_attention", "chunkwise", T, kind) for T in (64, 128, 256, 512)]
    assert counts[1] < counts[2] < counts[3]
    per_chunk = (counts[3] - counts[2]) / 4
    assert counts[2] - counts[1] == pytest.approx(2 * per_chunk)
    assert 2 <= per_chunk <= 6


@pytest.mark.parametrize("recurrence", ["scan", "linear_attention"])
def test_operators_grow_as_the_algorithm_says(recurrence: str) -> None:
    kind = "data" if recurrence == "scan" else "key"

    def growth(backend: str) -> int:
        short, long = (operators(recurrence, backend, T, kind) for T in (64, 256))
        return long - short

    assert growth("sequential") >= 192, "a step of the loop is missing"
    for backend in ("blelloch", "hillis_steele", "torch_scan"):
        assert 0 < growth(backend) <= 60, f"{backend} does not take log2 T rounds"
    for backend in ("logspace", "surrogate", "surrogate_raw"):
        assert growth(backend) == 0, f"{backend} loops over time"


@pytest.mark.parametrize(("recurrence", "backend"), MUST_RUN)
def test_no_backend_asks_the_definition(
    recurrence: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = registry.backend(recurrence, backend)
    for module in ("scan", "linear_attention"):
        package = importlib.import_module(f"ssmperf.impls.{module}")
        monkeypatch.setattr(package, module, lambda *a, **k: pytest.fail("called the definition"))
    for function in ("backend", "recurrence", "backends", "recurrences"):
        monkeypatch.setattr(registry, function, lambda *a, **k: pytest.fail("asked the registry"))
    x = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0))
    heads = x.unsqueeze(2)
    operands = (-x.abs(), x) if recurrence == "scan" else (heads, heads, heads, -heads.abs())
    output, _ = entry.function(*operands)
    assert bool(torch.isfinite(output).all())
