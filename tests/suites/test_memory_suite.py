"""The memory suite: one process per case, faults that its numbers show, and the search for the largest T."""

from __future__ import annotations

from pathlib import Path

import pytest
from ssmperf.suites.largest_length import GRID, search
from ssmperf.suites.memory import growth_exponent, longest

import ssmperf
from ssmperf import Record, Run, Shape, Status

PLUGIN = Path(__file__).parents[1] / "support" / "faulty.py"
T, C, B = 64, 32, 2
ELEMENTS = 4 * B * T * C  # bytes of b
EXPECTED = {
    "none": ("ok", None),
    "leaks": ("ok", None),
    "quadratic": ("ok", None),
    "hoards": ("ok", None),
    "forward_only": ("ok", None),
    "wrong": ("wrong", "output: relative error"),
    "aborts": ("crash", "SIGABRT"),
    "leaves": ("crash", "the worker exited with 0"),
    "allocates": ("oom", "memory"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    """Run all faulty backends, and sound ones among them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULTY_FOLDER", str(folder))
        return ssmperf.run(
            "memory",
            models="hgrn",
            backends=["sequential", *(f"faulty_{name}" for name in EXPECTED)],
            axis=[f"T={T}", f"C={C}", f"B={B}"],
            dtype="float32",
            device="cpu",
            plugin=PLUGIN,
            timeout=60,
            out=folder / "run",
        )


def of(run: Run, name: str) -> Record:
    (record,) = [r for r in run.records if r.case.backend in (name, f"faulty_{name}")]
    return record


@pytest.mark.parametrize("name", EXPECTED)
def test_each_case_has_its_status(run: Run, name: str) -> None:
    status, reason = EXPECTED[name]
    record = of(run, name)
    assert record.status == status, record.reason
    assert reason is None or reason in str(record.reason)


def test_a_peak_or_a_reason(run: Run) -> None:
    for record in run.records:
        peak = record.numbers.get("peak_bytes")
        if record.status is Status.OK:
            assert peak > 0 or record.numbers["peak_bytes_reason"]
        else:
            assert peak is None


def test_peaks_hold_the_results_and_the_gradients(run: Run) -> None:
    """At least the output, and with a backward pass the gradients of log_a and b."""
    record = of(run, "sequential")
    assert record.numbers["forward_peak_bytes"] >= ELEMENTS
    assert record.numbers["peak_bytes"] >= record.numbers["graph_bytes"] >= ELEMENTS
    assert record.numbers["peak_bytes"] >= 2 * ELEMENTS
    assert record.numbers["operand_bytes"] == 2 * ELEMENTS
    assert 0.9 < record.numbers["growth_exponent"] < 1.1
    assert record.numbers["lengths"] == [T // 4, T // 2, T]
    assert record.numbers["peaks_bytes"][-1] == record.numbers["peak_bytes"]


def test_a_leak_shows_to_the_byte(run: Run) -> None:
    assert of(run, "leaks").numbers["left_bytes"] == ELEMENTS
    assert of(run, "none").numbers["left_bytes"] == 0


def test_quadratic_growth_shows(run: Run) -> None:
    quadratic = of(run, "quadratic").numbers
    assert 1.8 < quadratic["growth_exponent"] < 2.01
    assert quadratic["peak_bytes"] >= 4 * 64 * T**2
    assert quadratic["predicted_largest_T"] < of(run, "none").numbers["predicted_largest_T"]


def test_what_no_hook_sees_shows_in_the_graph(run: Run) -> None:
    """Eight hidden copies, and the output of which they are copies."""
    hidden, plain = of(run, "hoards").numbers, of(run, "none").numbers
    assert hidden["saved_bytes"] == plain["saved_bytes"]
    assert hidden["graph_bytes"] - plain["graph_bytes"] == 8 * ELEMENTS


def test_a_backend_without_backward_is_measured_forward(run: Run) -> None:
    record = of(run, "forward_only")
    assert record.case.pass_ == "forward"
    assert record.numbers["peak_bytes"] == record.numbers["forward_peak_bytes"]


def test_a_cpu_is_not_filled_to_the_brim(run: Run) -> None:
    numbers = of(run, "sequential").numbers
    assert numbers["largest_T"] is None and "CPU" in numbers["largest_T_reason"]
    assert numbers["predicted_largest_T"] > T


def test_each_case_has_a_process_of_its_own(run: Run, folder: Path) -> None:
    calling = [name for name in EXPECTED if name not in ("aborts", "leaves", "allocates")]
    assert len(calling) == 6
    assert len(set((folder / "processes").read_text().split())) == len(calling)


@pytest.mark.parametrize("power", [0, 0.5, 1, 2])
def test_the_exponent_of_a_power_is_that_power(power: float) -> None:
    lengths = (64, 128, 256, 1024)
    assert growth_exponent(lengths, [int(1e9 * T**power) for T in lengths]) == pytest.approx(power, abs=1e-6)


def test_no_exponent_without_two_lengths() -> None:
    assert growth_exponent((64,), [100]) is None
    assert growth_exponent((64, 128), [0, 100]) is None


@pytest.mark.parametrize("start", [1, 7, 64, 5000, 10**6])
@pytest.mark.parametrize("limit", [1, 3, 100, 4096, 123_457])
def test_the_search_brackets_the_limit(start: int, limit: int) -> None:
    low, high = search(lambda length: length <= limit, start)
    assert low is not None and high is not None
    assert low <= limit < high and high - low <= max(1, low // GRID)


def test_the_search_ends_where_nothing_or_everything_fits() -> None:
    assert search(lambda length: False, 100) == (None, 1)
    assert search(lambda length: True, 100, most=1000) == (1000, None)


def test_the_search_keeps_what_it_found_when_its_time_is_up() -> None:
    tried: list[int] = []

    def fits(length: int) -> bool:
        if len(tried) == 3:
            raise TimeoutError
        tried.append(length)
        return length <= 300

    assert search(fits, 100) == (200, 400)
    assert tried == [100, 200, 400]


def test_a_search_by_doubling_tries_nothing_else() -> None:
    tried: list[int] = []

    def fits(length: int) -> bool:
        tried.append(length)
        return length <= 700

    assert search(fits, 64, doubling=True) == (512, 1024)
    assert tried == [64, 128, 256, 512, 1024]


def test_the_smoke_preset_keeps_the_longest_shape() -> None:
    assert longest((Shape(B=1, T=8), Shape(B=1, T=32), Shape(B=1, T=16))) == (Shape(B=1, T=32),)
