"""Runs on disk: a written record is never lost, and an unreadable run gives a clear error."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
from pathlib import Path

import pytest

from ssmperf import Case, Record, Shape, Status, UnreadableRun, UsageError
from ssmperf.engine.cases.record import SCHEMA_VERSION
from ssmperf.engine.runs import store
from ssmperf.engine.runs.store import RECORDS_FILE, RUN_FILE, Writer, load, planned


def record(T: int, status: Status = Status.OK, **numbers: object) -> Record:
    case = Case(suite="throughput", recurrence="scan", backend="blelloch", shape=Shape(B=1, T=T, C=1))
    return Record(case, status, None if status is Status.OK else "because", "e", numbers)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Make a run of three records."""
    writer = Writer.create(tmp_path / "run", {"tag": "t"})
    writer.add_environment("e", {"cpu": "x"})
    for T in (1, 2, 3):
        writer.append(record(T))
    writer.close()
    return tmp_path / "run"


def test_round_trip(run: Path) -> None:
    loaded = load(run)
    assert [r.case.shape["T"] for r in loaded.records] == [1, 2, 3]
    assert loaded.environments == {"e": {"cpu": "x"}}
    assert loaded.meta["tag"] == "t"
    assert loaded.warnings == []


def test_each_record_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", {})
    for T in (1, 2):
        writer.append(record(T))
        assert len(load(tmp_path / "run").records) == T
    writer.close()


def test_every_torn_tail_loses_at_most_the_last_record(run: Path) -> None:
    whole = (run / RECORDS_FILE).read_bytes()
    third = whole[:-1].rfind(b"\n") + 1
    for length in range(third + 1, len(whole) - 1):
        (run / RECORDS_FILE).write_bytes(whole[:length])
        loaded = load(run)
        assert [r.case.shape["T"] for r in loaded.records] == [1, 2]
        assert "torn" in loaded.warnings[0]


def test_resume_after_a_torn_tail_starts_on_a_new_line(run: Path) -> None:
    whole = (run / RECORDS_FILE).read_bytes()
    for cut, left in ((5, [1, 2]), (1, [1, 2, 3]), (0, [1, 2, 3])):
        (run / RECORDS_FILE).write_bytes(whole[: len(whole) - cut])
        writer, before = Writer.resume(run, {})
        assert [r.case.shape["T"] for r in before.records] == left
        writer.append(record(9))
        writer.close()
        assert [r.case.shape["T"] for r in load(run).records] == [*left, 9]


@pytest.mark.parametrize("tail", ['{"schema_version": 1, "case', ""])
def test_a_torn_line_that_ends_is_cut_off_too(run: Path, tail: str) -> None:
    (run / RECORDS_FILE).write_bytes((run / RECORDS_FILE).read_bytes() + f"{tail}\n".encode())
    writer, _ = Writer.resume(run, {})
    writer.append(record(9))
    writer.close()
    assert [r.case.shape["T"] for r in load(run).records] == [1, 2, 3, 9]


def test_resuming_with_another_request_forgets_nothing_of_the_first(tmp_path: Path) -> None:
    def meta(suite: str, *ids: str) -> dict[str, object]:
        plan = {"cases": len(ids), "case_ids": list(ids)}
        return {"created": suite, "plan": plan, "suites": {suite: {"rank": suite}}}

    Writer.create(tmp_path, meta("throughput", "a", "b")).close()
    writer, _ = Writer.resume(tmp_path, meta("correctness", "b", "c"))
    writer.close()
    found = load(tmp_path).meta
    assert found["plan"] == {"cases": 3, "case_ids": ["a", "b", "c"]}
    assert found["suites"].keys() == {"throughput", "correctness"} and found["created"] == "throughput"
    writer, _ = Writer.resume(tmp_path, {})
    writer.add_to_plan(["d"])
    writer.close()
    assert load(tmp_path).meta["plan"]["case_ids"] == ["a", "b", "c", "d"]


