"""Files of pytest-benchmark as runs: shown, compared and checked like any other, and never trusted."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.processes.command_line import Call, caller
from support.results.benchmarks import HOSTILE, benchmark, document, write

import ssmperf
from ssmperf import Status
from ssmperf.engine.runs.foreign import benchmark_json
from ssmperf.engine.runs.store import load
from ssmperf.errors import UnreadableRun


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(monkeypatch, capsys)


def test_a_benchmark_is_a_record(tmp_path: Path) -> None:
    file = write(tmp_path / "one.json", document(benchmark("test_a[4096]", 2e-3, group="scans")))
    run = ssmperf.load(file)
    assert run.warnings == [] and run.path == file
    (record,) = run.records
    assert record.status is Status.OK
    assert record.case.backend == "test_it.py::test_a[4096]" and record.case.model == "scans"
    # nothing is said that the file does not say
    assert (record.case.dtype, record.case.pass_, record.case.layout, record.case.cache) == ("", "", "", "")
    assert record.numbers["latency_s"] == pytest.approx(2e-3)
    low, high = (record.numbers[f"latency_{end}_s"] for end in ("low", "high"))
    assert low < 2e-3 < high and record.numbers["samples"] == 21
    assert (record.numbers["group"], record.numbers["params"]) == ("scans", {"T": 4096})
    assert record.numbers["iterations"] == 3
    (environment,) = run.environments.values()
    assert environment["hardware"]["cpu"] == {"model": "A CPU", "architecture": "x86_64", "cores": 8}
    assert environment["git"]["commit"] == "abcdef" and environment["machine_info"]["node"] == "here"
    assert run.frame()["latency_s"].tolist() == [record.numbers["latency_s"]]


def test_a_benchmark_without_a_group_stands_alone_and_none_is_first(tmp_path: Path) -> None:
    benchmarks = [benchmark("test_a", 1e-3), benchmark("test_b", 2e-3),
                  benchmark("test_c", 1e-3, group="g"), benchmark("test_d", 2e-3, group="g")]  # fmt: skip
    run = load(write(tmp_path / "one.json", document(*benchmarks)))
    assert [record.case.model for record in run.records] == [
        "test_it.py::test_a", "test_it.py::test_b", "g", "g"
    ]  # fmt: skip
    assert len({record.case.id for record in run.records}) == 4
    assert {standing.mark for standing in ssmperf.standings(run)} == {"not judged"}
    assert {contest["backend"] for contest in ssmperf.best(run)} == {None}


@pytest.mark.parametrize("verb", ["table", "html", "markdown", "csv", "json", "best"])
def test_every_report_shows_it(verb: str, tmp_path: Path) -> None:
    names = [f"test_a[{HOSTILE}]", "test_b[\x1b[31mred]"]
    benchmarks = [benchmark(name, 1e-3, group=HOSTILE) for name in names]
    run = load(write(tmp_path / "one.json", document(*benchmarks)))
    target = tmp_path / "out"
    text = ssmperf.engine.registry.report(verb)([run], target) or target.read_text()
    assert "test_a" in text
    if verb != "csv":  # which is data
        assert "\x1b" not in text
    if verb == "html":
        assert HOSTILE not in text and "not judged" in text


CHANGES: dict[str, tuple[float, int, str]] = {
    "same": (1.0, 0, "1 same"),
    "slower": (1.5, 1, "1 slower"),
    "faster": (0.5, 0, "1 faster"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_two_files_are_compared(name: str, tmp_path: Path, call: Call) -> None:
    factor, code, text = CHANGES[name]
    base = write(tmp_path / "base.json", document(benchmark("test_a", 1e-3)))
    new = write(tmp_path / "new.json", document(benchmark("test_a", 1.0001e-3 * factor)))
    for words in (("compare", base, new), ("check", new, "--baseline", base)):
        found, out, err = call(*words)
        assert (found, err) == (code, ""), out
        assert text in out
    assert sorted(tmp_path.iterdir()) == [base, new]  # nothing is written beside a file of another program


def test_what_differs_is_no_longer_compared(tmp_path: Path) -> None:
    base = load(write(tmp_path / "base.json", document(benchmark("test_a", 1e-3), benchmark("test_b", 1e-3))))

    def verdicts(*benchmarks: dict[str, Any], **options: Any) -> list[str]:
        new = load(write(tmp_path / "new.json", document(*benchmarks, **options)))
        return [pair.verdict for pair in ssmperf.compare(base, new).pairs]

    both = benchmark("test_a", 2e-3), benchmark("test_b", 2e-3)
    assert verdicts(*both) == ["slower", "slower"]
    assert verdicts(both[0]) == ["slower", "missing"]
    assert verdicts(*both, cpu="Another") == ["ambiguous", "ambiguous"]
    timer = {"options": {"timer": "process_time"}}
    assert verdicts(*both[:1], benchmark("test_b", 2e-3, **timer)) == ["slower", "missing", "new"]


def test_a_file_without_samples_is_shown_and_not_compared(tmp_path: Path) -> None:
    bare = [benchmark("test_a", 1e-3), benchmark("test_a", 2e-3)]
    for each in bare:
        del each["stats"]["data"]
    base, new = (load(write(tmp_path / f"{n}.json", document(each))) for n, each in enumerate(bare))
    assert base.warnings == []  # nothing is left out
    (remark,) = benchmark_json.remarks(base.path, base.records)
    assert "1 of 1 benchmarks have no samples" in remark
    assert base.records[0].numbers["latency_s"] == 1e-3
    assert base.records[0].numbers["quartile_low_s"] < 1e-3 < base.records[0].numbers["quartile_high_s"]
    assert [pair.verdict for pair in ssmperf.compare(base, new).pairs] == ["ambiguous"]


Change = Callable[[dict[str, Any]], Any]
NOT_A_FILE_OF_IT: dict[str, tuple[Change, str]] = {
    "no list": (lambda d: d.pop("benchmarks"), "it has no list of benchmarks"),
    "benchmarks": (lambda d: d.update(benchmarks={}), "it has no list of benchmarks"),
    "empty": (lambda d: d.update(benchmarks=[]), "has no benchmarks"),
}


@pytest.mark.parametrize("name", NOT_A_FILE_OF_IT)
def test_another_file_is_one_line(name: str, tmp_path: Path, call: Call) -> None:
    change, text = NOT_A_FILE_OF_IT[name]
    data = document(benchmark("test_a", 1e-3))
    change(data)
    code, out, err = call("report", write(tmp_path / "bad.json", data))
    assert (code, out) == (2, "")
    assert text in err and "bad.json" in err and len(err.splitlines()) == 1


def stats(**changed: Any) -> Change:
    return lambda each: each["stats"].update(changed)


def bare(**changed: Any) -> Change:
    """Change statistics, and take out the samples."""
    return lambda each: (each["stats"].pop("data"), each["stats"].update(changed))


NAN = float("nan")
BAD: dict[str, tuple[Change, str]] = {
    "no fullname": (lambda each: each.pop("fullname"), "no fullname"),
    "fullname": (lambda each: each.update(fullname=[1]), "no fullname"),
    "group": (lambda each: each.update(group={}), "its group is no text"),
    "no stats": (lambda each: each.pop("stats"), "it has no stats"),
    "empty stats": (lambda each: each.update(stats={}), "it has no stats"),
    "stats": (lambda each: each.update(stats=[1.0]), "it has no stats"),
    "text": (stats(data=[1.0, "x"]), "time 2 of 2 in its data is no number"),
    "flag": (stats(data=[True]), "time 1 of 1 in its data is no number"),
    "no times": (stats(data=[]), "no list of times"),
    "data": (stats(data={"a": 1.0}), "no list of times"),
    "negative": (stats(data=[1.0, -1.0]), "time 2 of 2 in its data is -1 s"),
    "zero": (stats(data=[1.0, 0.0, 1.0]), "time 2 of 3 in its data is 0 s"),
    "nan": (stats(data=[1.0, NAN]), "time 2 of 2 in its data is null, NaN or infinite"),
    "infinite": (stats(data=[float("inf")]), "null, NaN or infinite"),
    "huge": (stats(data=[10**400]), "null, NaN or infinite"),
    "tiny": (stats(data=[5e-324]), "which no clock measures"),
    "long": (stats(data=[1e300]), "which no clock measures"),
    "min": (stats(min=NAN), "its min is null, NaN or infinite"),
    "mean": (stats(mean=float("-inf")), "its mean is null, NaN or infinite"),
    "max": (stats(max=[]), "its max is no number"),
    "median": (bare(median="1"), "its median is no number"),
    "no median": (lambda each: each.update(stats={"min": 1.0}), "neither data nor a median"),
    "median 0": (bare(median=0), "its median is 0 s: the timer did not see it"),
    "median nan": (bare(median=NAN), "its median is null, NaN or infinite"),
    "rounds": (bare(rounds=0), "its rounds is no number of calls"),
    "iterations": (stats(iterations=True), "its iterations is no number of calls"),
}  # fmt: skip


@pytest.mark.slow(but=("stats", "no fullname", "infinite", "data"))
@pytest.mark.parametrize("name", BAD)
def test_a_bad_benchmark_is_left_out_by_name_and_no_other(name: str, tmp_path: Path, call: Call) -> None:
    change, text = BAD[name]
    intact = write(tmp_path / "intact.json", document(benchmark("test_a", 1e-3), benchmark("test_b", 1e-3)))
    bad = benchmark("test_b", 1e-3)
    change(bad)
    file = write(tmp_path / "bad.json", document(benchmark("test_a", 1e-3), bad))
    known = {record.case.backend: record.status for record in load(file).records}
    assert known.pop("test_it.py::test_a") is Status.OK and [*known.values()] == [Status.UNSUPPORTED]

    def left_out(shown: str) -> bool:
        words = " ".join(shown.split())
        return f"test_b of {file} is left out: " in words and text in words

    assert ssmperf.history(file).cases[0].case.backend == "test_it.py::test_a"
    code, out, err = call("history", file, intact)
    assert code == 0 and left_out(out) and "2 cases over 2 runs" in out, out + err
    # what was right before is lost; what was wrong before is new or right again
    for words, expected in (((intact, file), 3), ((file, intact), 0)):
        code, out, err = call("compare", *words)
        assert code == expected and left_out(err) and "1 same" in out, out + err
    assert call("check", file, "--baseline", intact)[0] == 3


def test_a_benchmark_without_any_name_is_left_out_by_number(tmp_path: Path) -> None:
    nameless = benchmark("test_b", 1e-3) | {"name": None, "fullname": 3}
    run = load(write(tmp_path / "bad.json", document(benchmark("test_a", 1e-3), nameless)))
    assert [record.case.backend for record in run.records] == ["test_it.py::test_a"]
    assert run.warnings == [
        f"benchmark 2 of {tmp_path / 'bad.json'} is left out: it has no fullname, or one that is no text"
    ]
    data = document(benchmark("test_a", 1e-3))
    data["benchmarks"].append(3)
    (warning,) = load(write(tmp_path / "odd.json", data)).warnings
    assert warning.startswith("benchmark 2 of ") and warning.endswith("it is no object")


def test_a_benchmark_that_is_there_twice_has_no_time(tmp_path: Path) -> None:
    """Nothing says which of the two is meant."""
    twice = [benchmark("test_a", 1e-3), benchmark("test_a", 1e-9), benchmark("test_b", 1e-3)]
    run = load(write(tmp_path / "twice.json", document(*twice)))
    assert [record.status for record in run.records] == [Status.UNSUPPORTED, Status.OK]
    assert "test_a" in run.warnings[0] and "it is there twice" in run.warnings[0]


def test_samples_alone_are_enough(tmp_path: Path) -> None:
    """Statistics that follow from the samples may be missing."""
    few = benchmark("test_a", 1e-3)
    few["stats"] = {"data": few["stats"]["data"]}
    (record,) = load(write(tmp_path / "few.json", document(few))).records
    assert record.numbers["fastest_s"] < record.numbers["latency_s"] < record.numbers["slowest_s"]
    few["stats"] = {"median": 1e-3}
    (record,) = load(write(tmp_path / "few.json", document(few))).records
    assert record.numbers["latency_s"] == 1e-3 and record.numbers["fastest_s"] is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff\xfe", b'"' + b"x" * 100, b"[" * 10**5])
def test_other_files_are_one_line(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "odd.json"
    file.write_bytes(content)
    with pytest.raises(UnreadableRun) as caught:
        load(file)
    assert "odd.json" in str(caught.value) and "\n" not in str(caught.value)


def test_names_that_look_like_files_of_it_but_are_none(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.json", tmp_path / ("x" * 300 + ".json")):
        with pytest.raises(UnreadableRun):
            load(path)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UnreadableRun, match="not a run folder"):
        load(tmp_path / "folder.json")


ODD: dict[str, Change] = {
    "extra_info": lambda d: d["benchmarks"][0].update(extra_info=3),
    "clock": lambda d: d["benchmarks"][0]["extra_info"].update(ssmperf=3),
    "facts": lambda d: d["benchmarks"][0]["extra_info"].update(
        ssmperf={"device": 3, "cache": [], "busy": "others", "issue_s": "x", "converged": 1, "clock": {}}
    ),
    "options": lambda d: d["benchmarks"][0].update(options=["timer"]),
    "timer": lambda d: d["benchmarks"][0]["options"].update(timer={}),
    "param": lambda d: d["benchmarks"][0].update(param=[], params="T"),
    "machine": lambda d: d.update(machine_info=[1], commit_info="abc", datetime=3, version={}),
    "no machine": lambda d: (d.pop("machine_info"), d.pop("commit_info")),
    "cpu": lambda d: d["machine_info"].update(cpu="A CPU"),
    "own": lambda d: d["machine_info"].update(ssmperf=3),
    "hardware": lambda d: d["machine_info"].update(ssmperf={"hardware": 3, "torch": [], "versions": 1}),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_values_that_nothing_needs_are_unknown(name: str, tmp_path: Path) -> None:
    data = document(benchmark("test_a", 1e-3))
    ODD[name](data)
    run = load(write(tmp_path / "odd.json", data))
    (record,) = run.records
    assert record.status is Status.OK and record.numbers["latency_s"] == pytest.approx(1e-3)
    assert not {"busy", "issue_s", "converged"} & record.numbers.keys()
    assert ssmperf.Record.from_json(json.loads(json.dumps({**record.to_json(), "dtype": "float32",
        "gate_dtype": "float32", "layout": "time_last", "pass": "forward", "cache": "hot", "timing": "native",
        "level": "op"}))).status is Status.OK  # fmt: skip
    for report in ("table", "html"):
        ssmperf.engine.registry.report(report)([run], tmp_path / "out")
    ssmperf.compare(run, run)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the paths to all values inside nested data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in [(*path, key), *places(item, (*path, key))]]


INTACT = document(benchmark("test_a", 1e-3, group="g"), benchmark("test_b", 2e-3))
INTACT["benchmarks"][0]["extra_info"] = {"ssmperf": {"device": "cuda:0", "cache": "cold", "busy": ["others"]}}
INTACT["machine_info"]["ssmperf"] = {"hardware": {"gpu": {"name": "A GPU"}, "cpu": {"model": "A CPU"}}}


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_value_anywhere_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    """A file with one value replaced is unreadable, or a run that reports and comparisons take."""
    changed = copy.deepcopy(INTACT)
    *path, last = data.draw(st.sampled_from(places(INTACT)))
    target: Any = changed
    for key in path:
        target = target[key]
    target[last] = data.draw(JSON)
    try:
        run = load(write(tmp_path / "any.json", changed))
    except UnreadableRun as error:
        assert "\n" not in str(error)
        return
    intact = tmp_path / "intact.json"
    other = load(intact if intact.exists() else write(intact, INTACT))
    assert len(run.records) + len(run.warnings) >= len(changed["benchmarks"])
    for one, two in ((run, other), (other, run)):
        ssmperf.engine.registry.report("table", "comparison")(ssmperf.compare(one, two), tmp_path / "out")
    for name in ("table", "html", "json"):
        ssmperf.engine.registry.report(name)([run], tmp_path / "out")


def test_ids_depend_on_names_alone() -> None:
    """So that files which were written on different days can be compared."""
    ids = {
        benchmark_json._record(benchmark("test_a", seconds, extra_info={"n": seconds}), env).case.id
        for seconds, env in ((1e-3, "one"), (2e-3, "other"))
    }
    assert ids == {"1173149501b15f15"}
