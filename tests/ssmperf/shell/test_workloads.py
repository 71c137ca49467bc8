"""Workloads from the run to the answer: run.json, --resume, comparisons, best, the page and the lists."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.processes.command_line import Call, caller

import ssmperf
from ssmperf import Run, UnknownName, UsageError
from ssmperf.comparison.versions.procedure import Versions
from ssmperf.engine.execute.request import Request
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.plan.run_options import Choices
from ssmperf.engine.runs.workloads import workloads_of
from ssmperf.suitekit import registry

TINY = 'model = "{model}"\nsource = "made up"\n[sizes]\nH = {H}\nK = 8\nV = 8\n[train]\nT = 24\nB = 2\n'
AXES = tuple({"pass_": "pass"}.get(field.name, field.name) for field in dataclasses.fields(ssmperf.Case))
OPTIONS: Mapping[str, Any] = {"backends": "chunkwise,sequential", "device": "cpu", "time": 0.01}


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(monkeypatch, capsys)


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    for name, model, H in (("small", "gated_deltanet", 2), ("other", "gla", 3)):
        (folder / f"{name}.toml").write_text(TINY.format(model=model, H=H))
    return folder


@pytest.fixture(scope="module")
def run(layers: Path) -> Run:
    """Run both phases with a time of one workload, and then add the other."""
    out = layers / "run"
    ssmperf.run("throughput", workload=f"{layers}/small.toml", out=out, **OPTIONS)
    return ssmperf.run("throughput", workload=f"{layers}/other.toml:decode", out=out, resume=True, **OPTIONS)


def copied(run: Run, folder: Path, **changes: Any) -> Run:
    """Copy a run with other contents of run.json."""
    shutil.copytree(run.path, folder)
    meta = json.loads((folder / "run.json").read_text()) | changes
    (folder / "run.json").write_text(json.dumps(meta))
    return ssmperf.load(folder)


def test_run_json_has_the_cases_of_each_phase_and_resume_adds(run: Run) -> None:
    found = workloads_of(run.meta)
    assert found.keys() == {"small:train", "small:prefill", "small:decode", "other:decode"}
    ids = {record.case.id for record in run.records}
    assert {each for phase in found.values() for each in phase} == ids
    assert {record.status.value for record in run.records} == {"ok"}
    assert run.meta["selection"]["parts"].keys() == found.keys()
    assert set(run.meta["selection"]["models"]) == {"gated_deltanet", "gla"}


@pytest.mark.slow
def test_runs_of_different_workloads_call_nothing_missing(run: Run, layers: Path, tmp_path: Path) -> None:
    other = ssmperf.run("throughput", workload=f"{layers}/other.toml", out=tmp_path / "other", **OPTIONS)
    for base, new in ((run, other), (other, run)):
        found = ssmperf.compare(base, new)
        assert not [pair for pair in found.pairs if pair.verdict == "missing"]


def test_a_case_that_a_phase_has_lost_is_missing(run: Run, tmp_path: Path) -> None:
    gone = {record.case.id for record in run.records if record.case.backend == "chunkwise"}
    kept = [record.case.id for record in run.records if record.case.id not in gone]
    parts = {
        key: part | {"planned": {suite: {owner: values | {"backend": ["sequential"]}
                                         for owner, values in owners.items()}
                                 for suite, owners in part["planned"].items()}}
        for key, part in run.meta["selection"]["parts"].items()
    }  # fmt: skip
    folder = tmp_path / "lacks"
    new = copied(run, folder, plan={"cases": len(kept), "case_ids": kept},
                 selection=run.meta["selection"] | {"parts": parts})  # fmt: skip
    lines = (folder / "records.jsonl").read_text().splitlines()
    (folder / "records.jsonl").write_text(
        "\n".join(x for x in lines if json.loads(x)["case_id"] in kept) + "\n"
    )
    new = ssmperf.load(folder)
    missing = {pair.case.id for pair in ssmperf.compare(run, new).pairs if pair.verdict == "missing"}
    assert missing == gone


DAMAGED = {
    "a list": {"workloads": [1, 2]},
    "phases": {"workloads": {"small": "train"}},
    "ids": {"workloads": {"small": {"train": 5}}},
    "markup": {"workloads": {"<script>alert(1)</script>": {"train": []}}},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_workloads_end_in_no_traceback(name: str, run: Run, tmp_path: Path, call: Call) -> None:
    damaged = copied(run, tmp_path / "damaged", **DAMAGED[name])
    code, out, err = call("best", damaged.path, "--workload", "small")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert call("report", damaged.path)[0] == 0


def test_damaged_parts_are_refused(run: Run, tmp_path: Path, call: Call) -> None:
    parts = {"small:train": {"models": 3}}
    damaged = copied(run, tmp_path / "parts", selection=run.meta["selection"] | {"parts": parts})
    code, _, err = call("compare", run.path, damaged.path)
    assert code == 2
    assert "damaged" in err


def test_best_answers_in_a_line_for_each_phase(run: Run, call: Call) -> None:
    code, out, _ = call("best", run.path, "--workload", "small")
    assert code == 0
    title, *lines = out.splitlines()
    assert title.startswith("small")
    text = " ".join(line.strip() for line in lines)
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["train", "prefill", "decode"]
    for part in ("ahead of", "peak memory", "of the limit", "right to: not measured"):
        assert part in text
    assert {*ssmperf.best(run, workload="all")[0]} == {*ssmperf.best(run, workload="small")[0]}
    only = call("best", run.path, "--workload", "other:decode")[1]
    assert "other" in only and "train" not in only


def test_answers_are_those_of_the_records(run: Run) -> None:
    found = ssmperf.best(run, workload="small:train")
    (answer,) = found
    times = {
        name: sum(record.numbers["latency_s"] for record in run.records
                  if record.case.backend == name and record.case.model == "gated_deltanet"
                  and record.case.pass_ in ("forward", "backward") and record.case.shape["B"] == 1
                  and record.case.shape["T"] == 128 and record.case.packing == "none"
                  and record.case.id in workloads_of(run.meta)["small:train"])
        for name in ("chunkwise", "sequential")
    }  # fmt: skip
    winner = min(times, key=lambda name: times[name])
    assert answer["contest"]["backend"] == winner
    assert answer["contest"]["value"] == pytest.approx(times[winner])
    assert (answer["workload"], answer["phase"], answer["gates"]) == ("small", "train", "start")


def test_a_wrong_backend_never_wins(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "wrong"
    shutil.copytree(run.path, folder)
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    winners = {each["contest"]["backend"] for each in ssmperf.best(run, workload="small:decode")}
    for place, record in enumerate(records):
        if record["backend"] in winners and record["pass"] == "decode":
            kept = {
                name: value
                for name, value in record.items()
                if name in (*AXES, "case_id", "env_id", "schema_version")
            }
            records[place] = kept | {"status": "wrong", "reason": "planted"}
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    for each in ssmperf.best(ssmperf.load(folder), workload="small:decode"):
        assert each["contest"]["backend"] not in winners


@pytest.mark.slow
def test_the_only_backend_is_called_that_and_stability_says_up_to_where(layers: Path, tmp_path: Path) -> None:
    options = dict(OPTIONS) | {"backends": "chunkwise"}
    found = ssmperf.run("throughput,stability", workload=f"{layers}/small.toml:train",
                        axis="T=64", out=tmp_path / "r", **options)  # fmt: skip
    text = registry.report("workloads")([found], None)
    assert "the only backend that took part" in text
    assert "T ≥64" in text


def test_unknown_and_contradicting_names(run: Run, call: Call) -> None:
    with pytest.raises(UnknownName, match="small"):
        ssmperf.best(run, workload="smal")
    with pytest.raises(UsageError, match="models"):
        ssmperf.best(run, workload="small", models="gla")
    assert call("best", run.path, "--workload", "small", "--models", "gla")[0] == 2


@pytest.mark.slow
def test_the_page_has_cards_a_table_and_times_against_gates(run: Run, layers: Path, tmp_path: Path) -> None:
    ssmperf.run("throughput", workload=f"{layers}/small.toml:decode", gates="start,slow", out=tmp_path / "g",
                **OPTIONS)  # fmt: skip
    page = registry.report("html")([run, ssmperf.load(tmp_path / "g")], None)
    assert 'id="workloads"' in page and 'id="gates"' in page
    assert "<h3>small</h3>" in page and "<h3>other</h3>" in page
    name = "<script>alert(1)</script>"
    planted = copied(run, tmp_path / "x", workloads={name: run.meta["workloads"]["small"]})
    page = registry.report("html")([planted], None)
    assert name not in page
    assert "&lt;script&gt;alert(1)" in page


def test_lists_fit_80_columns_and_describe_one(call: Call, layers: Path) -> None:
    code, out, _ = call("list", "workloads")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    entries = json.loads(call("list", "workloads", "--json")[1])
    assert len(entries) == len(out.splitlines()) - 1 >= 25
    assert len({(each["model"], *each["sizes"].items()) for each in entries}) >= 16
    text = call("list", "qwen3-next-80b")[1]
    for part in ("H32 G16 K128 V128", "36 of 48", "262,144", "softplus", "1024x8", "Hugging Face"):
        assert part in text
    assert json.loads(call("list", f"{layers}/small.toml", "--json")[1])["phases"]["train"] == [
        {"T": 24, "B": 2}
    ]


def test_a_comparison_of_versions_hands_a_workload_to_both() -> None:
    assert Choices.declared()["workload"].compared and Choices.declared()["gates"].compared
    choices = {"workload": "qwen3-next-80b:decode", "gates": "slow", "device": "cpu", "backends": "chunkwise"}
    wanted = Versions.of("main", "HEAD", "throughput", choices, (), (), None, "5%")
    request = Request.of(**wanted.arguments, judged_at=wanted.judged_at)
    planned = make_plan(request.selection, request.suites).to_run
    assert [(case.model, case.pass_, case.operand_source) for case in planned] == [
        ("gated_deltanet", "decode", "decay/slow")
    ]


def test_a_phase_can_be_profiled(call: Call, layers: Path, tmp_path: Path) -> None:
    words = ("--device", "cpu", "--out", tmp_path / "profile", "--json")
    code, out, err = call("profile", f"{layers}/small.toml:decode", "sequential", *words)
    assert code == 0, err
    assert json.loads(out)["case"]["shape"] == {"B": 1, "T": 1, "H": 2, "K": 8, "V": 8}
    code, _, err = call("profile", f"{layers}/small.toml:trian", "sequential", *words)
    assert code == 2
    assert "train" in err