def test_a_growing_plan_is_written_in_time_that_is_linear_in_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = store._write_atomically
    monkeypatch.setattr(
        store, "_write_atomically", lambda *each: written.append(len(planned(each[1]))) or write(*each)
    )
    writer = Writer.create(tmp_path / "run", {})
    ids = [f"case {number}" for number in range(3000)]
    for number, each in enumerate(ids):
        writer.add_to_plan([each], growth=0.1)
        assert len(planned(json.loads((tmp_path / "run" / RUN_FILE).read_text()))) > 0.9 * number
    assert sum(written) < 15 * len(ids)
    writer.close()
    assert planned(load(tmp_path / "run").meta) == ids


def test_packed_files_are_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (RUN_FILE, RECORDS_FILE):
        (run / f"{name}.gz").write_bytes(gzip.compress((run / name).read_bytes()))
        (run / name).unlink()
    assert len(load(run).records) == 3
    archive = (run / f"{RECORDS_FILE}.gz").read_bytes()
    middle = len(archive) // 2
    for damaged in (archive[:-20], archive[:middle] + bytes(20) + archive[middle + 20 :], b"no archive"):
        (run / f"{RECORDS_FILE}.gz").write_bytes(damaged)
        with pytest.raises(UnreadableRun):
            load(run)
    (run / f"{RECORDS_FILE}.gz").write_bytes(archive)
    monkeypatch.setattr("ssmperf.engine.cases.reading.SMALL", 20)
    monkeypatch.setattr("ssmperf.engine.cases.reading.MOST_UNPACKED", 1)
    with pytest.raises(UnreadableRun, match=r"\.gz unpacks to more than 1 times its size"):
        load(run)


def test_what_is_no_run_folder_says_what_would_be(run: Path) -> None:
    with pytest.raises(UnreadableRun, match="is a file"):
        load(run / RUN_FILE)
    with pytest.raises(UnreadableRun, match=r"1 are inside, such as run"):
        load(run.parent)
    (run / RUN_FILE).write_text("{")
    with pytest.raises(UnreadableRun, match="is damaged"):
        load(run)


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(run: Path) -> None:
    lines = (run / RECORDS_FILE).read_text().splitlines()
    (run / RECORDS_FILE).write_text("\n".join([lines[0], lines[1][:20], lines[2]]) + "\n")
    with pytest.raises(UnreadableRun, match="line 2"):
        load(run)


def test_of_two_records_of_a_case_the_last_counts(run: Path) -> None:
    writer, _ = Writer.resume(run, {})
    writer.append(record(2, latency_s=5.0))
    writer.close()
    loaded = load(run)
    assert [r.case.shape["T"] for r in loaded.records] == [1, 3, 2]
    assert loaded.records[-1].numbers["latency_s"] == 5.0


def test_an_existing_folder_is_refused_without_resume(run: Path) -> None:
    before = (run / RECORDS_FILE).read_bytes()
    with pytest.raises(UsageError, match="--resume"):
        Writer.create(run, {})
    assert (run / RECORDS_FILE).read_bytes() == before


def test_resume_starts_a_missing_or_half_made_folder(tmp_path: Path) -> None:
    half = tmp_path / "half"
    half.mkdir()
    (half / f"{RUN_FILE}.tmp").write_text("{")
    for path in (tmp_path / "missing", half):
        writer, before = Writer.resume(path, {})
        writer.append(record(1))
        writer.close()
        assert before.records == []
        assert len(load(path).records) == 1


