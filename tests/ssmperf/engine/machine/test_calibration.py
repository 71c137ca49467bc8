"""A calibration bounds the noise between processes from above, whatever its shape, and its files are data."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.machine import calibration, spread
from ssmperf.engine.machine.calibration import Calibration, CalibrationSession, kind_of
from ssmperf.engine.machine.spread import LEAST_OF_ONE_SESSION, estimate
from ssmperf.errors import UnreadableRun, UsageError

Array = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, int, int], list[Array]]
TRIALS = 150
GAP = 0.06  # between two sticky states, in logs


def normal(sd: float) -> Noise:
    return lambda rng, sessions, n, cases: [rng.normal(0, sd, (n, cases)) for _ in range(sessions)]


def shared(rng: np.random.Generator, sessions: int, n: int, cases: int) -> list[Array]:
    """All cases of a round have the same noise of ±2 %."""
    return [rng.normal(0, 0.02, (n, 1)) + rng.normal(0, 0.001, (n, cases)) for _ in range(sessions)]


def drifting(rng: np.random.Generator, sessions: int, n: int, cases: int) -> list[Array]:
    """Rounds vary by ±1 %, and every case by another ±1 % from session to session."""
    return [rng.normal(0, 0.01, (n, cases)) + rng.normal(0, 0.01, cases) for _ in range(sessions)]


def sticky(stay: float) -> Noise:
    """Each case is in one of two states, and keeps it with a probability from round to round."""

    def draw(rng: np.random.Generator, sessions: int, n: int, cases: int) -> list[Array]:
        found = []
        for _ in range(sessions):
            states = [rng.integers(0, 2, cases)]
            while len(states) < n:
                states.append(np.where(rng.random(cases) < stay, states[-1], rng.integers(0, 2, cases)))
            found.append(GAP * np.array(states) + rng.normal(0, 0.003, (n, cases)))
        return found

    return draw


def lasting(rng: np.random.Generator, sessions: int, n: int, cases: int) -> list[Array]:
    """Noise of ±2 % that resembles that of the round before: AR(1) with 0.8."""
    found = []
    for _ in range(sessions):
        values = [rng.normal(0, 0.02, cases)]
        while len(values) < n:
            values.append(0.8 * values[-1] + rng.normal(0, 0.02 * 0.6, cases))
        found.append(np.array(values))
    return found


def one_sticky(rng: np.random.Generator, sessions: int, n: int, cases: int) -> list[Array]:
    """One case of several is in one of two states, the others vary by ±0.5 %."""
    quiet = normal(0.005)(rng, sessions, n, cases)
    for session, states in zip(quiet, sticky(0)(rng, sessions, n, 1), strict=True):
        session[:, 0] = states[:, 0]
    return quiet


ROWS = [
    # noise, true standard deviation, sessions, rounds, cases, least share of trials that must be covered
    ("normal 1 %", normal(0.01), 0.01, 1, 10, 3, 0.88),
    ("normal 4 %", normal(0.04), 0.04, 1, 10, 6, 0.88),
    ("normal 4 %, four rounds", normal(0.04), 0.04, 1, 4, 3, 0.88),
    ("normal 4 %, two rounds", normal(0.04), 0.04, 1, 2, 3, 0.85),
    ("normal 4 %, one case", normal(0.04), 0.04, 1, 10, 1, 0.85),
    ("the same for all cases", shared, 0.02, 1, 10, 6, 0.85),
    ("sticky", sticky(0), GAP / 2, 1, 10, 3, 0.95),
    ("sticky for long", sticky(0.9), GAP / 2, 4, 10, 4, 0.95),
    ("one sticky case", one_sticky, GAP / 2, 1, 10, 6, 0.6),
    ("lasting", lasting, 0.02, 1, 10, 6, 0.85),
    ("drift", drifting, 0.01 * math.sqrt(2), 4, 10, 4, 0.85),
]


@pytest.mark.parametrize(("noise", "truth", "sessions", "n", "cases", "least"),
                         [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])  # fmt: skip
def test_the_bound_covers_the_truth(
    noise: Noise, truth: float, sessions: int, n: int, cases: int, least: float
) -> None:
    rng = np.random.default_rng(7)
    found = [estimate([noise(rng, sessions, n, cases)]).spread for _ in range(TRIALS)]
    assert np.mean(np.array(found) >= truth) >= least


@pytest.mark.parametrize("sd", [0.01, 0.04])
def test_with_enough_rounds_the_bound_is_not_wide(sd: float) -> None:
    rng = np.random.default_rng(7)
    found = [estimate([normal(sd)(rng, 1, 10, 6)]).spread / sd for _ in range(TRIALS)]
    assert np.median(found) < 1.5 and np.quantile(found, 0.95) < 2
    several = [estimate([normal(sd)(rng, 4, 10, 4)]).spread / sd for _ in range(TRIALS)]
    assert np.median(several) < 1.4


def test_fewer_rounds_give_a_wider_bound() -> None:
    rng = np.random.default_rng(7)
    widths = [
        np.median([estimate([normal(0.04)(rng, 1, n, 3)]).spread for _ in range(TRIALS)]) for n in (3, 5, 20)
    ]
    assert widths[0] > 1.3 * widths[1] > 1.3 * widths[2]


@pytest.mark.parametrize("stay", [0.0, 0.9])
def test_two_states_that_were_seen_raise_no_alarm(stay: float) -> None:
    """The seen difference between the states stays below the threshold of a comparison of 20 cases."""
    rng = np.random.default_rng(7)
    for _ in range(TRIALS):
        found = estimate([sticky(stay)(rng, 1, 10, 4)])
        assert math.log1p(found.threshold(20)) >= 0.999 * found.largest


def test_sessions_that_differ_are_noise_unless_the_software_changed() -> None:
    rng = np.random.default_rng(7)
    first, second = normal(0.005)(rng, 2, 10, 4)
    together, apart = estimate([[first, second + 0.1]]), estimate([[first], [second + 0.1]])
    assert together.spread > 0.05 and together.largest > 0.09
    assert apart.spread < 0.02 and apart.largest < 0.05
    assert (together.cases, together.rounds) == (4, 20)


def test_one_session_is_not_trusted_below_a_floor() -> None:
    rng = np.random.default_rng(7)
    sessions = normal(0.001)(rng, 3, 10, 4)
    assert estimate([sessions[:1]]).spread == LEAST_OF_ONE_SESSION
    assert estimate([sessions]).spread < 0.5 * LEAST_OF_ONE_SESSION


def test_degenerate_rounds() -> None:
    constant = estimate([[np.zeros((5, 2))]])
    assert (constant.spread, constant.largest) == (LEAST_OF_ONE_SESSION, 0.0)
    hole = np.array([[0.0, np.nan], [0.1, np.nan], [np.nan, 0.3]])
    assert estimate([[hole]]).cases == 1
    with pytest.raises(ValueError, match="two rounds"):
        estimate([[np.array([[0.1, np.nan], [np.nan, 0.2]])]])
    once = estimate([[np.array([[0.0]]), np.array([[0.04]])]])  # two sessions of one round
    assert once.largest == 0.04 and once.spread > 0.04


def test_the_threshold_grows_with_the_cases_compared() -> None:
    found = spread.Spread(0.02, 0.05, 9, 3, 10)
    assert found.threshold(1) == pytest.approx(math.expm1(1.6449 * math.sqrt(2) * 0.02), rel=1e-4)
    assert found.threshold(1) < found.threshold(6) < found.threshold(20) < found.threshold(300)


@pytest.mark.parametrize(
    ("latency_s", "issue_s", "kind"),
    [
        (9e-6, None, "<10us"),
        (1e-5, None, "10-100us"),
        (5e-4, 4e-4, "100us-1ms"),
        (5e-4, 6e-4, "100us-1ms host"),
        (0.05, None, "10-100ms"),
        (3.0, None, ">100ms"),
        (None, 1e-3, "unknown"),
        (float("nan"), None, "unknown"),
        ("fast", None, "unknown"),
    ],
)
def test_kinds(latency_s: Any, issue_s: float | None, kind: str) -> None:
    assert kind_of({"latency_s": latency_s, "issue_s": issue_s}) == kind
    assert kind == "unknown" or kind in calibration.KINDS


def case(seed: int) -> Case:
    return Case("throughput", "scan", "sequential", Shape(B=1, T=8, C=2), seed=seed)


def rounds(logs: dict[int, Array], issue_s: float | None = None) -> dict[str, tuple[Record, ...]]:
    """Make the rounds of cases as a run has them, from their log medians."""
    return {
        case(seed).id: tuple(
            Record(
                case(seed), Status.OK, None, "e", {"latency_s": math.exp(x), "round": i, "issue_s": issue_s}
            )
            for i, x in enumerate(values)
        )
        for seed, values in logs.items()
    }


def measured(base_s: float, sd: float = 0.02, *, seed: int = 0, n: int = 10) -> dict[int, Array]:
    rng = np.random.default_rng(seed)
    return {number: math.log(base_s) + rng.normal(0, sd, n) for number in range(1, 4)}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SSMPERF_CALIBRATION", str(tmp_path / "calibration"))
    yield tmp_path / "calibration"


def test_rounds_become_kinds() -> None:
    logs = {**measured(3e-4), **{n + 10: x for n, x in measured(0.02).items()}}
    found = Calibration.of_rounds("X", rounds(logs))
    assert list(found.kinds) == ["100us-1ms", "10-100ms"]
    assert found.kinds["10-100ms"].cases == 3 and 0.015 < found.spread("10-100ms") < 0.06
    host = Calibration.of_rounds("X", rounds(measured(3e-4), issue_s=1e-3))
    assert list(host.kinds) == ["100us-1ms host"]


def test_a_failed_round_is_left_out_and_one_round_is_not_enough() -> None:
    (case_id, good), *_ = rounds(measured(3e-4)).items()
    bad = Record(case(1), Status.WRONG, "off", "e", {"round": 4})
    session = CalibrationSession.of({case_id: (*good[:4], bad, *good[5:])}, "s")
    assert [math.isnan(x) for x in session.cases[case_id].logs] == [i == 4 for i in range(10)]
    with pytest.raises(UsageError, match="two rounds"):
        CalibrationSession.of({case_id: (good[0], bad)}, "s")


def test_a_kind_that_was_not_measured_has_a_neighbours_spread() -> None:
    known = {"<10us": 0.05, "100us-1ms": 0.03, "10-100ms": 0.01, "10-100us host": 0.08}
    kinds = {kind: spread.Spread(sd, 0.1, 9, 3, 10) for kind, sd in known.items()}
    found = Calibration("X", "now", kinds)
    assert found.spread("100us-1ms") == 0.03
    assert found.spread("10-100us") == 0.05  # two are equally near: the larger
    assert found.spread(">100ms") == 0.01
    assert found.spread("1-10ms host") == 0.08
    assert found.spread("unknown") == 0.08
    device_only = Calibration("X", "now", {"10-100ms": kinds["10-100ms"]})
    assert device_only.spread("10-100ms host") == 0.01


def test_sessions_accumulate_in_the_file_and_the_oldest_go() -> None:
    assert calibration.load_for("A GPU/1") is None
    for number in range(10):
        given = Calibration.of_rounds("A GPU/1", rounds(measured(3e-4, seed=number)), software="1")
        merged = calibration.save(given)
        assert len(merged.sessions) == min(number + 1, calibration.MOST_SESSIONS)
    loaded = calibration.load_for("A GPU/1")
    assert loaded is not None and loaded.kinds == merged.kinds
    assert loaded.sessions[-1].cases == given.sessions[0].cases
    assert loaded.kinds["100us-1ms"].rounds == 80
    assert calibration.load_for("A GPU 1") is None  # its file has another hash
    assert not list(calibration.folder().glob("*.tmp"))


def test_drift_between_sessions_widens_the_spread() -> None:
    before = calibration.save(Calibration.of_rounds("X", rounds(measured(3e-4)), software="1"))
    later = calibration.save(Calibration.of_rounds("X", rounds(measured(3.6e-4, seed=1)), software="1"))
    assert later.spread("100us-1ms") > 2 * before.spread("100us-1ms")
    assert later.kinds["100us-1ms"].largest > 0.18


def test_the_copy_in_a_run_has_no_sessions_and_reads_back() -> None:
    made = Calibration.of_rounds("X", rounds(measured(3e-4)))
    data = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert "sessions" not in data
    assert Calibration.from_json(data) == dataclasses.replace(made, sessions=())


def good_json() -> dict[str, Any]:
    made = Calibration.of_rounds("X", rounds(measured(3e-4)))
    return {**made.to_json(), "sessions": [session.to_json() for session in made.sessions]}


DAMAGED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda data: [data],
    "no format": lambda data: {**data, "format": None},
    "another format": lambda data: {**data, "format": "hypothesis"},
    "newer": lambda data: {**data, "schema_version": 99},
    "no version": lambda data: {**data, "schema_version": "1"},
    "no kinds": lambda data: {**data, "kinds": {}},
    "kinds are a list": lambda data: {**data, "kinds": [1]},
    "an unknown kind": lambda data: {**data, "kinds": {"<script>": data["kinds"]["100us-1ms"]}},
    "a text for a number": lambda data: {**data, "kinds": {"1-10ms": {"spread": "exit()"}}},
    "a missing number": lambda data: {**data, "kinds": {"1-10ms": {"spread": 0.1}}},
    "not a number": lambda data: changed_kind(data, math.nan),
    "a negative spread": lambda data: changed_kind(data, -0.1),
    "an integer beyond floats": lambda data: changed_kind(data, 10**400),
    "a device that is no text": lambda data: {**data, "device": 3},
    "a session that is no object": lambda data: {**data, "sessions": [3]},
    "sessions that are no list": lambda data: {**data, "sessions": {}},
    "a round that is a text": lambda data: {
        **data,
        "sessions": [
            {
                "created": "",
                "software": None,
                "cases": {"a": {"kind": "<10us", "log_s": ["__import__('os')"]}},
            }
        ],
    },
}


def changed_kind(data: dict[str, Any], value: float) -> dict[str, Any]:
    return {**data, "kinds": {"1-10ms": {**data["kinds"]["100us-1ms"], "spread": value}}}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_or_foreign_file_is_an_error_of_one_line(name: str, own_folder: Path) -> None:
    own_folder.mkdir()
    path = calibration.path_for("X")
    text = json.dumps(DAMAGED[name](good_json()))
    path.write_text(text)
    for attempt in (
        calibration.load_for,
        lambda device: calibration.save(Calibration.of_rounds(device, rounds(measured(1e-3)))),
    ):
        with pytest.raises(UnreadableRun) as caught:
            attempt("X")
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_text() == text  # and it is left as it was


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\x00\xff", "import os"])
def test_a_file_that_is_no_json_is_an_error(text: str, own_folder: Path) -> None:
    own_folder.mkdir()
    calibration.path_for("X").write_bytes(text.encode("latin-1"))
    with pytest.raises(UnreadableRun):
        calibration.load_for("X")


def test_a_file_of_another_device_is_an_error(own_folder: Path) -> None:
    calibration.save(Calibration.of_rounds("Y", rounds(measured(3e-4))))
    calibration.path_for("Y").rename(calibration.path_for("X"))
    with pytest.raises(UnreadableRun, match="another device"):
        calibration.load_for("X")


def test_a_folder_that_cannot_be_written_is_an_error(own_folder: Path) -> None:
    own_folder.write_text("a file in its place")
    with pytest.raises(UsageError, match="cannot write the calibration"):
        calibration.save(Calibration.of_rounds("X", rounds(measured(3e-4))))


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert calibration.folder() == tmp_path / "calibration"
    monkeypatch.delenv("SSMPERF_CALIBRATION")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert calibration.folder() == tmp_path / "data" / "ssmperf" / "calibration"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert calibration.folder() == tmp_path / ".local" / "share" / "ssmperf" / "calibration"


def test_devices_and_software_are_named_by_the_environment() -> None:
    cpu = {"model": "A CPU", "architecture": "x86_64", "cores": 2}
    facts: dict[str, Any] = {
        "hardware": {"cpu": cpu, "gpu": None},
        "git": {"commit": "c0ffee", "dirty": False},
        "versions": {"ssmperf": "0.1"},
    }
    assert calibration.device_name(facts) == "A CPU, 2 cores"
    assert calibration.device_name({**facts, "hardware": {"cpu": cpu, "gpu": {"name": "A GPU"}}}) == "A GPU"
    assert calibration.software_of(facts, "e1") == "e1 c0ffee"
    assert calibration.software_of({**facts, "git": {"commit": None, "dirty": None}}, "e1") == "e1 0.1"
    assert calibration.software_of({**facts, "git": {"commit": "c0ffee", "dirty": True}}, "e1") is None
