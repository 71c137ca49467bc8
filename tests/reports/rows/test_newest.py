"""`best` in a sentence: of several runs the newest counts, and models, sizes, dtypes and passes narrow it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support.processes.command_line import caller
from support.results.claims import report
from support.results.histories import write

import ssmperf

DAYS = ("2026-01-01T12:00:00+00:00", "2026-02-01T12:00:00+00:00", "2026-03-01T12:00:00")
SHAPE = {"B": 2, "T": 4096, "C": 64}
COSTS = {"peak_bytes": 2**20, "limit_fraction": 0.38}


def dated(fake: Any, day: int, seconds: float, passes: tuple[str, ...] = ("forward", "backward")) -> Any:
    """Make a run in which chunkwise is the fastest, and twice as fast as sequential."""
    records = [
        fake.timed(seconds * factor, backend=name, pass_=pass_, shape=SHAPE, dtype=dtype, numbers=COSTS)
        for dtype in ("float32", "bfloat16")
        for pass_ in passes
        for name, factor in (("chunkwise", 1), ("sequential", 2))
    ]
    return fake.run(records, meta={"created": DAYS[day]}, path=Path(f"runs/day-{day}"))


def test_the_newest_run_counts_and_older_rows_are_marked(fake: Any) -> None:
    runs = [dated(fake, 2, 0.5), dated(fake, 0, 0.1), dated(fake, 1, 0.2, ("forward",))]
    found = ssmperf.best(runs, dtype="bf16", pass_="forward")
    times = {(each["date"][:7], each["value"], each["older"]) for each in found}
    assert times == {("2026-03", 0.5, False), ("2026-01", 0.1, True), ("2026-02", 0.2, True)}
    lines = str(found).splitlines()
    assert lines == [
        "mingru at T = 4,096 (B2 C64), bfloat16, forward: chunkwise 500 ms, 2.00× ahead of sequential; peak "
        "memory 1.00 MiB (measured); 38 % of the limit; Example CPU 9000, 2026-03-01, commit c3e85d8a",
        "older, not shown: 2 of 2026-01-01, commit c3e85d8a; 2026-02-01, commit c3e85d8a",
    ]
    table = [line for line in report("best", runs).splitlines() if "bfloat16  forward" in line]
    assert sorted(line.endswith("(older)") for line in table) == [False, True, True]


def test_a_backend_that_a_newer_run_finds_wrong_is_doubted(fake: Any) -> None:
    wrong = [
        fake.failed("wrong", "off", backend="chunkwise", shape=SHAPE, pass_="backward", dtype="bfloat16")
    ]
    newer = fake.run(wrong, meta={"created": DAYS[1]})
    for day, refuted in ((0, True), (2, False)):
        runs = [dated(fake, day, 0.1), newer]
        (each,) = ssmperf.best(runs, dtype="bf16", pass_="training")
        assert each["refuted"] == (DAYS[1] if refuted else "")
        for text in (str(ssmperf.best(runs, dtype="bf16", pass_="training")), report("best", runs)):
            assert ("but wrong there on 2026-02-01" in text) is refuted


def test_training_is_the_sum_of_both_passes_where_a_run_has_both(fake: Any) -> None:
    runs = [dated(fake, 0, 0.1), dated(fake, 1, 0.2, ("forward",))]
    for name in ("training", "train"):
        (each,) = ssmperf.best(runs, dtype="bf16", pass_=name)
        assert (each["pass"], each["value"], each["limit_fraction"]) == (
            "forward + backward", 0.2, pytest.approx(0.38),
        )  # fmt: skip
    (alone,) = ssmperf.best(runs[1:], dtype="bf16", pass_="training")
    assert (alone["pass"], alone["value"]) == ("forward", 0.2)
    (prefill,) = ssmperf.best(runs[:1], dtype="bf16", pass_="prefill")
    assert (prefill["pass"], prefill["value"]) == ("forward", 0.1)


def test_the_forms_of_sizes_are_the_same_question(fake: Any) -> None:
    run = [dated(fake, 0, 0.1)]
    forms: list[dict[str, Any]] = [
        {"axis": "T=64,4096"}, {"axis": ["T=64", "T=4096"]}, {"axis": {"T": [64, 4096]}}, {"T": 4096}
    ]  # fmt: skip
    assert all(ssmperf.best(run, **form) == ssmperf.best(run) != [] for form in forms)
    for wrong in ({"T": 64}, {"axis": {"T": "many"}}, {"Q": 4}, {"pass_": "back"}, {"dtype": "fp16"}):
        with pytest.raises(ssmperf.UsageError):
            ssmperf.best(run, **wrong)


def test_many_answers_are_a_table(fake: Any) -> None:
    records = [fake.timed(1.0, shape={"B": 1, "T": T, "C": 8}) for T in range(1, 15)]
    assert str(ssmperf.best([fake.run(records)], models="mingru")).startswith("model ")
    assert " at T = 9 " in str(ssmperf.best([fake.run(records)], models="mingru", T=[8, 9]))


def test_a_folder_of_runs_is_read_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "runs", shifts={}, count=2)
    packed = next((tmp_path / "runs").glob("*/run.json"))
    packed.with_name("run.json.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    (tmp_path / "runs" / "torn").mkdir()
    (tmp_path / "runs" / "torn" / "run.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    call = caller(monkeypatch, capsys)
    code, out, err = call("best", "--json")
    assert code == 0 and "left out: " in err and "torn" in err
    found = json.loads(out)
    with pytest.warns(UserWarning, match="left out: "):
        assert found == ssmperf.best("runs")
    dates = sorted({each["date"] for each in found})
    assert len(dates) > 2 and {each["date"] for each in found if not each["older"]} == {dates[-1]}
    assert call("best", "runs/torn")[0] == 2
