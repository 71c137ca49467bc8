"""`ssmperf history`: runs are found and put in order, steps and creeps are named, and exit codes say so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes.command_line import Call, caller
from support.results import histories
from support.results.histories import commit, step, write, write_run

import ssmperf
from ssmperf.comparison.trends.history import FRESH_RUNS
from ssmperf.errors import UnknownName, UnreadableRun, UsageError
from ssmperf.suitekit import registry


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make 30 runs: case 1 steps at run 12, case 4 at run 25, case 5 creeps, case 7 becomes faster."""
    path = tmp_path_factory.mktemp("history")
    shifts = {1: step(12, 0.06), 4: step(25, 0.08), 5: lambda run: 0.005 * run, 7: step(18, -0.06)}
    write(path, shifts=shifts, count=10)
    return path


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command in this process; return its exit code, stdout and stderr."""
    return caller(monkeypatch, capsys)


def ids(count: int) -> dict[str, int]:
    return {case.id: number for number, case in enumerate(histories.cases(count))}


def test_steps_have_their_run_commit_direction_and_size(folder: Path) -> None:
    found = ssmperf.history(folder)
    number = ids(10)
    steps = {number[each.case.id]: each for each in found.steps}
    places = {case: each.place for case, each in steps.items()}
    assert places.keys() == {1, 4, 7} and [each.slower for each in steps.values()] == [True, False, True]
    assert all(abs(places[case] - place) <= 1 for case, place in {1: 12, 4: 25, 7: 18}.items())
    for each in steps.values():
        assert each.after.commit == commit(each.place) and each.before.commit == commit(each.place - 1)
        assert each.after.origin.tag == f"day {each.place}"
    assert steps[1].low < 1.06 < steps[1].high and steps[4].fresh and not steps[1].fresh
    assert {number[each.case.id] for each in found.cases if each.alarm} == {5}
    assert {number[each.case.id] for each in found.behind} == {4, 5} and not found.ok


def test_the_frame_has_a_row_per_case_and_run(folder: Path) -> None:
    found = ssmperf.history(folder)
    table = found.frame()
    assert len(table) == 10 * 30 and set(table["device_name"]) == {"Example GPU"}
    assert table.groupby("case_id")["date"].is_monotonic_increasing.all()
    assert set(table["commit"]) == {commit(run) for run in range(30)}
    assert table["step"].notna().sum() == 3 and table["alarm"].notna().sum() == 1
    assert {"value", "low", "high", "tag", "plugin_sha256", "model", "backend", "T"} - {"T"} <= {*table}


def test_a_case_can_be_followed_alone(folder: Path) -> None:
    found = ssmperf.history(folder, backends="triton", models=["gla"])
    assert {(each.case.model, each.case.backend) for each in found.cases} == {("gla", "triton")}
    with pytest.raises(UnknownName, match="gal"):
        ssmperf.history(folder, models="gal")


@pytest.mark.slow
def test_the_threshold_decides_which_steps_are_reported(folder: Path) -> None:
    assert len(ssmperf.history(folder, threshold="10%").steps) == 0
    assert len(ssmperf.history(folder, threshold=0.07).steps) == 3  # their intervals reach it


def test_a_slow_down_is_fresh_for_some_runs(tmp_path: Path) -> None:
    place = 12
    write(tmp_path, runs=place + FRESH_RUNS + 1, count=6, shifts={1: step(place, 0.1)})
    (step_,) = ssmperf.history(tmp_path).steps
    assert step_.place == place and not step_.fresh
    shutil.rmtree(tmp_path / f"run-{place + FRESH_RUNS:03}")
    (step_,) = ssmperf.history(tmp_path).steps
    assert step_.fresh


def test_a_case_that_ended_long_ago_stands_behind_nothing(tmp_path: Path) -> None:
    """Its slow-down was fresh when it ended, such as by another name, and runs without it have followed."""
    place = 12
    write(tmp_path, runs=place + FRESH_RUNS + 8, count=6, shifts={1: step(place, 0.1)})
    gone = histories.cases(6)[1].id
    for number in range(place + 5, place + FRESH_RUNS + 8):
        file = tmp_path / f"run-{number:03}" / "records.jsonl"
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if gone not in line))
    (step_,) = ssmperf.history(tmp_path).steps
    assert step_.place == place and not step_.fresh and ssmperf.history(tmp_path).ok


def test_a_slow_down_that_was_repaired_is_not_fresh(tmp_path: Path) -> None:
    write(tmp_path, count=6, shifts={1: lambda run: 0.1 * (20 <= run < 25)})
    found = ssmperf.history(tmp_path)
    assert [each.place for each in found.steps] == [20, 25] and found.ok


@pytest.mark.slow
def test_a_slow_down_before_the_pinned_baseline_was_accepted(folder: Path) -> None:
    number = ids(10)
    found = ssmperf.history(folder, baseline="day 27")
    assert {number[each.case.id] for each in found.behind} == set() and len(found.steps) == 3


@pytest.mark.slow
def test_a_pinned_baseline_counts_from_there(tmp_path: Path) -> None:
    write(tmp_path, count=6, shifts={1: lambda run: 0.004 * max(0, run - 5) if run < 20 else 0.06})
    runs = {"run": tmp_path / "run-005", "tag": "day 5"}
    for baseline in runs.values():
        (behind,) = ssmperf.history(tmp_path, baseline=baseline).behind
        assert behind.alarm is not None and behind.alarm.baseline.run == tmp_path / "run-005"
    assert ssmperf.history(tmp_path, baseline="day 20").ok
    with pytest.raises(UsageError, match="none of the 30 runs"):
        ssmperf.history(tmp_path, baseline="day 99")
    change(tmp_path / "run-009", tag="day 5")
    with pytest.raises(
        UsageError, match=r"2 runs have the tag day 5: pass the folder of one \(.*run-005, .*9\)"
    ):
        ssmperf.history(tmp_path, baseline="day 5")


def test_a_steps_environment_is_compared(tmp_path: Path) -> None:
    for path in write(tmp_path, count=6, shifts={1: step(12, 0.1)}):
        if int(path.name[-3:]) >= 12:
            environment = json.loads((path / "run.json").read_text())["environments"]["env"]
            change(path, environments={"other": {**environment, "driver": "700.1"}})
            lines = (path / "records.jsonl").read_text().replace('"env_id":"env"', '"env_id":"other"')
            (path / "records.jsonl").write_text(lines)
    (found,) = ssmperf.history(tmp_path).steps
    assert found.changes == ("driver: 600.10 and 700.1",)


def test_dates_order_the_runs_whatever_their_names(tmp_path: Path) -> None:
    for path in write(tmp_path / "flat", count=6, shifts={1: step(15, 0.1)}):
        path.rename(tmp_path / f"{path.name[::-1]}")
    (found,) = ssmperf.history(tmp_path).steps
    assert found.place == 15 and found.after.commit == commit(15)


def test_what_cannot_be_used_is_left_out_and_named(folder: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(folder, runs / "nightly")  # two folders deep
    damage: dict[str, Callable[[Path], Any]] = {
        "run-003": lambda path: (path / "run.json").write_text("{"),
        "run-004": lambda path: (path / "records.jsonl").write_text('{"x": 1}\n{}\n'),
        "run-005": lambda path: change(path, created="yesterday"),
        "run-006": lambda path: change(path, created=None),
        "run-007": lambda path: change(path, schema_version=99),
        "run-008": lambda path: change(path, measurement=1),
    }
    for name, act in damage.items():
        act(runs / "nightly" / name)
    for side in ("base", "new"):
        shutil.copytree(folder / "run-029", runs / "some-ab" / side)
    (runs / "some-ab" / "ab.json").write_text("{}")
    with (runs / "nightly" / "run-010" / "records.jsonl").open("a") as file:
        file.write('{"torn')
    found = ssmperf.history(runs)
    texts = "\n".join(found.left_out)
    assert all(name in texts for name in (*damage, "some-ab/base", "some-ab/new", "torn"))
    assert "measured in another way" in texts and "no date" in texts
    assert len(found.left_out) == len(damage) + 3
    assert len(found.runs) == 30 - 5 and all(len(each.points) == 24 for each in found.cases)
    assert {each.after.commit for each in found.steps} & {commit(run) for run in (12, 18, 25)}


def change(path: Path, **values: Any) -> None:
    meta = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**meta, **values}))


def test_devices_are_kept_apart(tmp_path: Path) -> None:
    write(tmp_path / "one", runs=12, count=4)
    hardware = {**histories.ENVIRONMENT["hardware"], "gpu": {"name": "Other GPU"}}
    write(tmp_path / "two", runs=12, count=4, shifts=dict.fromkeys(range(4), lambda run: 0.7),
          environment={"hardware": hardware})  # fmt: skip
    found = ssmperf.history([tmp_path / "one", tmp_path / "two"])
    assert sorted(each.device for each in found.cases) == ["Example GPU"] * 4 + ["Other GPU"] * 4
    assert found.steps == [] and all(len(each.points) == 12 for each in found.cases)


def test_a_run_named_twice_counts_once(folder: Path) -> None:
    found = ssmperf.history([folder, folder / "run-000", folder])
    assert len(found.runs) == 30


def test_cases_of_a_plugin_go_by_its_commit(tmp_path: Path) -> None:
    for path in write(tmp_path, runs=12, count=4, shifts={1: step(6, 0.2)}):
        number = int(path.name[-3:])
        plugin = {"file": "k.py", "sha256": "abc", "commit": "a" * 39 + str(number % 10), "dirty": True}
        lines = (path / "records.jsonl").read_text().splitlines()
        text = "".join(json.dumps({**json.loads(line), "plugin": plugin}) + "\n" for line in lines)
        (path / "records.jsonl").write_text(text)
    (found,) = ssmperf.history(tmp_path).steps
    assert found.after.commit == "a" * 39 + "6" and ssmperf.commit_text(found.after) == "aaaaaaaaaa+"


@pytest.mark.parametrize("what", ["nothing", "empty", "damaged"])
def test_exit_2_if_no_run_can_be_read(what: str, tmp_path: Path, call: Call) -> None:
    path = tmp_path / "runs"
    if what != "nothing":
        path.mkdir()
    if what == "damaged":
        (path / "run.json").write_text("[]")
    code, out, err = call("history", path)
    assert code == 2 and str(path) in err and out == ""
    with pytest.raises(UnreadableRun):
        ssmperf.history(path)


def test_exit_codes(folder: Path, tmp_path: Path, call: Call) -> None:
    assert call("history", folder)[0] == 0
    assert call("history", folder, "--alarm", "fail")[0] == 1
    assert call("history", folder, "--alarm", "sometimes")[0] == 2
    write(tmp_path / "flat", count=6)
    assert call("history", tmp_path / "flat", "--alarm", "fail")[0] == 0


def test_the_table_has_a_line_per_case_and_says_what_is_left_out(
    folder: Path, tmp_path: Path, call: Call
) -> None:
    (tmp_path / "bad").mkdir()
    code, out, _ = call("history", folder, tmp_path / "bad")
    lines = out.splitlines()
    rows = [line for line in lines if "forward" in line]
    assert code == 0 and len(rows) == 10
    assert all("▁" in row or "█" in row for row in rows if "at " in row)
    first = next(row for row in rows if "hgrn2" in row and "triton" in row)
    assert rows[0] == first and f"at {commit(25)[:10]} (2026-01-26)" in out and "fresh" in out
    assert any("creeps: +" in line for line in lines)
    assert any(line.startswith(f"left out: {tmp_path / 'bad'}") for line in lines)
    assert (
        "10 cases over 30 runs, 2026-01-01 to 2026-01-30: 3 steps, 1 fresh, 1 cumulative alarm" in lines[-1]
    )


def test_json_holds_every_point(folder: Path, call: Call) -> None:
    code, out, _ = call("history", folder, "--json", "--alarm", "fail")
    document = json.loads(out)
    assert code == document["exit_code"] == 1 and len(document["cases"]) == 10
    assert all(len(case["points"]) == 30 for case in document["cases"])
    steps = [found for case in document["cases"] for found in case["steps"]]
    assert sorted(found["direction"] for found in steps) == ["faster", "slower", "slower"]
    assert all(found["commit"] and found["date"] and found["low"] < found["ratio"] for found in steps)
    assert sum(case["alarm"] is not None for case in document["cases"]) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_few_runs_are_shown_without_a_verdict(count: int, tmp_path: Path, call: Call) -> None:
    write(tmp_path, runs=count, count=2)
    code, out, _ = call("history", tmp_path, "--alarm", "fail")
    assert code == 0 and f"2 cases over {count} run" in out


def test_cases_that_were_not_ok_leave_a_gap(tmp_path: Path) -> None:
    for path in write(tmp_path, runs=14, count=3, shifts={1: step(7, 0.2)}):
        if path.name in ("run-004", "run-005"):
            records = [json.loads(line) for line in (path / "records.jsonl").read_text().splitlines()]
            records[1] = {name: value for name, value in records[1].items() if not name.endswith("_s")}
            records[1] |= {"status": "wrong", "reason": "because"}
            (path / "records.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    found = ssmperf.history(tmp_path)
    number = ids(3)
    assert {number[each.case.id]: len(each.points) for each in found.cases} == {0: 14, 1: 12, 2: 14}
    (step_,) = found.steps
    assert step_.after.commit == commit(7) and step_.before.commit == commit(6)


def test_hostile_text_stays_text(tmp_path: Path, call: Call) -> None:
    hostile = "\x1b[31m</script><img src=x onerror=alert(1)>"
    for number in range(3):
        write_run(tmp_path / f"run-{number}", number, [0.0, 0.1], tag=hostile)
    code, out, _ = call("history", tmp_path, "--html", tmp_path / "page.html")
    assert code == 0 and "\x1b" not in out
    page = (tmp_path / "page.html").read_text()
    assert "<img src=x" not in page and "\x1b" not in page


def test_the_page_is_registered_for_histories(folder: Path) -> None:
    assert set(registry.reports("history")) == {"table", "html"}
