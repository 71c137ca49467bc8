"""Planted faults: each is found, and shrunk to the configuration that explains it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ssmperf
from ssmperf.authors.fuzzing.result import FuzzResult
from ssmperf.engine.cases.calls.call import parse
from ssmperf.engine.cases.case import Case
from ssmperf.suitekit import registry

PLUGIN = Path(__file__).parents[3] / "support" / "plugins" / "fuzzed.py"
USUAL = 60  # examples
EXAMPLES = dict.fromkeys(
    ("above_two_chunks", "strided", "expanded_batch", "wrapping_offsets", "half_with_wide_gates", "packed"),
    300,
)
# one view of one operand with several sequences is not drawn with every seed, nor is every batch shrunk
SEEDS = {"expanded_batch": 2, "above_two_chunks": 2}
SMALLEST = {"B": 1, "T": 1, "H": 1, "K": 1, "V": 1}


def smallest(*letters: str) -> Callable[[Case], bool]:
    """Make a check that a case has the smallest sizes but for some."""
    return lambda case: all(
        case.shape[letter] == size for letter, size in SMALLEST.items() if letter not in letters
    )


EXPLAINED: dict[str, Callable[[Case], bool]] = {
    "narrow": smallest(),
    "odd": smallest(),
    "above_two_chunks": lambda case: case.shape["T"] > 128 and smallest("T", "H")(case),
    "packed": lambda case: case.packing != "none" and case.shape["T"] <= 2,
    "empty_sequence": lambda case: "0" in case.packing and case.shape["T"] == 1,
    # T innermost in memory, where T = 2, has the same strides
    "strided": lambda case: case.shape["K"] == 2 and ("q:" in case.call or case.shape["T"] == 2),
    "expanded_batch": lambda case: "v:expanded" in case.call and smallest("B")(case),
    "state_dropped_in_backward": lambda case: case.pass_ == "forward_backward" and case.call == "none",
    "half_with_wide_gates": lambda case: (case.dtype, case.gate_dtype) == ("bfloat16", "float32"),
    "wrapping_offsets": lambda case: any(view == "far" for view in parse(case.call).views.values()),
}


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep what failed before to each test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def plugin(own_registrations: None) -> None:
    registry.load_plugin(PLUGIN)


def in_process(name: str, **options: object) -> FuzzResult:
    """Fuzz a planted backend as a function of this process."""
    function = registry.backend("linear_attention", f"fuzzed_{name}").function
    return ssmperf.fuzz("linear_attention", function, device="cpu", **options)


@pytest.mark.slow(but=("odd",))
@pytest.mark.parametrize("name", EXPLAINED)
def test_a_planted_fault_is_found_and_explained(name: str) -> None:
    found = in_process(name, examples=EXAMPLES.get(name, USUAL), seed=SEEDS.get(name, 1))
    assert not found and found.faults
    cases = [fault.record.case for fault in found.faults]
    assert any(map(EXPLAINED[name], cases)), cases
    assert all(fault.failed == fault.of == 3 for fault in found.faults)


def test_the_right_function_beside_them_is_right() -> None:
    assert in_process("right", examples=40, seed=1)


@pytest.mark.slow
def test_a_crash_costs_one_worker() -> None:
    found = ssmperf.fuzz(
        "linear_attention", "fuzzed_crashing", plugin=PLUGIN, examples=80, seed=1, device="cpu"
    )
    (fault,) = found.faults
    sizes = fault.record.case.shape
    assert "SIGSEGV" in str(fault) and sizes["V"] == sizes["K"] + 1 and (sizes["K"], sizes["T"]) == (1, 1)
    assert found.tally.right > 5


@pytest.mark.slow
def test_a_hang_is_a_fault() -> None:
    found = ssmperf.fuzz(
        "linear_attention", "fuzzed_hanging_at_one_step", plugin=PLUGIN, minutes=1.5, seed=1, device="cpu"
    )
    (fault,) = found.faults
    assert fault.kind.what == "hang" and fault.record.case.shape["T"] == 1
    assert found.tally.right > 0
