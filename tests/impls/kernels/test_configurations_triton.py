"""A kernel is launched with the configuration in force in its table, in both passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch

from ssmperf import Shape
from ssmperf.engine.tune.tables import noted, using
from ssmperf.suitekit import registry

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if reason := registry.backend("scan", "triton").missing(DEVICE):
    pytest.skip(reason, allow_module_level=True)

SHAPES = {
    "scan": {"B": 1, "T": 6, "C": 3},
    "selective_scan": {"B": 1, "T": 3, "D": 2, "N": 3},
    "ratio_scan": {"B": 1, "T": 6, "C": 3},
    "linear_attention": {"B": 1, "T": 18, "H": 1, "K": 4, "V": 4},
}
KINDS = {"scan": "data", "selective_scan": "exp", "ratio_scan": "const", "linear_attention": "scalar"}
SCANS = ("scan", "selective_scan", "ratio_scan")
LAUNCHES = {"selective_scan": "passes"}  # the module that launches, where it is not `function`


def outcome(name: str) -> list[torch.Tensor]:
    """Output, final state and gradients of the backend on a small case."""
    recurrence = registry.recurrence(name)
    drawn = recurrence.sample(
        Shape(SHAPES[name]),
        regime="sigmoid",
        generator=torch.Generator().manual_seed(0),
        gate_kind=KINDS[name],
    )
    tensors = {key: x.to(DEVICE) for key, x in drawn.items() if isinstance(x, torch.Tensor)}
    leaves = {key: x.requires_grad_() for key, x in tensors.items()}
    output, final = registry.backend(name, "triton").function(**{**drawn, **leaves})
    loss = output.sum() + final.sum()
    with noted() as consulted:
        gradients = torch.autograd.grad(loss, list(leaves.values()))
    assert consulted, "what a backward pass runs with is noted, whoever ran forward"
    assert name not in SCANS or {key[0] for _, key in consulted} == {"backward"}
    return [output, final, *gradients]


class Spy:
    """A kernel that keeps the constants of its launches."""

    def __init__(self, kernel: Any, launches: list[dict[str, Any]]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*operands: Any, **constants: Any) -> Any:
            self.launches.append(constants)
            return self.kernel[grid](*operands, **constants)

        return launch


def steps_of(constants: dict[str, Any]) -> int:
    """The steps that a program of a scan holds at a time, by its kernel's constants."""
    return constants["TILE"].STEPS if "TILE" in constants else constants["R"]


@pytest.mark.slow(but=("ratio_scan",))
@pytest.mark.parametrize("name", SCANS)
def test_other_rows_are_what_is_launched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = import_module(f"ssmperf.impls.{name}._triton.{LAUNCHES.get(name, 'function')}")
    if name == "selective_scan":
        schedule = import_module(f"ssmperf.impls.{name}._triton.schedule")
        monkeypatch.setattr(schedule, "CHECKPOINT", 8)  # with 64 steps, the interpreter would take long
    launches: dict[str, list[dict[str, Any]]] = {"forward": [], "backward": []}
    for pass_, found in launches.items():
        kernel = f"{name}_{pass_}"
        monkeypatch.setattr(function, kernel, Spy(getattr(function, kernel), found))
    with noted() as curated:
        expected = outcome(name)
    assert {key[0] for _, key in curated} == {"forward", "backward"}
    halved = {place: replace(row, steps=row.steps // 2) for place, row in curated.items()}
    for found in launches.values():
        found.clear()
    with using(halved), noted() as consulted:
        got = outcome(name)
    assert consulted == halved
    for pass_, found in launches.items():
        assert found
        assert {steps_of(constants) for constants in found} == {
            row.steps for (_, key), row in halved.items() if key[0] == pass_
        }
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_both_passes_of_linear_attention_have_the_chunks_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    from ssmperf.impls.linear_attention._triton import schedule

    launches: list[dict[str, Any]] = []
    monkeypatch.setattr(schedule, "la_output", Spy(schedule.la_output, launches))
    with noted() as curated:
        expected = outcome("linear_attention")
    ((place, row),) = curated.items()
    launches.clear()
    with using({place: replace(row, chunk=16)}):
        got = outcome("linear_attention")
    assert [constants["C"] for constants in launches] == [16, 16]
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
