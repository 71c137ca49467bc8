"""No cheat ends with a time that its honest twin does not reach, and none changes its neighbour."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cheats import NEIGHBOUR, TABLE, WRONG, Cheat
from cheats.run import Outcome, confirmed, run_cheats

FOLDER = Path(__file__).parent
ON_CPU = [cheat for cheat in TABLE if cheat.device == "cpu"]
ON_GPU = [cheat for cheat in TABLE if cheat.device == "cuda"]


def by_name(cheats: Sequence[Cheat], timeout: float) -> dict[str, Outcome]:
    return {outcome.cheat.name: outcome for outcome in run_cheats(cheats, timeout=timeout)}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """Run the cheats of a CPU, several in each run."""
    return by_name(ON_CPU, timeout=30)


@pytest.fixture(scope="module")
def outcomes_on_a_gpu() -> dict[str, Outcome]:
    return by_name(ON_GPU, timeout=120)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [cheat.name for cheat in ON_CPU])
def test_a_cheat_gains_nothing(name: str, outcomes: dict[str, Outcome]) -> None:
    assert confirmed(outcomes[name], timeout=30) == []


@pytest.mark.gpu
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", [cheat.name for cheat in ON_GPU])
def test_a_cheat_on_a_gpu_gains_nothing(name: str, outcomes_on_a_gpu: dict[str, Outcome]) -> None:
    assert confirmed(outcomes_on_a_gpu[name], timeout=120) == []


def record(status: str = "ok", seconds: float | None = None, **more: Any) -> dict[str, Any]:
    return {"status": status, "reason": None, "latency_s": seconds, **more}


HONEST = Cheat("some", "some class", "some.py")
JUDGED: dict[str, tuple[Outcome, str | None]] = {
    "as fast as its twin": (Outcome(HONEST, record(seconds=0.9), record(seconds=1.0), None), None),
    "faster than its twin": (Outcome(HONEST, record(seconds=0.6), record(seconds=1.0), None), "0.60 of"),
    "wrong": (Outcome(HONEST, record("wrong"), record(seconds=1.0), None), None),
    "without a record": (Outcome(HONEST, None, record(seconds=1.0), None), "no record"),
    "beside a twin that failed": (Outcome(HONEST, record("wrong"), record("crash"), None), "twin is crash"),
    "honest about its preparation": (
        Outcome(HONEST, record(seconds=0.1, prepare_s=0.9), record(seconds=1.0), None),
        None,
    ),
    "ok though it must not be": (
        Outcome(replace(HONEST, must=WRONG), record(seconds=1.0), record(seconds=1.0), None),
        "it is ok",
    ),
    "a slow neighbour": (
        Outcome(
            replace(HONEST, must=NEIGHBOUR, neighbour=True),
            record(seconds=0.1),
            record(seconds=1.0),
            record(seconds=4.0),
        ),
        "neighbour takes 4.00",
    ),
    "a neighbour that failed": (
        Outcome(replace(HONEST, neighbour=True), record("wrong"), record(seconds=1.0), record("crash")),
        "neighbour is crash",
    ),
    "a neighbour as alone": (
        Outcome(replace(HONEST, neighbour=True), record("wrong"), record(seconds=1.0), record(seconds=1.5)),
        None,
    ),
}


@pytest.mark.parametrize("what", JUDGED)
def test_an_outcome_is_judged_by_twin_and_neighbour(what: str) -> None:
    outcome, problem = JUDGED[what]
    assert len(outcome.problems()) == (problem is not None)
    assert problem is None or problem in outcome.problems()[0]


def test_the_table_lists_each_registered_cheat_once() -> None:
    listed = [(cheat.file, cheat.name) for cheat in TABLE]
    registered = [
        (file.name, name)
        for file in FOLDER.glob("*.py")
        for name in re.findall(r'@cheat\(\s*"(\w+)"|name="cheat_(\w+)"', file.read_text())
    ]
    assert sorted(listed) == sorted((file, name or native) for file, (name, native) in registered)


def test_the_document_of_threats_names_every_cheat() -> None:
    text = (FOLDER.parents[1] / "docs" / "threats.md").read_text()
    named = re.findall(r"`([\w*]+)`", text)
    missing = [each.name for each in TABLE if not any(fnmatch.fnmatch(each.name, name) for name in named)]
    assert missing == []


SLOW_NEIGHBOUR = replace(HONEST, neighbour=True)
CHANCE: dict[str, tuple[Outcome, bool]] = {
    "a little faster": (Outcome(HONEST, record(seconds=0.5), record(seconds=1.0), None), True),
    "ten times faster": (Outcome(HONEST, record(seconds=0.1), record(seconds=1.0), None), False),
    "a slow neighbour": (
        Outcome(SLOW_NEIGHBOUR, record(seconds=1.0), record(seconds=1.0), record(seconds=5.0)),
        True,
    ),
    "a neighbour 20 times slower": (
        Outcome(SLOW_NEIGHBOUR, record(seconds=1.0), record(seconds=1.0), record(seconds=20.0)),
        False,
    ),
    "a wrong neighbour": (
        Outcome(SLOW_NEIGHBOUR, record(seconds=1.0), record(seconds=1.0), record("wrong")),
        False,
    ),
    "ok, but it must be wrong": (
        Outcome(replace(HONEST, must=WRONG), record(seconds=1.0), record(seconds=1.0), None),
        False,
    ),
    "a wrong twin": (Outcome(HONEST, record(seconds=1.0), record("wrong"), None), False),
}


@pytest.mark.parametrize("name", CHANCE)
def test_only_times_that_are_not_far_off_may_be_chance(name: str) -> None:
    outcome, expected = CHANCE[name]
    assert outcome.problems()
    assert outcome.may_be_chance is expected


def test_what_may_be_chance_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cheat that gains each time is found; one that seems to gain once, on a busy machine, is not."""
    fast, fair = (Outcome(HONEST, record(seconds=s), record(seconds=1.0), None) for s in (0.5, 1.0))
    for again, problems in ((fast, 1), (fair, 0)):
        monkeypatch.setattr("cheats.run.run_cheats", lambda *_, _again=again, **__: [_again])
        assert len(confirmed(fast, timeout=1)) == problems
