"""`ssmperf calibrate` measures rounds, keeps what they differ by, and shows it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ssmperf.comparison.versions import calibrate as work
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.execute.run import Silent
from ssmperf.engine.machine import calibration
from ssmperf.engine.machine.calibration import Calibration
from ssmperf.engine.machine.spread import Spread
from ssmperf.engine.runs import store
from ssmperf.errors import UnreadableRun, UsageError
from ssmperf.shell import cli
from ssmperf.shell.terminal import calibration as shown
from ssmperf.shell.terminal import display, doctor

FEW: dict[str, Any] = {
    "models": "mingru", "backends": "sequential,blelloch", "device": "cpu", "time": 0.002,
    "axis": ("T=4,64", "C=2"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SSMPERF_CALIBRATION", str(tmp_path / "calibration"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield tmp_path / "calibration"


class Counting(Silent):
    """Counts the cases that are announced, finished and dropped."""

    def __init__(self) -> None:
        self.total = self.finished = 0

    def begin(self, total: int, done: int) -> None:
        self.total += total

    def drop(self, count: int) -> None:
        self.total -= count

    def finish(self, record: Record) -> None:
        self.finished += 1


def record(seed: int, latency_s: float, status: Status = Status.OK, **numbers: Any) -> Record:
    case = Case("throughput", "scan", "sequential", Shape(B=1, T=8, C=2), seed=seed)
    if status is not Status.OK:
        return Record(case, status, "because", "e")
    return Record(case, status, None, "e", {"latency_s": latency_s, **numbers})


@pytest.mark.slow
def test_selected_cases_are_measured_in_every_round(tmp_path: Path) -> None:
    progress = Counting()
    done = work.calibrate(rounds=2, out=tmp_path / "run", progress=progress, **FEW)
    assert {len(rounds) for rounds in done.run.rounds.values()} == {2} and len(done.run.rounds) == 8
    assert progress.finished == progress.total == 16
    found = calibration.load_for(done.calibration.device)
    assert found == done.calibration and sum(kind.cases for kind in found.kinds.values()) == 8
    assert {kind.rounds for kind in found.kinds.values()} == {2}
    assert found.sessions[0].cases.keys() == done.run.rounds.keys()
    text = shown.as_text(done)
    assert str(done.path) in text and "one session" in text
    for kind in found.kinds:
        assert kind in text
    data = json.loads(json.dumps(shown.as_json(done), allow_nan=False))
    assert data["sessions"] == 1 and data["run"] == str(tmp_path / "run")
    one, twenty = data["kinds"][kind]["thresholds"].values()
    assert 0 < one < twenty

    few = {**FEW, "backends": "blelloch", "axis": ("T=4", "C=2")}
    again = work.calibrate(rounds=2, out=tmp_path / "again", **few)
    assert len(again.calibration.sessions) == 2
    environment = next(iter(again.run.environments.values()))
    assert Calibration.from_json(environment["calibration"]).kinds == found.kinds  # as before its own rounds
    assert display.warnings(again.run) == []
    own = doctor.as_text(
        {"device": "cpu", "environment": environment, "ceilings": {}, "packages": {}, "backends": []}
    )
    assert f"calibration of {found.created}" in own and kind in own


@pytest.mark.slow
def test_without_a_selection_later_rounds_have_a_few_cases_of_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broad = {name: FEW[name] for name in ("models", "backends")} | {"axis": ("T=4,5,6,7,64", "C=2")}
    monkeypatch.setattr(work, "CANDIDATES", {"cpu": broad})
    monkeypatch.setattr(work.choose, "__defaults__", (2,))
    monkeypatch.setattr(work, "MOST_LAUNCHES", 60)  # without sequential at T = 64
    progress = Counting()
    done = work.calibrate(rounds=2, device="cpu", time=0.002, out=tmp_path / "run", progress=progress)
    kept = [rounds for rounds in done.run.rounds.values() if len(rounds) > 1]
    assert len(done.run.rounds) == 18 and 1 <= len(kept) <= 2 * len(calibration.KINDS)
    assert len(kept) < 10 and progress.finished == progress.total == 18 + len(kept)
    assert all(case.backend != "sequential" or case.shape["T"] < 64 for case in (r[0].case for r in kept))


def test_a_few_cases_are_chosen_from_the_whole_range_of_a_kind() -> None:
    records = [record(i, 1e-4 * (1 + i / 20)) for i in range(20)]
    assert [case.seed for case in work.choose(records, 4)] == [0, 6, 13, 19]
    assert [case.seed for case in work.choose(records[:3], 4)] == [0, 1, 2]
    assert len(work.choose([*records, record(30, 2e-3), record(31, 3e-4, issue_s=1e-3)], 4)) == 6


def test_long_and_failed_cases_are_not_chosen() -> None:
    records = [record(1, 0.5), record(2, 0.2, issue_s=0.3), record(3, 0.0, Status.WRONG), record(4, 1e-3)]
    assert [case.seed for case in work.choose(records)] == [4]


def test_one_round_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 2 rounds"):
        work.calibrate(rounds=1, out=tmp_path / "run", **FEW)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_damaged_file_ends_it_after_the_first_round(tmp_path: Path, own_folder: Path) -> None:
    from ssmperf.engine.machine import environment

    own_folder.mkdir()
    device = calibration.device_name({"hardware": {"cpu": environment.cpu(), "gpu": None}})
    calibration.path_for(device).write_text("{")
    progress = Counting()
    with pytest.raises(UnreadableRun, match="cannot read the calibration"):
        work.calibrate(rounds=5, out=tmp_path / "run", progress=progress, **FEW)
    assert progress.finished == 8
    (warning,) = display.warnings(store.load(tmp_path / "run"))
    assert "cannot read the calibration" in warning


def test_nothing_measured_is_an_error(tmp_path: Path) -> None:
    choices = {**FEW, "backends": "triton"}
    with pytest.raises(UsageError, match="nothing to calibrate with"):
        work.calibrate(rounds=2, out=tmp_path / "run", **choices)


def test_the_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {}

    def fake(**options: Any) -> work.WrittenCalibration:
        given.update(options)
        rounds = {
            made.case.id: tuple(record(1, 1e-4 * (1 + i / 50), round=i) for i in range(4))
            for made in [record(1, 1e-4)]
        }
        run = store.Run(tmp_path / "run", {}, [record(1, 1e-4, busy=["throttled: power cap"])], [], rounds)
        return work.WrittenCalibration(
            Calibration.of_rounds("A GPU", run.rounds), tmp_path / "file.json", run
        )

    monkeypatch.setattr(work, "calibrate", fake)
    words = [
        "calibrate",
        "--rounds",
        "4",
        "--device",
        "cpu",
        "--models",
        "gla",
        "--axis",
        "T=8",
        "--time",
        "0.1",
    ]
    monkeypatch.setattr(sys, "argv", ["ssmperf", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    text = capsys.readouterr().out
    assert ended.value.code == 0 and "A GPU" in text and "100us-1ms" in text
    assert "busy: throttled: power cap, during 1 of 1 cases" in text
    assert (given["rounds"], given["models"], given["axis"], given["time"]) == (4, "gla", ["T=8"], 0.1)
    monkeypatch.setattr(sys, "argv", ["ssmperf", *words, "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    assert json.loads(capsys.readouterr().out)["kinds"]["100us-1ms"]["cases"] == 1


def test_the_table_tells_thresholds() -> None:
    kinds = {"1-10ms": Spread(0.02, 0.08, 9.0, 3, 10), "1-10ms host": Spread(0.001, 0.002, 9.0, 3, 10)}
    lines = shown.as_table(Calibration("X", "now", kinds)).splitlines()
    cells = lines[2].split("  ")
    assert [cell.strip() for cell in cells if cell.strip()] == [
        "1-10ms", "3", "10", "±2.0 %", "8.3 %", "4.8 %", "8.3 %",
    ]  # fmt: skip
    assert len(lines) == 4
    assert shown.section(None, "no file") == ["calibration: no file"]
