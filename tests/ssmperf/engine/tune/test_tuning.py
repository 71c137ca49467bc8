"""A search for configurations: its winners, its records and files, and how a run resumes it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ssmperf
from ssmperf import Case, Record, Shape, Status, UsageError
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.execute.worker import run_case
from ssmperf.engine.operands.subject import subject_of
from ssmperf.engine.operands.values import call_of
from ssmperf.engine.plan.run_options import Configurations
from ssmperf.engine.registry.cost import Ceilings
from ssmperf.engine.tune import files as tuning
from ssmperf.engine.tune import tables as configurations
from ssmperf.engine.tune.search import Refused, search
from ssmperf.engine.tune.tables import Place, as_json, from_json, noted, using
from ssmperf.suitekit import registry

PLUGIN = Path(__file__).parents[3] / "support" / "plugins" / "tunable.py"
FORWARD, BACKWARD = ("scan/tunable", ("forward", 4)), ("scan/tunable", ("backward", 4))
CASE = {"suite": "throughput", "recurrence": "scan", "backend": "tunable", "operand_source": "sigmoid/data"}
RUN: dict[str, Any] = {
    "models": "scan",
    "axis": ["T=7", "C=2", "B=1"],
    "dtype": "float32",
    "device": "cpu",
}


@pytest.fixture
def toy(own_registrations: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    registry.load_plugin(PLUGIN)
    module = sys.modules[registry.backend("scan", "tunable").function.__module__]
    monkeypatch.setattr(module, "DELAY_S", 0.0)
    module.used.clear()
    yield module


class FakeStopwatch:
    """Returns the sum of the sizes that a call used as its seconds, plus prescribed noise per look."""

    broken = False

    def __init__(self, toy: ModuleType, noise: dict[int, list[float]]) -> None:
        self.toy, self.noise = toy, noise

    def median_s(self, call: Any, **more: Any) -> float:
        self.toy.used.clear()
        call()
        size = sum(size for _, size in self.toy.used)
        waiting = self.noise.get(size)
        return size + (waiting.pop(0) if waiting else 0.0)

    def time(self, call: Any, *, observer: Any = None, **more: Any) -> Any:
        from ssmperf.engine.measure.stopwatch import Stopwatch

        return Stopwatch.of("cpu", "hot").time(
            call, touched=(), min_time_s=0.0, max_time_s=0.001, relative_width=1.0, observer=observer
        )


def measure(
    toy: ModuleType,
    pass_: str,
    *,
    autotune: bool = True,
    noise: dict[int, list[float]] | None = None,
    **more: str,
) -> tuple[Record, list[str]]:
    """Run a case; return its record and the progress messages."""
    messages: list[str] = []
    settings = Settings(0.001, 0.01, autotune=autotune)
    context = Context(
        "cpu", "env", settings, Ceilings(1e15, {"float32": 1e18}, 1e15, 1e18, 0), on_progress=messages.append
    )
    context._stopwatches["hot"] = FakeStopwatch(toy, noise or {})  # type: ignore[assignment]
    case = Case(shape=Shape(B=1, T=7, C=2), cache="hot", pass_=pass_, **{**CASE, **more})  # type: ignore[arg-type]
    record = run_case(case, context)
    assert record.status is Status.OK, record.reason
    return record, messages


def fields(size: int) -> dict[str, Any]:
    return {"size": size, "note": None}


def test_the_fastest_that_is_right_and_runs_wins(toy: ModuleType) -> None:
    record, messages = measure(toy, "forward")
    assert record.numbers["configuration"] == {"scan/tunable:forward/4": fields(2)}
    assert record.numbers["autotuned"] is True
    assert record.numbers["candidates_tried"] == 5
    tried = {row["size"]: row for row in record.numbers["candidates"]["scan/tunable:forward/4"]}
    assert {size: row["latency_s"] for size, row in tried.items()} == {
        8: 8,
        1: None,
        5: None,
        2: 2,
        3: None,
        6: 6,
    }
    assert "output" in tried[1]["reason"]
    assert "changed its input b" in tried[5]["reason"]
    assert "too many registers" in tried[3]["reason"]
    assert sum("scan/tunable:forward/4" in text for text in messages) == 6
    Record.from_json(json.loads(record.to_line()))


def test_a_pass_searches_what_its_call_consults(toy: ModuleType) -> None:
    for pass_, expected in (
        ("backward", {"scan/tunable:backward/4": fields(1)}),
        ("forward_backward", {"scan/tunable:forward/4": fields(2), "scan/tunable:backward/4": fields(1)}),
    ):
        assert measure(toy, pass_)[0].numbers["configuration"] == expected


def test_without_a_search_a_record_names_the_curated_row(toy: ModuleType) -> None:
    record, said = measure(toy, "forward", autotune=False)
    assert record.numbers["configuration"] == {"scan/tunable:forward/4": fields(8)}
    assert not {"autotuned", "candidates_tried"} & record.numbers.keys()
    assert said == []
    assert {size for _, size in toy.used} == {8}


def test_the_first_call_is_the_one_before_the_search(
    toy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def first(self: Context, case: Case, values: Any, expected: Any) -> None:
        toy.used.clear()
        call_of("forward", self.function(case), values)()
        sizes.extend(toy.used)

    monkeypatch.setattr(Context, "time_first_call", first)
    measure(toy, "forward")
    assert sizes == [("forward", 8)]


def test_a_gain_must_show_twice(toy: ModuleType) -> None:
    record, _ = measure(toy, "forward", noise={2: [0.0, 10.0]})
    assert record.numbers["configuration"] == {"scan/tunable:forward/4": fields(8)}


def test_what_is_hardly_faster_does_not_win(toy: ModuleType) -> None:
    record, _ = measure(toy, "forward", noise={2: [5.95, 5.95], 6: [1.95, 1.95]})
    assert record.numbers["configuration"] == {"scan/tunable:forward/4": fields(8)}


def test_a_broken_device_ends_the_search(toy: ModuleType) -> None:
    def seconds() -> float:
        return float(toy.CUTS[FORWARD[1]].size) if toy.CUTS[FORWARD[1]].size == 8 else 1 / 0

    with pytest.raises(RuntimeError, match="broke the device"):
        search({FORWARD: toy.Cut(8)}, seconds, healthy=lambda: False)
    found = search({FORWARD: toy.Cut(8)}, seconds)
    assert found.rows == {}


def test_keys_are_searched_one_after_the_other(toy: ModuleType) -> None:
    """The second key's candidates are timed with the first one's winner."""
    seen = []

    def seconds() -> float:
        forward, backward = (toy.CUTS.row(place[1]).size for place in (FORWARD, BACKWARD))
        seen.append((forward, backward))
        if forward == 3:
            raise Refused("wrong")
        return float(forward + backward)

    found = search({FORWARD: toy.Cut(8), BACKWARD: toy.Cut(8)}, seconds)
    assert found.rows == {FORWARD: toy.Cut(1), BACKWARD: toy.Cut(1)}
    assert {backward for forward, backward in seen if forward == 1} == {8, 1, 5, 2, 3, 6}
    assert all(8 in pair or pair[0] == 1 for pair in seen)
    assert toy.CUTS.row(FORWARD[1]) == toy.Cut(8)


def test_an_override_reaches_the_thread_of_autograd(toy: ModuleType) -> None:
    case = Case(shape=Shape(B=1, T=7, C=2), pass_="backward", **CASE)  # type: ignore[arg-type]
    call = call_of("backward", toy.tunable, subject_of(case, "cpu").values(0, with_state=False))
    toy.used.clear()
    with using({BACKWARD: toy.Cut(6)}), noted() as note:
        thread = threading.Thread(target=call)  # on a CPU, a backward pass runs in its caller's thread
        thread.start()
        thread.join()
    assert toy.used == [("backward", 6)]
    assert note == {BACKWARD: toy.Cut(6)}


def searched(label: str, *ratios: float | None, case: int = 0) -> Record:
    """Make the record of a search in which candidates of sizes 1, 2, … took these shares of the time of 8."""
    rows = [{**fields(8), "latency_s": 3.0, "reason": None}]
    rows += [
        {**fields(size), "latency_s": share and 3 * share, "reason": None}
        for size, share in enumerate(ratios, 1)
    ]
    numbers = {"autotuned": True, "candidates": {label: rows}}
    made = Case(shape=Shape(B=1, T=7 + case, C=2), **CASE)  # type: ignore[arg-type]
    return Record(made, Status.OK, None, "env", numbers)


def test_over_cases_the_geometric_mean_decides(toy: ModuleType) -> None:
    label = "scan/tunable:forward/4"

    def winner(*records: Record) -> dict[Place, Any]:
        return tuning.winners(records)

    first = searched(label, None, 0.5, 0.6, 0.8)
    assert winner(first) == {FORWARD: toy.Cut(2)}
    assert winner(first, searched(label, 0.1, 4.0, 0.6, 0.8, case=1)) == {FORWARD: toy.Cut(3)}
    assert winner(first, searched(label, 0.1, None, None, 0.9, case=1)) == {FORWARD: toy.Cut(4)}
    assert winner(searched(label, 0.995, 1.0)) == {}
    too_large = searched(label, *[2.0] * 8, 0.5)  # 9 does not fit
    assert winner(too_large) == {}
    with pytest.raises(UsageError, match="damaged"):
        winner(Record(first.case, Status.OK, None, None, {"candidates": {label: [{"size": 1}, {}]}}))


@pytest.fixture
def run(tmp_path: Path, own_registrations: None) -> Any:
    def start(**more: Any) -> ssmperf.Run:
        options = {
            **RUN,
            "backends": "tunable",
            "plugin": PLUGIN,
            "pass_": "forward",
            "regime": "sigmoid",
            **more,
        }
        return ssmperf.run("throughput", out=options.pop("out", tmp_path / "run"), **options)

    return start


@pytest.mark.slow
def test_a_run_searches_and_writes_what_another_run_reads(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    first = run(autotune=True, write_configurations=file)
    (record,) = [record for record in first.records if record.status is not Status.UNSUPPORTED]
    assert record.numbers["configuration"] == {"scan/tunable:forward/4": fields(2)}
    assert "--autotune" in record.numbers["command"]
    assert tuning.summary(first, file)[:-1] == [
        "autotune: 1 cases searched, 5 candidates tried, 1 cases changed"
    ]
    written = json.loads(file.read_text())
    assert written["rows"] == {"scan/tunable:forward/4": fields(2)}
    assert written["device"] is None and "triton" in written
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []

    second = run(configurations=file, out=tmp_path / "second")
    (again,) = [record for record in second.records if record.status is not Status.UNSUPPORTED]
    assert again.numbers["configuration"] == record.numbers["configuration"]
    assert again.case.id == record.case.id
    assert "autotuned" not in again.numbers
    assert f"--configurations {file}" in again.numbers["command"]
    assert second.meta["tuning"]["file"] == written

    file.unlink()  # a resumed run has its own copy
    with pytest.raises(UsageError, match="was begun with --configurations"):
        run(autotune=True, resume=True, out=tmp_path / "second")
    resumed = run(resume=True, out=tmp_path / "second", pass_="forward,backward")
    assert {record.case.pass_ for record in resumed.records} == {"forward", "backward"}
    assert resumed.meta["tuning"] == second.meta["tuning"]


def test_a_search_without_tables_says_so(toy: ModuleType, tmp_path: Path) -> None:
    record, _ = measure(toy, "forward", backend="sequential")
    assert [record.numbers[name] for name in ("configuration", "autotuned", "candidates_tried")] == [
        None,
        False,
        0,
    ]
    run = ssmperf.Run(tmp_path, {"tuning": {"autotune": True}}, [record])
    assert tuning.summary(run) == [
        "autotune: no timed case consulted a table of configurations, so there was nothing to search"
    ]


def test_a_file_of_another_device_is_said(toy: ModuleType, tmp_path: Path) -> None:
    record, _ = measure(toy, "forward", autotune=False)
    gpu = {"hardware": {"gpu": {"name": "H200"}}, "versions": {"triton": "3.6.0"}}
    meta = {"tuning": {"file": GOOD, "source": "found.json"}, "environments": {"env": gpu}}
    assert tuning.summary(ssmperf.Run(tmp_path, meta, [record])) == [
        "found.json was found on a CPU with Triton 3.6.0, this run was on H200 with Triton 3.6.0"
    ]
    same = {"env": {**gpu, "hardware": {"gpu": None}}}
    assert tuning.summary(ssmperf.Run(tmp_path, {**meta, "environments": same}, [record])) == []


GOOD = {"schema_version": 1, "device": None, "triton": "3.6.0", "rows": {"scan/tunable:forward/4": fields(2)}}
MALFORMED = {
    "nothing": ("", "not JSON"),
    "deep": ("[" * 30000, "JSON"),
    "list": ("[]", "no file of configurations"),
    "no version": ('{"rows": {}}', "no schema_version"),
    "newer": (json.dumps({**GOOD, "schema_version": 2}), "reads up to 1"),
    "further field": (json.dumps({**GOOD, "cpu": 1}), "'cpu' is unknown"),
    "device": (json.dumps({**GOOD, "device": 1}), "'device'"),
    "rows": (json.dumps({**GOOD, "rows": []}), "'rows'"),
    "unknown table": (json.dumps({**GOOD, "rows": {"scan/tunables:a": {}}}), "tunable"),
    "row": (json.dumps({**GOOD, "rows": {"scan/tunable:forward/4": {"size": "2"}}}), "must be of type int"),
    "large": (json.dumps(GOOD) + " " * (1 << 16), "too large"),
}


def read_tuning(**options: Any) -> tuning.Tuning:
    return tuning.Tuning.of(Configurations(**options))


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_refused(name: str, toy: ModuleType, tmp_path: Path) -> None:
    text, expected = MALFORMED[name]
    (tmp_path / "file").write_text(text)
    with pytest.raises(UsageError, match=expected):
        read_tuning(configurations=tmp_path / "file")


def test_a_good_file_is_read(toy: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(json.dumps(GOOD))
    rows = read_tuning(configurations=tmp_path / "file").rows
    assert from_json(rows) == {FORWARD: toy.Cut(2)}
    assert as_json(from_json(rows)) == rows


def test_what_is_written_has_a_place_and_a_search(tmp_path: Path) -> None:
    for autotune, path in ((False, tmp_path / "file"), (True, tmp_path), (True, tmp_path / "none" / "file")):
        with pytest.raises(UsageError, match="write"):
            read_tuning(autotune=autotune, write_configurations=path)
    with pytest.raises(UsageError, match="cannot read"):
        read_tuning(configurations=tmp_path / "none")
    assert configurations._layers == ()
