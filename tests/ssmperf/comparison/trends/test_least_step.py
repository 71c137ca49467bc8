"""What a history could have found: steps of the least size are found in about the share that is promised."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.processes.command_line import Call, caller
from support.results.histories import write
from support.results.pages import Page

import ssmperf
from ssmperf.comparison.trends.least_step import FEWEST_RUNS, least_steps
from ssmperf.comparison.trends.noise import Shuffles
from ssmperf.comparison.trends.steps import HistorySteps, find_changes
from ssmperf.suitekit import registry

Array = npt.NDArray[np.float64]
NOISE = 0.03


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(monkeypatch, capsys)


def drawn(cases: int, runs: int, *seed: int, tails: bool = False) -> Array:
    random = np.random.default_rng((cases, runs, *seed))
    if tails:
        return np.asarray(NOISE * random.standard_t(4, (cases, runs)) / 1.09)  # of the same median deviation
    return random.normal(0, NOISE, (cases, runs))


def found(logs: Array) -> HistorySteps:
    runs = logs.shape[1]
    return find_changes(list(logs), [np.arange(runs)] * len(logs), Shuffles(runs))


def shares(cases: int, runs: int, factors: tuple[float, ...], *, tails: bool = False) -> list[float]:
    """Plant steps of the first case's least size, times a factor, into fresh noise; count what is found."""
    hits, total = np.zeros(len(factors)), 0
    for seed in range(12):
        (size, *_) = least_steps(found(drawn(cases, runs, seed, tails=tails)), 0.0)
        for again in range(3):
            if size is None:
                continue
            total += 1
            for place, factor in enumerate(factors):
                logs = drawn(cases, runs, seed, 1 + again, tails=tails)
                logs[0, runs // 2 :] += factor * size
                hits[place] += any(not step.creeps for step in found(logs).changes[0])
    assert total > 20
    return [float(each) for each in hits / total]


@pytest.mark.slow(but=("1-10",))
@pytest.mark.parametrize(("cases", "runs"), [(1, 10), (1, 14), (4, 12), (3, 17)])
def test_steps_of_the_least_size_are_found_four_times_in_five(cases: int, runs: int) -> None:
    """At 80 %, fewer than 22 of 36 have a chance below 1 %; half of the size is found less often."""
    half, least = shares(cases, runs, (0.5, 1.0))
    assert least >= 22 / 36 and half <= least - 0.25


@pytest.mark.slow
def test_heavy_tails_take_little_from_the_share() -> None:
    (least,) = shares(4, 14, (1.0,), tails=True)
    assert least >= 0.55


@pytest.mark.parametrize("runs", [1, 2, 5, 6, FEWEST_RUNS - 1])
def test_with_too_few_runs_no_step_of_any_size_is_promised_nor_found_often(runs: int) -> None:
    assert least_steps(found(drawn(3, runs)), 0.05) == [None] * 3
    hits = 0
    for seed in range(15):
        logs = drawn(1, runs, seed)
        logs[0, runs // 2 :] += 5.0
        hits += bool(found(logs).changes[0])
    assert hits < 12


def test_the_fewest_runs_find_a_step_that_is_large_enough() -> None:
    assert least_steps(found(drawn(1, FEWEST_RUNS)), 0.05) != [None]


def test_more_noise_hides_more_and_more_runs_hide_less() -> None:
    def size(runs: int, factor: float = 1.0) -> float:
        (found_,) = least_steps(found(factor * drawn(1, runs)), 0.0)
        assert found_ is not None
        return found_

    assert size(12, 3.0) == pytest.approx(3 * size(12))
    assert size(12) > size(24) > size(90)


def test_none_is_below_the_threshold() -> None:
    sizes = least_steps(found(drawn(4, 12) / 100), 0.05)
    assert sizes == [pytest.approx(math.log(1.05))] * 4


def test_noise_beyond_all_reason_promises_nothing() -> None:
    assert least_steps(found(1000 * drawn(1, 12)), 0.05) == [None]


def test_every_form_says_what_could_have_been_found(tmp_path: Path, call: Call) -> None:
    write(tmp_path, runs=12, count=3, noise=0.25)
    history = ssmperf.history(tmp_path)
    text = history.could_have_found
    assert text.startswith("12 runs: could have found a step from ") and "80 %" in text
    code, out, _ = call("history", tmp_path)
    assert code == 0 and out.splitlines()[-2] == text
    data = json.loads(call("history", tmp_path, "--json")[1])
    assert data["could_have_found"] == text
    assert [each["least_step"] for each in data["cases"]] == [each.least_step for each in history.cases]
    assert all(each["least_step"] > 1.2 for each in data["cases"])
    page = Page(str(registry.report("html", "history")(history, None)))
    assert f"{text}." in page.texts and sum("could overlook steps below " in each for each in page.texts) == 3


def test_five_runs_are_too_few_and_it_says_so(tmp_path: Path, call: Call) -> None:
    write(tmp_path, runs=5, count=2, shifts={0: lambda run: 0.3 * (run > 2)})
    code, out, _ = call("history", tmp_path)
    assert code == 0 and "5 runs: could have found no step of any size (too few, it takes 9)" in out
    data = json.loads(call("history", tmp_path, "--json")[1])
    assert [each["least_step"] for each in data["cases"]] == [None, None]


def test_a_case_that_has_fewer_runs_is_told_apart(tmp_path: Path, call: Call) -> None:
    for number, path in enumerate(write(tmp_path, runs=12, count=3)):
        if number < 8:
            lines = (path / "records.jsonl").read_text().splitlines(keepends=True)
            (path / "records.jsonl").write_text("".join(lines[:2]))
    out = call("history", tmp_path)[1]
    assert "4 to 12 runs: could have found a step from" in out
    assert ", and none of any size in 1 case with too few runs" in out
    assert out.count("could overlook any step") == 1
