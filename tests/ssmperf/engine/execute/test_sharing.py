"""Workers that share a device: each case has one record, as if it had run alone."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ssmperf import Case, Record, Shape, Status
from ssmperf.engine.execute.executor import LocalExecutor
from ssmperf.engine.execute.lane import Events, Groups
from ssmperf.engine.execute.request import select
from ssmperf.engine.machine import devices
from ssmperf.engine.plan.estimate import GROUPS, expected_s, may_share, workers_for
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.plan.run_options import RunOptions
from ssmperf.engine.registry.presets import PRESETS
from ssmperf.suitekit import registry

PLUGIN = Path(__file__).parents[3] / "support" / "plugins" / "hostile.py"
WORKERS = 2
STARVED = ("lacks_memory_once", "lacks_memory")


def case(backend: str, T: int, suite: str = "correctness") -> Case:
    return Case(
        suite=suite,
        model="hgrn",
        recurrence="scan",
        backend=backend,
        shape=Shape(B=1, T=T, C=2),
        device="cpu",
    )


@dataclass
class Seen:
    """What a run reports, in its order."""

    records: list[Record] = field(default_factory=list)
    starts: list[tuple[Case, int]] = field(default_factory=list)  # with the thread
    environments: list[tuple[str, Any]] = field(default_factory=list)

    def on_environment(self, env_id: str, environment: Mapping[str, Any]) -> None:
        self.environments.append((env_id, environment["ceilings"]))

    def on_start(self, case: Case, device: str) -> None:
        self.starts.append((case, threading.get_ident()))

    def of(self, backend: str) -> list[Record]:
        return [record for record in self.records if record.case.backend == backend]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def seen(folder: Path) -> Iterator[Seen]:
    """Run cases by workers that share the CPU: right ones, some that fail once or always, and timed ones."""
    groups = GROUPS * WORKERS
    cases = [case("sequential", 4, "throughput"), case("sequential", 5, "throughput")]
    cases += [case("sequential", T) for T in range(4, 4 + groups)]
    cases += [case(f"hostile_{name}", 40 + T) for T, name in enumerate((*STARVED, "is_off_once"))]
    quick = replace(PRESETS["smoke"], min_time_s=0.001, max_time_s=0.01)
    executor = LocalExecutor(
        ("cpu",), folder, quick, RunOptions(timeout=30.0), (str(PLUGIN),), workers=WORKERS
    )
    found = Seen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOSTILE_FOLDER", str(folder))
        executor.run(cases, Events(found.on_environment, found.on_start, found.records.append))
    assert Counter(record.case.id for record in found.records) == Counter(each.id for each in cases)
    yield found


@pytest.mark.slow
def test_they_run_beside_each_other_in_one_environment(seen: Seen, folder: Path) -> None:
    sharing = {thread for each, thread in seen.starts if each.suite == "correctness"}
    assert len(sharing) >= WORKERS
    assert len(list(folder.glob("worker-cpu-*.log"))) == WORKERS
    assert all(each == seen.environments[0] for each in seen.environments)  # ceilings were measured once
    assert all(record.status is Status.OK for record in seen.of("sequential"))


@pytest.mark.slow
def test_a_suite_that_times_has_the_device_to_itself(seen: Seen) -> None:
    """Its cases come first in the plan, but run after the others, by one worker."""
    suites = [record.case.suite for record in seen.records if record.case.backend == "sequential"]
    assert suites == sorted(suites)
    assert suites.count("throughput") == 2
    assert {thread for each, thread in seen.starts if each.suite == "throughput"} == {threading.get_ident()}


@pytest.mark.slow
def test_a_case_that_lacks_memory_beside_others_is_repeated_alone(seen: Seen) -> None:
    started = Counter(each.backend for each, _ in seen.starts)
    for name, status in zip(STARVED, (Status.OK, Status.OOM), strict=True):
        assert [record.status for record in seen.of(f"hostile_{name}")] == [status]
        assert started[f"hostile_{name}"] == 2


@pytest.mark.slow
def test_a_case_that_is_wrong_once_stays_wrong(seen: Seen) -> None:
    assert [record.status for record in seen.of("hostile_is_off_once")] == [Status.WRONG]


def test_a_lane_goes_on_with_the_kernels_that_it_has() -> None:
    """Two lanes take turns: each begins kinds of its own, and helps with the other's at the end."""
    cases = [case(backend, T) for T in (1, 2, 3) for backend in ("a", "b")] + [case("b", 4), case("b", 5)]
    groups, taken = Groups([[each] for each in cases], lambda each: each.backend), {0: [], 1: []}
    last: dict[int, Sequence[Case]] = {0: (), 1: ()}
    for turn in range(len(cases)):
        last[turn % 2] = groups.take(last[turn % 2])
        taken[turn % 2] += [f"{each.backend}{each.shape['T']}" for each in last[turn % 2]]
    assert taken == {0: ["a1", "a2", "a3", "b4"], 1: ["b1", "b2", "b3", "b5"]}
    assert groups.take(last[0]) == ()


def test_one_lane_keeps_the_order() -> None:
    cases = [case(backend, T) for T in (1, 2) for backend in ("a", "b")]
    groups, last = Groups([[each] for each in cases]), ()
    for each in cases:
        last = groups.take(last)
        assert list(last) == [each]


@pytest.mark.parametrize(
    ("backend", "chosen", "shares"),
    [
        ("triton", {"models": "gla"}, True),
        ("blelloch", {"models": "gla"}, False),  # all states and what is kept of them: 13 GiB
        ("blelloch", {"models": "linear_attention", "regime": "sigmoid/key", "preset": "smoke"}, True),
        ("blelloch", {"models": "linear_attention", "regime": "analytic"}, True),
    ],
)
def test_a_call_that_needs_much_memory_has_the_device_to_itself(
    backend: str, chosen: dict[str, Any], shares: bool
) -> None:
    selection, _ = select(device="cuda", planning=True, backends=backend, **chosen)
    cases = make_plan(selection, ["correctness"]).to_run
    assert cases and {may_share(each) for each in cases} == {shares}
    assert not any(may_share(replace(each, suite="throughput")) for each in cases)


def test_few_cases_are_not_worth_more_workers() -> None:
    many = [case("sequential", T) for T in range(1, 1 + 2 * GROUPS)]
    assert workers_for(many[: 2 * GROUPS - 1], 8) == 1
    assert workers_for(many, 8) == 2
    assert workers_for(many, 1) == 1
    assert workers_for([replace(many[0], backend=name) for name in ("a", "b") for _ in range(99)], 8) == 1


def test_the_forecast_counts_workers_where_cases_share_a_device() -> None:
    many = [case("sequential", T) for T in range(1, 1 + 4 * GROUPS)]
    alone = [replace(each, suite="throughput") for each in many]
    assert expected_s(many, workers=4) < expected_s(many, workers=2) < expected_s(many)
    assert expected_s(alone, workers=4) == expected_s(alone)
    assert not registry.suite("throughput").shares_device


def test_a_plan_for_a_gpu_that_is_not_here_assumes_several_workers() -> None:
    assert devices.describe("cuda", ["cuda:0"], planning=True).workers > 1
    assert devices.describe("cpu", ["cpu"]).workers == 1
