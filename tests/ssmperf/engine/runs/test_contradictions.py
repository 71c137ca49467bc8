"""Records that contradict themselves are not believed, and what is compared is no choice of the new run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.results.histories import SECTION

from ssmperf import Case, Record, Run, Selection, Shape, Status
from ssmperf.comparison.comparison import compare_pairs, compare_runs
from ssmperf.comparison.outcome import RunComparison
from ssmperf.engine.plan.plan import Plan, Planned
from ssmperf.engine.plan.selection import Device
from ssmperf.engine.runs import scope
from ssmperf.engine.runs.rounds import believed, fault, fold
from ssmperf.engine.runs.standings import believed as records_of
from ssmperf.engine.runs.standings import standings
from ssmperf.engine.runs.store import Writer, load

RESULTS = Path(__file__).parents[4] / "docs" / "results"
BACKENDS = ("blelloch", "chunkwise", "sequential", "triton")
ENVIRONMENT = {"hardware": {"gpu": {"name": "A"}}}
INFINITE = (math.inf, -math.inf, math.nan)


def case(**changes: Any) -> Case:
    shape = Shape(B=8, T=1024, C=64)
    fields = {"suite": "throughput", "recurrence": "scan", "backend": "blelloch", "device": "cuda"} | changes
    return Case(shape=shape, **fields)


def timed(seconds: float = 1e-3, *, numbers: dict[str, Any] | None = None, **changes: Any) -> Record:
    found = {
        "latency_s": seconds,
        "latency_low_s": 0.999 * seconds,
        "latency_high_s": 1.001 * seconds,
        "samples_s": [seconds * (1 + each * 1e-4) for each in range(-5, 6)],
        "peak_bytes": 1000,
    }
    return Record(case(**changes), Status.OK, None, "e", found | (numbers or {}))


def ended(status: str, **changes: Any) -> Record:
    return Record(case(**changes), Status(status), "because", "e")


def run(*records: Record, rank: str | None = "latency_s", **meta: Any) -> Run:
    suites = {record.case.suite: {**SECTION, "rank": rank} for record in records}
    return Run(Path("runs/x"), {"suites": suites, "environments": {"e": ENVIRONMENT}, **meta}, list(records))


def written(folder: Path, lines: list[str], **meta: Any) -> Run:
    """Write a run whose lines are given, and load it."""
    sections = {"throughput": SECTION}
    writer = Writer.create(folder, {"suites": sections, "created": "2026-01-01T00:00:00+00:00", **meta})
    writer.add_environment("e", ENVIRONMENT)
    writer.close()
    (folder / "records.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return load(folder)


def verdicts(found: RunComparison) -> list[str]:
    return [pair.verdict for pair in found.pairs]


# ---------------------------------------------------------------- numbers that cannot be

IMPOSSIBLE: dict[str, dict[str, Any]] = {
    **{f"{value:g} s": {"latency_s": value} for value in (5e-324, 1e-300, 1e-10, 0, -1e-3, 1e300, *INFINITE)},
    "less than its bytes take": {"least_bytes": 1e13},
    "less than its operations take": {"least_flops": 1e16},
    **{f"from {end:g}": {"latency_low_s": end} for end in (0, -1e-3, *INFINITE)},
    **{f"to {end:g}": {"latency_high_s": end} for end in (-1e-3, 0.9e-3, *INFINITE)},
    "above its value": {"latency_low_s": 1.2e-3},
    "the wrong way round": {"latency_low_s": 1.1e-3, "latency_high_s": 0.9e-3},
    "half an interval": {"latency_low_s": None},
    "a list": {"latency_high_s": [1.001e-3]},
}
UNLIKE_SAMPLES: dict[str, dict[str, Any]] = {
    "slow samples": {"samples_s": [1e-2] * 20},
    "mostly slow samples": {"samples_s": [1e-2] * 6 + [1e-3] * 5},
    "no samples": {"samples_s": [None] * 11},
    "a negative sample": {"samples_s": [-1e-3, *[1e-3] * 10]},
    "rounds of its own": {"round_values": [1e-4] * 3},
}
FAULTS = IMPOSSIBLE | UNLIKE_SAMPLES


@pytest.mark.parametrize("name", FAULTS)
def test_a_record_that_contradicts_itself_is_lost_and_said_first(name: str) -> None:
    odd = replace(timed(), numbers={**timed().numbers, **FAULTS[name]})
    fine = timed(backend="triton")
    for side, base, new in (("new", timed(), odd), ("base", odd, timed())):
        found = compare_runs(run(base, fine), run(new, fine))
        assert (verdicts(found), found.exit_code) == (["lost", "same"], 3)
        (alarm,) = found.alarms
        start = f"the {side} run's files contradict themselves in 1 case, counted as lost: throughput scan"
        assert alarm.startswith(start) and "blelloch" in alarm
        assert found.pairs[0].reason == f"in the {side} run, {alarm.partition('forward: ')[2]}"
    unsure = compare_runs(run(timed(), fine), run(odd, fine), unsure="pass")
    assert unsure.exit_code == 3


@pytest.mark.parametrize("base", [ended("oom"), None], ids=["mended", "new"])
def test_an_impossible_time_is_neither_mended_nor_new(base: Record | None) -> None:
    others = [timed(backend="triton")]
    found = compare_runs(run(*others, *([base] if base else [])), run(*others, timed(1e-300)))
    assert (verdicts(found), found.exit_code) == (["lost", "same"], 3)


def test_the_baseline_may_know_the_work_that_the_new_record_leaves_out() -> None:
    heavy = timed(1.0, numbers={"least_bytes": 1e13})
    assert verdicts(compare_runs(run(heavy), run(timed(1e-3)))) == ["lost"]
    assert verdicts(compare_runs(run(heavy), run(timed(0.5)))) == ["faster"]


def test_a_wrong_answer_stays_wrong_beside_a_baseline_that_cannot_be_believed() -> None:
    assert verdicts(compare_runs(run(timed(1e-300)), run(ended("wrong")))) == ["wrong"]


@pytest.mark.parametrize(
    "numbers",
    [
        {"latency_low_s": None, "latency_high_s": None, "samples_s": [1.0e-3]},
        {"samples_s": [0.9e-3, 1.1e-3]},  # of two samples, anything between is a median
        {"samples_s": [], "latency_s": 1.000001e-3},
        {"latency_low_s": 1.0002e-3},  # rounded
        {"peak_bytes": 0, "least_bytes": 1e9},
        {"latency_s": None},
    ],
)
def test_what_a_suite_writes_is_believed(numbers: dict[str, Any]) -> None:
    record = timed(numbers=numbers)
    assert fault(record, "latency_s") is None and believed(record, "latency_s") is record


@pytest.mark.slow
def test_all_stored_results_are_believed() -> None:
    folders = sorted({file.parent for file in RESULTS.rglob("records.jsonl*")})
    assert len(folders) > 20
    for folder in folders:
        assert load(folder).warnings == [], folder


def test_a_fold_of_rounds_is_its_own_median() -> None:
    rounds = [timed(1e-3 * (1 + each / 9), numbers={"round": each}) for each in range(6)]
    for count in range(1, 7):
        assert fault(fold(rounds[:count], "latency_s"), "latency_s") is None
    odd = fold([*rounds, timed(1e-300, numbers={"round": 6})], "latency_s")
    assert odd.status is Status.WRONG and "1e-300" in str(fault(odd, "latency_s"))


# ---------------------------------------------------------------- several records of a round


def test_slow_records_followed_by_fast_ones_are_lost(tmp_path: Path) -> None:
    slow, fast = timed(1e-2), timed(1e-3)
    base = written(tmp_path / "base", [slow.to_line()])
    new = written(tmp_path / "new", [slow.to_line(), fast.to_line()])
    assert any("two records of one round" in text for text in new.warnings)
    for given in (new, run(slow, fast)):
        found = compare_runs(base, given)
        assert (verdicts(found), found.exit_code) == (["lost"], 3)
        assert "two records of one round, with different numbers" in found.alarms[0]
    thrice = written(tmp_path / "thrice", [each.to_line() for each in (slow, fast, fast)])
    assert verdicts(compare_runs(base, thrice)) == ["lost"]
    mended = written(tmp_path / "mended", [ended("wrong").to_line(), fast.to_line()])
    assert verdicts(compare_runs(base, mended)) == ["lost"]


def test_rounds_of_which_a_run_does_not_know_are_no_rounds(tmp_path: Path) -> None:
    slow = timed(1e-2)
    fast = [timed(1e-3, numbers={"round": each}) for each in range(1, 21)]
    new = written(tmp_path / "new", [each.to_line() for each in (slow, *fast)], rounds=1)
    found = compare_runs(run(slow), new)
    assert verdicts(found) == ["lost"] and "a record of round 2, and its run has 1" in found.alarms[0]
    twice = [timed(1e-3, numbers={"round": 0}), timed(1e-2, numbers={"round": "0"})]
    assert compare_runs(run(slow), run(*twice)).exit_code == 3


def test_what_a_run_writes_twice_is_fine(tmp_path: Path) -> None:
    """A copied line, and a case that went on after it had run out of time."""
    fine = timed()
    for number, lines in enumerate(([fine, fine], [ended("timeout"), fine])):
        new = written(tmp_path / str(number), [each.to_line() for each in lines], rounds=1)
        assert (new.warnings, verdicts(compare_runs(run(fine), new))) == ([], ["same"])
    assert compare_runs(run(fine), run(fine)).alarms == ()


def test_a_resumed_run_keeps_the_number_of_its_rounds(tmp_path: Path) -> None:
    rounds = [timed(numbers={"round": each}).to_line() for each in range(3)]
    written(tmp_path / "run", rounds, rounds=3)
    Writer.resume(tmp_path / "run", {"rounds": 1})[0].close()
    assert load(tmp_path / "run").warnings == []


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", f"1{'0' * 400}"])
@pytest.mark.parametrize("name", ["latency_s", "latency_low_s", "latency_high_s"])
def test_numbers_that_no_float_holds_are_said(name: str, number: str, tmp_path: Path) -> None:
    line = json.dumps({**timed().to_json(), name: "X"}).replace('"X"', number)
    new = written(tmp_path / "new", [line])
    found = compare_runs(run(timed()), new)
    assert verdicts(found) == ["lost"] and f"its {name} is no finite number" in found.alarms[0]


# ---------------------------------------------------------------- what the new run cannot choose


@pytest.mark.parametrize("rank", ["peak_bytes", "issue_s", None])
def test_the_installed_suite_says_what_is_compared(rank: str | None) -> None:
    records = [timed(1e-3), timed(1e-3, backend="triton")], [timed(1e-2), timed(1e-2, backend="triton")]
    found = compare_runs(run(*records[0]), run(*records[1], rank=rank))
    assert (verdicts(found), {pair.field for pair in found.pairs}) == (["slower"] * 2, {"latency_s"})
    found = compare_runs(run(*records[0], rank=rank), run(*records[1]))
    assert verdicts(found) == ["slower"] * 2


def test_the_baseline_says_what_is_compared_of_a_suite_that_is_not_installed(tmp_path: Path) -> None:
    def of(run_: Run) -> tuple[list[str], str | None]:
        found = compare_runs(base, run_)
        return verdicts(found), found.pairs[0].field

    old, now = timed(suite="foreign"), timed(1e-2, suite="foreign")
    base = run(old)
    assert of(run(now, rank="peak_bytes")) == (["slower"], "latency_s")
    assert of(run(now, rank=None)) == (["slower"], "latency_s")
    base = run(old, rank=None)  # compared by statuses, whatever the new run says
    assert of(run(now)) == (["same"], None)
    # its rounds are not folded by the field of its choice, either
    base = run(old)
    peaks = {0: 1000, 1: 2000, 2: 3000}
    rounds = [timed(1e-2 if each != 1 else 1e-3, suite="foreign", numbers={"round": each, "peak_bytes": peak})
              for each, peak in peaks.items()]  # fmt: skip
    section = {**SECTION, "rank": "peak_bytes"}
    new = written(tmp_path / "new", [each.to_line() for each in rounds], suites={"foreign": section})
    assert new.records[0].numbers["latency_s"] == pytest.approx(1e-3)
    assert of(new) == (["slower"], "latency_s")


def planned_run(records: list[Record], selection: Selection) -> Run:
    cases = tuple(Planned(record.case) for record in records)
    described = scope.describe(selection, ["throughput"], Plan(cases))
    plan = {"case_ids": [each.case.id for each in cases]}
    return run(*records, **{scope.META: json.loads(json.dumps(described))}, plan=plan)


def test_cases_that_the_new_run_was_not_asked_for_are_counted_and_named() -> None:
    records = [timed(backend=name, seed=seed) for name in BACKENDS for seed in range(2)]
    base = planned_run(records, Selection.of(Device("cuda"), models=("scan",)))
    few = Selection.of(Device("cuda"), models=("scan",), backends=("chunkwise", "sequential"))
    left = [each for each in records if each.case.backend in ("chunkwise", "sequential")]
    new = planned_run(left, few)
    for found in (compare_runs(base, new), compare_pairs(base, new, {})):
        (alarm,) = found.alarms
        assert alarm.startswith("the new run was not asked for 4 cases of the base run: throughput scan")
        assert alarm.count("blelloch") == 2 and alarm.count("triton") == 1 and alarm.endswith("and 1 more")
    assert compare_runs(base, new).exit_code == 0  # no code of their own
    assert compare_runs(base, new, restriction=scope.Restriction(backends=("sequential",))).alarms == ()
    refused = planned_run([*left, ended("unsupported", backend="triton")], Selection.of(Device("cuda")))
    assert compare_runs(refused, new).alarms == ()


def test_the_base_version_says_what_is_compared_in_pairs() -> None:
    slow = run(timed(1e-2), rank="peak_bytes")
    assert compare_pairs(run(timed()), slow, {}).pairs[0].field == "latency_s"
    assert verdicts(compare_pairs(run(timed(), rank=None), slow, {})) == ["same"]


def test_sides_in_pairs_are_not_believed_either() -> None:
    found = compare_pairs(run(timed()), run(timed(1e-300)), {})
    assert (verdicts(found), len(found.alarms)) == (["lost"], 1)


def test_names_from_outside_are_one_line_of_an_alarm() -> None:
    odd = timed(1e-300, backend="a\x1b[31m\nb")
    (alarm,) = compare_runs(run(timed()), run(timed(), odd)).alarms
    assert alarm.isprintable()


# ---------------------------------------------------------------- ranking


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_machine_measures_is_wrong_where_it_would_be_ranked(name: str) -> None:
    odd = replace(timed(), numbers={**timed().numbers, **IMPOSSIBLE[name]})
    given = run(odd, timed(2e-3, backend="triton"))
    first, second = records_of(given)
    assert (first.status, second.status) == (Status.WRONG, Status.OK) and given.records[0] is odd
    assert first.reason and not any(each.endswith("_s") for each in first.numbers)
    assert [each.name for each in standings(given)] == ["wrong", "competes"]
    assert list(given.frame()["status"]) == ["wrong", "ok"]


@pytest.mark.parametrize("seconds", [5e-324, 1e-300, 1e-9])
def test_an_impossible_time_stays_one_beside_the_time_of_a_preparation(seconds: float) -> None:
    odd = timed(seconds, numbers={"prepare_s": 2e-4}, timing="native")
    given = run(odd, timed(timing="native", backend="triton"))
    assert given.records[0] == odd
    assert [each.name for each in standings(given)] == ["wrong", "competes"]
    assert verdicts(compare_runs(run(timed(timing="native")), run(odd))) == ["lost"]