def test_resume_refuses_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UnreadableRun, match="not a run folder"):
        Writer.resume(tmp_path, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thesis.tex"]


def test_unreadable_runs(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UnreadableRun, match=RUN_FILE):
        load(tmp_path / "nothing")
    meta = json.loads((run / RUN_FILE).read_text())
    (run / RUN_FILE).write_text(json.dumps(meta | {"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(UnreadableRun, match="upgrade"):
        load(run)
    for text in ("{", "[]", '{"schema_version": "one"}'):
        (run / RUN_FILE).write_text(text)
        with pytest.raises(UnreadableRun):
            load(run)


def test_an_unwritable_place_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot write"):
        Writer.create(tmp_path / "file" / "run", {})


def test_a_full_disk_loses_nothing_already_written(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, _ = Writer.resume(run, {})
    write = os.write

    def short(descriptor: int, data: bytes) -> int:
        return write(descriptor, data[:10])

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(UsageError, match=os.strerror(errno.ENOSPC)):
        writer.append(record(4))
    monkeypatch.undo()
    assert [r.case.shape["T"] for r in load(run).records] == [1, 2, 3]
    writer.append(record(4))
    writer.close()
    assert load(run).warnings == []


def test_a_folder_has_one_writer_at_a_time(run: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    first, _ = Writer.resume(run, {})
    with pytest.raises(UsageError, match="another run is writing to"):
        Writer.resume(run, {"tag": "second"})
    first.append(record(4))
    assert load(run).meta["tag"] == "t"
    first.close()
    second, found = Writer.resume(run, {})
    second.close()
    assert len(found.records) == 4
    assert before[RECORDS_FILE] == (run / RECORDS_FILE).read_bytes()[: len(before[RECORDS_FILE])]


def test_a_failed_resume_releases_the_folder(run: Path) -> None:
    whole = (run / RECORDS_FILE).read_bytes()
    (run / RECORDS_FILE).write_bytes(b"x\n" + whole)
    with pytest.raises(UnreadableRun, match="line 1"):
        Writer.resume(run, {})
    (run / RECORDS_FILE).write_bytes(whole)
    Writer.resume(run, {})[0].close()


def test_a_file_system_without_locks_will_do(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    writer, found = Writer.resume(run, {})
    writer.close()
    assert len(found.records) == 3


@pytest.mark.parametrize(
    "damage",
    [{"environments": []}, {"environments": {"e": 1}}, {"suites": "x"}, {"suites": {"s": []}}, {"plan": 3}],
)
def test_damaged_meta_data_are_refused(run: Path, damage: dict[str, object]) -> None:
    meta = json.loads((run / RUN_FILE).read_text())
    (run / RUN_FILE).write_text(json.dumps(meta | damage))
    with pytest.raises(UnreadableRun, match="no object"):
        load(run)


@pytest.mark.parametrize("line", ["[1]", '"x"', "null", "7", "[" * 100_000])
def test_a_line_that_is_no_record_is_refused(run: Path, line: str) -> None:
    whole = (run / RECORDS_FILE).read_text()
    (run / RECORDS_FILE).write_text(f"{line}\n{whole}")
    with pytest.raises(UnreadableRun, match="line 1"):
        load(run)


def test_frame_is_tidy(run: Path) -> None:
    frame = load(run).frame()
    assert list(frame["T"]) == [1, 2, 3]
    assert set(frame["status"]) == {"ok"}
    assert list(frame["shape"]) == ["B1 T1 C1", "B1 T2 C1", "B1 T3 C1"]


def test_a_printed_run_is_a_few_lines_whatever_it_holds(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", {"tag": "t" * 1000})
    gpu = {"name": "Example\x1b[31m\nGPU"}
    writer.add_environment("e", {"hardware": {"gpu": gpu, "cpu": {"model": "Example CPU", "cores": 8}}})
    for T in range(1, 1101):
        writer.append(record(T, Status.OOM if T % 10 == 0 else Status.OK, kernels=["kernel"] * 50))
    writer.close()
    assert repr(load(tmp_path / "run")).splitlines() == [
        "<Run run: 1,100 cases",
        "  suites: throughput 1,100",
        "  statuses: ok 990, oom 110",
        "  device: Example\ufffd[31m GPU>",
    ]


def test_a_run_that_says_little_is_printed_too(run: Path, tmp_path: Path) -> None:
    assert repr(load(run)).splitlines()[-1] == "  device: cpu>"
    Writer.create(tmp_path / "empty", {}).close()
    assert repr(load(tmp_path / "empty")) == "<Run empty: 0 cases>"
