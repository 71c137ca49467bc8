"""Steps and creeps: planted ones are found where they are, and noise makes none, counted over many seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from ssmperf.comparison.trends.creep import LEAST_RUNS, Creep, find_creeps
from ssmperf.comparison.trends.noise import SharedNoise, Shuffles
from ssmperf.comparison.trends.steps import ChangePoint, find_changes

Array = npt.NDArray[np.float64]
CASES, RUNS, THRESHOLD = 20, 30, 0.05
Draw = Callable[[np.random.Generator, tuple[int, int]], Array]


def normal(random: np.random.Generator, shape: tuple[int, int]) -> Array:
    return random.normal(0, 0.01, shape)


def heavy(random: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Student's distribution with 3 degrees of freedom, with the median deviation of ±1 %."""
    return 0.01 * random.standard_t(3, shape) / 1.134


def common(random: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Half of the variance is the same for all cases of a run."""
    return random.normal(0, 0.00707, shape) + random.normal(0, 0.00707, (1, shape[1]))


def wide(random: np.random.Generator, shape: tuple[int, int]) -> Array:
    return random.normal(0, 0.04, shape)


NOISES = {"normal": normal, "heavy": heavy, "common": common, "wide": wide}


def numbers(logs: Array) -> list[npt.NDArray[np.intp]]:
    return [np.arange(logs.shape[1])] * len(logs)


def changes_of(logs: Array) -> list[list[ChangePoint]]:
    return find_changes(list(logs), numbers(logs), Shuffles(logs.shape[1])).changes


def steps_of(logs: Array) -> dict[int, list[int]]:
    """Give the places of the steps that are reported, by case."""
    reported = (
        [change.position for change in each if change.reaches(THRESHOLD) and not change.creeps]
        for each in changes_of(logs)
    )
    return {case: places for case, places in enumerate(reported) if places}


def creeps_of(logs: Array, start: int = 0) -> dict[int, Creep]:
    noise = SharedNoise.of([np.diff(each) for each in logs])
    nothing: Sequence[Sequence[int]] = [[]] * len(logs)
    shuffles = Shuffles(logs.shape[1])
    found = find_creeps(list(logs), numbers(logs), [start] * len(logs), nothing, noise, shuffles, THRESHOLD)
    return {case: creep for case, creep in enumerate(found) if creep}


def histories(draw: Draw, count: int, runs: int = RUNS) -> list[Array]:
    return [draw(np.random.default_rng((7, seed)), (CASES, runs)) for seed in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_noise_makes_hardly_any_step(noise: str) -> None:
    """At most 2 % of histories without a change have a step of any size. More than 3 of 20: p < 0.001."""
    alarms = sum(any(changes_of(logs)) for logs in histories(NOISES[noise], 20))
    assert alarms <= 3


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "least"), [("normal", 0.95), ("common", 0.95), ("heavy", 0.88)])
def test_planted_steps_are_found_beside_their_run_and_no_others(noise: str, least: float) -> None:
    right = others = planted = 0
    for seed, logs in enumerate(histories(NOISES[noise], 12)):
        random = np.random.default_rng((8, seed))
        places = {case: int(random.integers(4, RUNS - 3)) for case in range(5)}
        for case, place in places.items():
            logs[case, place:] += random.choice((-1, 1)) * math.log(1.05)
        found = steps_of(logs)
        planted += len(places)
        right += sum(
            len(found.get(case, [])) == 1 and abs(found[case][0] - place) <= 1
            for case, place in places.items()
        )
        others += len(found.keys() - places.keys())
    assert right >= least * planted
    assert others == 0


@pytest.mark.slow
def test_the_size_of_a_step_lies_in_its_interval() -> None:
    inside = total = 0
    for logs in histories(normal, 10):
        logs[:5, 12:] += math.log(1.08)
        for change in (change for each in changes_of(logs)[:5] for change in each):
            total += 1
            inside += change.interval[0] <= math.log(1.08) <= change.interval[1]
    assert total >= 49 and inside >= 0.95 * total


def test_several_steps_of_a_case_are_all_found() -> None:
    logs = histories(normal, 1)[0]
    logs[0, 8:] += 0.06
    logs[0, 20:] -= 0.08
    logs[1, 10:] += 0.05
    logs[1, 20:] += 0.05
    assert steps_of(logs) == {0: [8, 20], 1: [10, 20]}


def test_a_single_odd_run_makes_no_step() -> None:
    for logs in histories(normal, 5):
        logs[:, 14] += 0.3
        logs[:5, -1] += 0.3
        assert steps_of(logs) == {}


@pytest.mark.slow
def test_a_step_is_placed_by_a_few_runs_after_it() -> None:
    found = 0
    for logs in histories(normal, 20):
        logs[3, -4:] += math.log(1.08)
        found += steps_of(logs) == {3: [RUNS - 4]}
    assert found >= 18


def test_a_step_that_certainly_is_smaller_than_the_threshold_is_not_reported() -> None:
    for logs in histories(normal, 5):
        logs[0, 15:] += math.log(1.025)
        changes = changes_of(logs)[0]
        assert len(changes) == 1 and steps_of(logs) == {}
        assert changes[0].reaches(0.02)


@pytest.mark.slow
def test_a_creep_is_no_step_but_a_staircase_is() -> None:
    for slope, start in ((0.005, 0), (0.01, 0), (0.01, 10)):
        for logs in histories(normal, 5):
            logs[0] += slope * np.maximum(0, np.arange(RUNS) - start)
            assert 0 not in steps_of(logs)
            assert any(change.creeps for change in changes_of(logs)[0])


def test_the_unit_does_not_matter_and_the_direction_is_kept() -> None:
    logs = histories(normal, 1)[0]
    logs[0, 12:] += 0.07
    up, down = changes_of(logs)[0][0], changes_of(5.0 - logs)[0][0]
    assert up.position == down.position == 12
    assert up.size == pytest.approx(-down.size) and up.size > 0


def test_cases_that_lack_some_runs_keep_their_own_count() -> None:
    logs = histories(normal, 1)[0]
    kept = np.array([run for run in range(RUNS) if run not in (3, 4, 17)])
    values = [logs[0][kept] + 0.08 * (kept >= 12), *logs[1:]]
    runs = [kept, *numbers(logs)[1:]]
    changes = find_changes(values, runs, Shuffles(RUNS)).changes
    assert [change.position for change in changes[0]] == [int(np.searchsorted(kept, 12))]


@pytest.mark.parametrize("runs", [1, 2, 5, 6])
def test_short_and_constant_histories(runs: int) -> None:
    assert changes_of(np.zeros((3, runs))) == [[], [], []]
    assert changes_of(normal(np.random.default_rng(0), (1, runs))) == [[]]
    assert creeps_of(np.zeros((2, runs))) == {}


def test_a_constant_number_that_changes_once_is_a_step() -> None:
    """Bytes of memory, which have no noise."""
    logs = np.zeros((4, 14))
    logs[1, 6:] = math.log(1.1)
    assert steps_of(logs) == {1: [6]}


@pytest.mark.slow
def test_flat_runs_raise_no_alarm() -> None:
    """At most 2 % of flat histories, and fewer at ±1 %, where a rise by 2.5 % over 30 runs is no noise."""
    assert sum(bool(creeps_of(logs)) for logs in histories(normal, 50)) <= 1
    assert sum(bool(creeps_of(logs)) for logs in histories(wide, 30)) <= 4


@pytest.mark.slow
def test_nightly_looks_at_flat_runs_seldom_raise_an_alarm() -> None:
    """21 looks at 20 cases: about 8 % of histories."""
    raised = sum(
        any(creeps_of(logs[:, :runs]) for runs in range(LEAST_RUNS, RUNS + 1))
        for logs in histories(normal, 6)
    )
    assert raised <= 3


@pytest.mark.slow
def test_a_slow_creep_raises_the_alarm_by_the_tenth_run() -> None:
    tenth = twelfth = 0
    for logs in histories(normal, 30, runs=12):
        logs[4] += 0.005 * np.arange(12)
        seen = [4 in creeps_of(logs[:, :runs]) for runs in (10, 11, 12)]
        tenth += seen[0]
        twelfth += any(seen)
    assert tenth >= 0.75 * 30
    assert twelfth >= 0.9 * 30


def test_within_one_percent_a_slow_creep_always_raises_the_alarm_by_the_tenth_run() -> None:
    for seed in range(20):
        logs = np.random.default_rng((9, seed)).uniform(-0.01, 0.01, (CASES, 10))
        logs[4] += 0.005 * np.arange(10)
        assert 4 in creeps_of(logs)


def test_a_creep_has_its_rise() -> None:
    for logs in histories(normal, 10, runs=60):
        logs[2] += 0.005 * np.maximum(0, np.arange(60) - 30)
        creep = creeps_of(logs)[2]
        assert abs(creep.rise - 0.145) < 0.03 and creep.position in (0, 30)


@pytest.mark.slow
def test_a_creep_that_begins_late_is_found_in_a_long_history() -> None:
    found = 0
    for logs in histories(normal, 10, runs=160):
        logs[2] += 0.004 * np.maximum(0, np.arange(160) - 148)
        found += creeps_of(logs).keys() == {2}
    assert found >= 9


def test_what_becomes_faster_raises_no_alarm() -> None:
    for logs in histories(normal, 5):
        logs[:3] -= 0.005 * np.arange(RUNS)
        assert creeps_of(logs) == {}


def test_runs_before_the_baseline_do_not_count() -> None:
    logs = histories(normal, 1)[0]
    logs[1] += 0.005 * np.minimum(np.arange(RUNS), 12)
    assert 1 in creeps_of(logs) and creeps_of(logs, start=13) == {}
    logs[2, 15:] += 0.005 * np.arange(RUNS - 15)
    assert 2 in creeps_of(logs, start=13)
