"""Comparing two runs: the verdict of a pair, and the exit code of the comparison."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ssmperf import Case, Record, Run, Shape, Status, UsageError
from ssmperf.comparison.comparison import compare_pairs, compare_runs, parse_threshold
from ssmperf.comparison.outcome import RunComparison

SECTIONS = {
    "throughput": {"rank": "latency_s"},
    "correctness": {"rank": None},
    "memory": {"rank": "peak_bytes"},
}
ENVIRONMENT = {"hardware": {"gpu": {"name": "A", "uuid": "1"}}, "driver": "1", "versions": {"torch": "2"}}


def samples(seconds: float, *, n: int = 40, noise: float = 0.01, seed: int = 0) -> list[float]:
    numbers = np.random.default_rng(seed).normal(1, noise, n)
    return [float(seconds * number) for number in numbers]


def case(**changes: Any) -> Case:
    shape = Shape(changes.pop("shape", {"B": 1, "T": 64, "C": 4}))
    return Case(
        **{"suite": "throughput", "recurrence": "scan", "backend": "blelloch", "shape": shape, **changes}
    )


def timed(seconds: float, *, env_id: str = "e", **changes: Any) -> Record:
    taken = samples(seconds)
    return Record(
        case(**changes), Status.OK, None, env_id, {"latency_s": float(np.median(taken)), "samples_s": taken}
    )


def ended(status: str, **changes: Any) -> Record:
    return Record(case(**changes), Status(status), "because", "e")


def run(*records: Record, environments: dict[str, Any] | None = None) -> Run:
    meta = {"suites": SECTIONS, "environments": {"e": ENVIRONMENT} if environments is None else environments}
    return Run(Path("runs/x"), meta, list(records))


def verdicts(found: RunComparison) -> list[str]:
    return [pair.verdict for pair in found.pairs]


@pytest.mark.parametrize(
    ("base", "new", "verdict", "code"),
    [
        (timed(1.0), timed(1.0), ["same"], 0),
        (timed(1.0), timed(1.02), ["same"], 0),
        (timed(1.0), timed(2.0), ["slower"], 1),
        (timed(2.0), timed(1.0), ["faster"], 0),
        (timed(1.0), ended("wrong"), ["wrong"], 3),
        (timed(1.0), ended("nan"), ["wrong"], 3),
        (timed(1.0), ended("crash"), ["wrong"], 3),
        (timed(1.0), ended("oom"), ["lost"], 3),
        (timed(1.0), ended("unsupported"), ["lost"], 3),
        (ended("oom"), ended("oom"), ["failing"], 4),
        (ended("wrong"), ended("wrong"), ["wrong"], 3),
        (ended("oom"), timed(1.0), ["mended"], 0),
        (ended("unsupported"), ended("unsupported"), [], 4),
    ],
)
def test_the_verdict_of_a_pair(base: Record, new: Record, verdict: list[str], code: int) -> None:
    found = compare_runs(run(base), run(new))
    assert (verdicts(found), found.exit_code) == (verdict, code)


def test_a_case_that_is_gone_is_missing_and_a_new_one_is_welcome() -> None:
    found = compare_runs(run(timed(1.0), timed(1.0, seed=1)), run(timed(1.0), timed(1.0, seed=2)))
    assert (verdicts(found), found.exit_code) == (["missing", "same", "new"], 3)


def test_what_was_refused_need_not_be_there() -> None:
    found = compare_runs(run(timed(1.0), ended("unsupported", seed=1)), run(timed(1.0)))
    assert (verdicts(found), found.exit_code) == (["same"], 0)


def test_broken_comes_before_slower_and_slower_before_unsure() -> None:
    noisy = Record(case(seed=2), Status.OK, None, "e", {"latency_s": 1.2, "samples_s": [0.5, 1.2, 3.0]})
    base = run(timed(1.0), timed(1.0, seed=1), timed(1.0, seed=2))
    assert compare_runs(base, run(timed(1.0), timed(1.0, seed=1), noisy)).exit_code == 4
    assert compare_runs(base, run(timed(1.0), timed(2.0, seed=1), noisy)).exit_code == 1
    assert compare_runs(base, run(ended("wrong"), timed(2.0, seed=1), noisy)).exit_code == 3


def test_numbers_without_samples_compare_as_they_are() -> None:
    records = [
        Record(case(suite="memory"), Status.OK, None, "e", {"peak_bytes": size})
        for size in (1000, 1040, 1100)
    ]
    assert [verdicts(compare_runs(run(records[0]), run(other)))[0] for other in records] == [
        "same",
        "same",
        "slower",
    ]


@pytest.mark.parametrize(("nonce", "verdict"), [("b", "ambiguous"), ("a", "lost")])
def test_a_case_that_is_refused_for_its_values_is_lost_only_on_the_same_values(
    nonce: str, verdict: str
) -> None:
    base, new = run(timed(1.0)), run(replace(ended("unsupported"), numbers={"refused_values": True}))
    base.meta["nonce"], new.meta["nonce"] = "a", nonce
    (pair,) = compare_runs(base, new).pairs
    assert pair.verdict == verdict and "because" in str(pair.reason)


PLACES = [("blelloch", 64), ("blelloch", 128), ("sequential", 64)]


def where_slower(*slow: int, factor: float = 1.5, **changes: Any) -> list[str]:
    """Give the verdicts of the cases in PLACES, of which some have become slower by a factor."""
    cases = [{"backend": name, "shape": {"B": 1, "T": T, "C": 4}, **changes} for name, T in PLACES]
    base = run(*(timed(1.0, **each) for each in cases))
    new = run(*(timed(factor if at in slow else 1.0, **each) for at, each in enumerate(cases)))
    found = {
        (pair.case.backend, pair.case.shape["T"]): pair.verdict for pair in compare_runs(base, new).pairs
    }
    return [found[place] for place in PLACES]


def test_on_a_cpu_one_case_of_a_backend_alone_is_no_regression() -> None:
    """A core that is shared for a while makes one case slower, by a factor of 2 at most."""
    assert where_slower(0) == ["ambiguous", "same", "same"]
    assert where_slower(0, factor=2.5) == ["slower", "same", "same"]
    assert where_slower(0, 1) == ["slower", "slower", "same"]
    assert where_slower(2) == ["same", "same", "slower"], "its backend's only case"
    assert where_slower(0, device="cuda") == ["slower", "same", "same"]


def test_a_number_that_vanished_is_lost() -> None:
    without = Record(case(), Status.OK, None, "e", {"latency_s": None})
    assert verdicts(compare_runs(run(timed(1.0)), run(without))) == ["lost"]


def test_a_time_that_the_baseline_lacks_leaves_it_open() -> None:
    without = Record(case(), Status.OK, None, "e", {"latency_s": None})
    assert verdicts(compare_runs(run(without), run(timed(1.0)))) == ["ambiguous"]
    assert verdicts(compare_runs(run(without), run(without))) == ["same"]


def test_networks_of_other_sizes_are_not_compared() -> None:
    """Their number of layers is no part of a case."""
    shallow, deep = (
        replace(timed(seconds), numbers={**timed(seconds).numbers, "layers": layers})
        for seconds, layers in ((1.0, 1), (4.0, 4))
    )
    assert verdicts(compare_runs(run(shallow), run(shallow))) == ["same"]
    (pair,) = compare_runs(run(shallow), run(deep)).pairs
    assert pair.verdict == "ambiguous" and "layers" in str(pair.reason)


def test_a_suite_without_a_rank_compares_statuses() -> None:
    fine = Record(case(suite="correctness"), Status.OK, None, "e")
    assert verdicts(compare_runs(run(fine), run(fine))) == ["same"]


def test_another_device_is_no_comparison_unless_forced() -> None:
    other = {"f": {**ENVIRONMENT, "hardware": {"gpu": {"name": "B", "uuid": "2"}}}}
    base = run(timed(1.0, device="cuda"))
    new = run(timed(2.0, env_id="f", device="cuda"), environments=other)
    found = compare_runs(base, new)
    assert (verdicts(found), found.exit_code) == (["ambiguous"], 4)
    assert found.differences == ("hardware.gpu.name: A and B",)
    forced = compare_runs(base, new, force=True)
    assert (forced.exit_code, forced.differences) == (1, ())
    assert any("hardware.gpu.name: A and B" in note for note in forced.notes)


def test_another_copy_of_the_same_device_is_comparable_by_its_id() -> None:
    assert compare_runs(run(timed(1.0)), run(timed(1.0))).differences == ()


def test_nothing_in_common_is_no_pass() -> None:
    assert compare_runs(run(), run()).exit_code == 4
    assert compare_runs(run(), run(timed(1.0))).exit_code == 4


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), (" 12.5% ", 0.125)])
def test_thresholds_are_read(text: str, value: float) -> None:
    assert parse_threshold(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "five", "0", "-5%", "nan", "1e9", "5%%"])
def test_other_thresholds_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="threshold"):
        parse_threshold(text)


@pytest.mark.parametrize(
    ("text", "offer"),
    [("5", "5% or 0.05"), ("1", "1% or 0.01"), ("12.5", "12.5% or 0.125"), ("500", "5% or 0.05")],
)
def test_a_threshold_that_looks_like_a_percentage_is_refused_with_an_offer(text: str, offer: str) -> None:
    for threshold in (text, float(text)):
        with pytest.raises(UsageError, match=re.escape(f"write {offer}")):
            parse_threshold(threshold)
    assert parse_threshold(f"{text}%") == pytest.approx(float(text) / 100)


def noisy(seconds: float, **changes: Any) -> Record:
    taken = [0.5 * seconds, seconds, 2 * seconds]
    return Record(case(**changes), Status.OK, None, "e", {"latency_s": seconds, "samples_s": taken})


def test_ambiguity_alone_passes_if_one_says_so() -> None:
    base, new = run(timed(1.0), timed(1.0, seed=1)), run(noisy(1.2), timed(1.0, seed=1))
    assert (compare_runs(base, new).exit_code, compare_runs(base, new).ok) == (4, False)
    passed = compare_runs(base, new, unsure="pass")
    assert (passed.exit_code, passed.ok) == (0, True)
    assert "not all cases can be told" in passed.conclusion
    slow, wrong = (run(noisy(1.2), other) for other in (timed(2.0, seed=1), ended("wrong", seed=1)))
    assert [compare_runs(base, each, unsure="pass").exit_code for each in (slow, wrong)] == [1, 3]
    assert compare_runs(run(), run(timed(1.0)), unsure="pass").exit_code == 4  # nothing in common
    with pytest.raises(UsageError, match="fail, pass"):
        compare_runs(base, new, unsure="perhaps")


def test_a_record_is_the_same_as_itself_whatever_its_noise() -> None:
    found = compare_runs(run(noisy(1.2)), run(noisy(1.2)))
    assert (verdicts(found), found.pairs[0].ratio) == (["same"], 1.0)
    changed = Record(case(), Status.OK, None, "e", {**noisy(1.2).numbers, "samples_s": [0.6, 1.2, 2.5]})
    assert verdicts(compare_runs(run(noisy(1.2)), run(changed))) == ["ambiguous"]


def test_what_people_act_on_comes_first() -> None:
    base = run(*(timed(1.0, seed=seed) for seed in range(5)))
    new = run(ended("wrong", seed=0), timed(2.0, seed=1), timed(0.5, seed=2), noisy(1.2, seed=3),
              timed(3.0, seed=4))  # fmt: skip
    found = compare_runs(base, new)
    assert verdicts(found) == ["slower", "slower", "wrong", "ambiguous", "faster"]
    assert [pair.case.seed for pair in found.slower] == [4, 1]
    assert list(found.counts) == ["slower", "wrong", "ambiguous", "faster"]


def calibration(spread: float) -> Any:
    return SimpleNamespace(device="A", created="2026-01-01T00:00:00+00:00", spread=lambda kind: spread)


def test_the_spread_between_processes_is_calibrated_or_assumed_and_named() -> None:
    base, new = run(timed(1.0)), run(timed(1.1))
    assumed = compare_runs(base, new)
    assert verdicts(assumed) == ["slower"]
    assert "2 % assumed, this machine is not calibrated: ssmperf calibrate" in assumed.method
    noisier = compare_runs(base, new, calibration=calibration(0.06))
    assert verdicts(noisier) == ["ambiguous"] and "6 % (A, calibrated 2026-01-01)" in noisier.method
    quieter = compare_runs(base, new, calibration=calibration(0.001), local=lambda device: calibration(1))
    assert (quieter.pairs[0].low or 0) > (assumed.pairs[0].low or 1)


def test_a_run_brings_its_calibration_and_the_machine_has_one_for_its_devices() -> None:
    kinds = {"100us-1ms": {"spread": 0.031, "largest": 0.1, "degrees": 9, "cases": 3, "rounds": 4}}
    own = {
        "format": "ssmperf calibration",
        "schema_version": 1,
        "device": "B",
        "created": "2026-03-01",
        "kinds": kinds,
    }
    hardware = {"cpu": {"model": "C", "cores": 2}, "gpu": {"name": "B"}}
    bare, full = {"e": {"hardware": hardware}}, {"e": {"hardware": hardware, "calibration": own}}
    base, new = run(timed(1.0), environments=bare), run(timed(1.1), environments=full)
    asked: list[str] = []

    def local(device: str) -> Any:
        asked.append(device)
        return calibration(0.044)

    for pair in ((base, new), (new, base)):
        assert "3.1 % (B, calibrated 2026-03-01)" in compare_runs(*pair, local=local).method
    assert asked == []
    assert "4.4 % (A" in compare_runs(base, base_like(base), local=local).method
    assert asked == ["B"]
    damaged = run(timed(1.1), environments={"e": {"calibration": {"format": "something else"}}})
    with pytest.raises(UsageError, match="not a calibration"):
        compare_runs(base, damaged)


def base_like(other: Run) -> Run:
    return Run(other.path, other.meta, [timed(1.1)])


@pytest.mark.parametrize(("device", "assumed"), [("cuda", "4 %"), ("cpu", "25 %")])
def test_a_busy_machine_is_told_and_trusted_less(device: str, assumed: str) -> None:
    record = timed(1.0, device=device)
    loaded = Record(
        record.case, record.status, None, "e", {**record.numbers, "busy": ["load 3.1 on 2 cores"]}
    )
    new = run(timed(1.05, device=device))
    idle, busy = compare_runs(run(record), new), compare_runs(run(loaded), new)
    assert (busy.pairs[0].least_change or 0) > 1.5 * (idle.pairs[0].least_change or 1)
    assert busy.notes == ("the base run's machine was busy: load 3.1 on 2 cores, during 1 of 1 cases",)
    assert f"{assumed} assumed for a busy machine" in busy.method


def rounds(*values: float) -> Record:
    numbers = {"latency_s": float(np.median(values)), "rounds": len(values), "round_values": list(values)}
    return Record(case(), Status.OK, None, "e", numbers)


def test_several_rounds_on_both_sides_count() -> None:
    found = compare_runs(run(rounds(1.0, 1.01, 0.99)), run(rounds(1.08, 1.09, 1.07)))
    assert (verdicts(found), found.pairs[0].rounds) == (["slower"], 3)
    assert found.method.startswith("3 rounds on each side")
    single = compare_runs(run(rounds(1.0, 1.01, 0.99)), run(timed(1.3)))
    assert (verdicts(single), single.pairs[0].rounds) == (["slower"], 1)
    scattered = compare_runs(run(rounds(1.0, 1.3, 0.8)), run(rounds(1.08, 1.4, 0.9)))
    assert verdicts(scattered) == ["ambiguous"]


def verdict_of(verdict: str, ratio: float) -> Any:
    return SimpleNamespace(verdict=verdict, ratio=ratio, low=0.9 * ratio, high=1.1 * ratio, p=0.01,
                           least_change=0.07, pairs=7)  # fmt: skip


def test_verdicts_from_pairs_meet_the_statuses_of_both_sides() -> None:
    base = run(*(timed(1.0, seed=seed) for seed in range(4)))
    new = run(timed(1.0), timed(1.0, seed=1), ended("wrong", seed=2), timed(1.0, seed=3))
    given = {case(seed=0).id: verdict_of("slower", 1.2), case(seed=1).id: verdict_of("same", 1.01)}
    found = compare_pairs(base, new, given, notes=("both sides on one machine",))
    assert verdicts(found) == ["slower", "wrong", "ambiguous", "same"]
    first, _, unpaired, _ = found.pairs
    assert (first.ratio, first.p, first.least_change, first.rounds) == (1.2, 0.01, 0.07, 7)
    assert (unpaired.case.seed, unpaired.reason) == (3, "it was not measured in pairs")
    assert found.notes == ("both sides on one machine",) and found.exit_code == 3


def test_sides_of_pairs_may_differ_in_their_software() -> None:
    other = {"f": {**ENVIRONMENT, "versions": {"torch": "3"}}}
    base, new = run(timed(1.0)), run(timed(1.0, env_id="f"), environments=other)
    found = compare_pairs(base, new, {case().id: verdict_of("slower", 1.2)})
    assert (verdicts(found), found.differences) == (["slower"], ())
    assert found.notes == ("environments differ, compared nevertheless: versions.torch: 2 and 3",)


def test_geometric_means_are_by_suite_and_backend() -> None:
    backends = ("blelloch", "sequential")
    base = run(*(timed(1.0, backend=name, seed=seed) for name in backends for seed in range(2)))
    new = run(timed(2.0, backend="blelloch"), timed(0.5, backend="blelloch", seed=1),
              timed(4.0, backend="sequential"), timed(4.0, backend="sequential", seed=1))  # fmt: skip
    (mean,) = compare_runs(base, new).means.values()
    assert (mean.overall.ratio, mean.overall.cases) == (pytest.approx(2.0), 4)
    assert {name: each.ratio for name, each in mean.backends.items()} == {
        "blelloch": pytest.approx(1.0),
        "sequential": pytest.approx(4.0),
    }


def test_a_comparison_is_a_frame_and_plain_json() -> None:
    found = compare_runs(run(timed(1.0), noisy(1.0, seed=1)), run(timed(2.0), ended("oom", seed=1)))
    table = found.frame()
    assert list(table["verdict"]) == ["slower", "lost"]
    assert {"case_id", "ratio", "p", "least_change", "backend", "shape", "T"} <= set(table.columns)
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (data["exit_code"], data["conclusion"]) == (3, found.conclusion)
    assert data["means"]["throughput"]["cases"] == 1
