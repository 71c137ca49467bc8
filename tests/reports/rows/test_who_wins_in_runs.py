"""Who is named as fastest in real runs: of a plug-in's quick backends, and of the built-in surrogates."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes.in_process import records_of
from support.results.claims import claims

import ssmperf
from ssmperf import Run
from ssmperf.shell import cli
from ssmperf.suitekit import standings

PLUGIN = Path(__file__).parents[2] / "support" / "plugins" / "rivals.py"


def stands(run: Any) -> dict[tuple[str, str], str]:
    """Give each record's standing by backend and pass."""
    pairs = zip(run.records, standings(run), strict=True)
    return {(record.case.backend, record.case.pass_): standing.name for record, standing in pairs}


@pytest.mark.slow
def test_the_surrogates_of_linear_attention_stand_beside(fake: Any) -> None:
    records = records_of(
        "throughput",
        PLUGIN,
        models="gla",
        backends=["sequential", "surrogate_raw", "surrogate_softmax"],
        axis=["B=1", "T=8", "H=1", "K=2", "V=2"],
    )
    assert {record.status for record in records} == {"ok"}
    run = fake.run(records)
    assert {name: stand for (name, _), stand in stands(run).items()} == {
        "sequential": "competes",
        "surrogate_raw": "beside",
        "surrogate_softmax": "beside",
    }
    assert {*claims([run])["best"]} == {"sequential"}


RIVALS = ("honest", "slower", "wrong_gradient", "loose", "other_function")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Measure a plug-in of quick backends that must not win, beside two slow ones that may."""
    return ssmperf.run(
        "throughput",
        models="hgrn",
        backends=[f"rival_{name}" for name in RIVALS],
        axis=["B=2", "T=9", "C=4"],
        dtype="float32",
        device="cpu",
        plugin=PLUGIN,
        out=tmp_path_factory.mktemp("runs") / "run",
    )


@pytest.mark.slow
def test_a_real_run_names_the_honest_backend(run: Run) -> None:
    latency = {record.case.backend: record.numbers.get("latency_s") for record in run.records
               if record.case.pass_ == "forward"}  # fmt: skip
    assert all(latency[f"rival_{name}"] < latency["rival_honest"] for name in RIVALS[2:])
    for form, names in claims([run]).items():
        if form != "heat map":  # which relates to the baseline, and this run has none
            assert names == {"rival_honest"}, form
    assert stands(run) == {
        (f"rival_{name}", pass_): expected
        for name, expected in zip(RIVALS, ["competes"] * 2 + ["wrong"] + ["beside"] * 2, strict=True)
        for pass_ in ("forward", "backward")
    }
    (forward,) = [each for each in ssmperf.best(run) if each["pass"] == "forward"]
    assert {each["backend"]: each["mark"] for each in forward["beside"]} == {
        "rival_loose": "bound 0.999",
        "rival_other_function": "own definition",
    }
    assert "wrong in backward" in forward["excluded"][0]["reason"]
    assert "gradient of b" in forward["excluded"][0]["reason"]


@pytest.mark.slow
def test_records_carry_the_declarations(run: Run) -> None:
    declared = {record.case.backend: (record.numbers["declared_bound"], record.numbers["own_definition"])
                for record in run.records if record.case.pass_ == "forward"}  # fmt: skip
    assert declared["rival_honest"] == (None, False)
    assert declared["rival_loose"] == (0.999, False)
    assert declared["rival_other_function"] == (None, True)


@pytest.mark.slow
def test_python_and_the_command_line_give_the_same(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ssmperf", "best", str(run.path), "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    assert json.loads(capsys.readouterr().out) == ssmperf.best(run) == ssmperf.best([ssmperf.load(run.path)])
    words = ["ssmperf", "best", str(run.path), "--json", "--models", "hgrn", "--axis", "T=9"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        cli.main()
    assert json.loads(capsys.readouterr().out) == ssmperf.best(run.path) == ssmperf.best([str(run.path)])
    table = run.frame()
    assert {*table.loc[table["standing"] == "competes", "backend"]} == {"rival_honest", "rival_slower"}
    assert {*table["mark"]} == {"", "wrong in backward", "bound 0.999", "own definition"}
