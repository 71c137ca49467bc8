"""`ssmperf diagnose` repeats a case and says what is wrong with it, and reports show what a record says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.processes.in_process import records_of
from support.results.pages import Page

import ssmperf
from ssmperf import Status
from ssmperf.shell.cli import main
from ssmperf.suitekit import registry

PLUGIN = """
import torch, ssmperf

@ssmperf.backend("scan", name="diagnosed_doubled", dtypes=("float32", "float64"), gates=("data",))
def doubled(log_a, b, initial_state=None, *, phase=None):
    output, state = ssmperf.engine.registry.recurrence("scan").definition(log_a, b, initial_state)
    return output * 2, state

@ssmperf.backend("scan", name="diagnosed_raising", gates=("data",))
def raising(log_a, b, initial_state=None, *, phase=None):
    raise ValueError("on purpose")
"""


DETACHED = """
import ssmperf

@ssmperf.backend("scan", name="diagnosed_detached", gates=("data",))
def detached(log_a, b, initial_state=None, *, phase=None):
    return ssmperf.engine.registry.recurrence("scan").definition(log_a, b.detach(), initial_state)
"""


IN_A_LAYER = """
import ssmperf

@ssmperf.backend("linear_attention", name="diagnosed_in_a_layer", dtypes=("float32",))
def in_a_layer(*operands, **options):
    output, state = ssmperf.engine.registry.recurrence("linear_attention").definition(*operands, **options)
    return output * 1.5, state
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run two broken backends in workers; give the run's folder."""
    folder = tmp_path_factory.mktemp("diagnosis")
    (folder / "plugin.py").write_text(PLUGIN)
    ssmperf.run(
        "correctness", models="hgrn", backends="diagnosed_doubled,diagnosed_raising", device="cpu",
        axis=["T=67", "C=4", "B=2"], plugin=folder / "plugin.py", out=folder / "run",
    )  # fmt: skip
    return folder / "run"


def diagnose(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["ssmperf", "diagnose", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.slow
def test_a_gradient_that_is_not_there_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then no number is wrong, and there is nothing to explain."""
    (tmp_path / "plugin.py").write_text(DETACHED)
    found = ssmperf.run(
        "correctness", models="hgrn", backends="diagnosed_detached", device="cpu",
        axis=["T=8", "C=4", "B=2"], plugin=tmp_path / "plugin.py", out=tmp_path / "run",
    )  # fmt: skip
    wrong = next(record for record in found.records if record.status is Status.WRONG)
    assert diagnose(monkeypatch, str(tmp_path / "run"), wrong.case.id[:8]) == 0
    assert "no gradient reaches" in capsys.readouterr().out


def test_the_verb_repeats_a_case(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = {record.case.backend: record for record in ssmperf.load(run).records}
    recorded = records["diagnosed_doubled"]
    assert "it is 2 × the exact one" in str(recorded.reason)
    assert recorded.numbers["diagnosis"][0]["factor"] == pytest.approx(2)
    assert diagnose(monkeypatch, str(run), recorded.case.id[:8]) == 0
    shown = capsys.readouterr().out
    assert f"recorded: wrong: {recorded.reason}" in shown
    assert "output: it is 2 × the exact one" in shown
    for words in (
        "channels",
        "what was tested",
        "with one batch item",
        "T = 64, a multiple of 64",
        "float64",
        "without an",
    ):
        assert words in shown, words
    assert diagnose(monkeypatch, str(run), recorded.case.id, "--json") == 0
    found = json.loads(capsys.readouterr().out)["examination"]
    assert found["status"] == "wrong" and {each["status"] for each in found["conditions"]} == {"wrong"}
    assert found["findings"][0]["along"]["time"][0][0] == "0-4"
    assert min(test["error"] for test in found["findings"][0]["tests"]) < 1e-6
    assert diagnose(monkeypatch, str(run), records["diagnosed_raising"].case.id) == 0
    shown = capsys.readouterr().out
    assert "on purpose" in shown and "nothing to diagnose" in shown and "repeat it: ssmperf run" in shown


@pytest.mark.parametrize("case", ["", "zzz"])
def test_an_unknown_case_is_refused_with_the_wrong_ones(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    (wrong,) = [record for record in ssmperf.load(run).records if record.status is Status.WRONG]
    assert diagnose(monkeypatch, str(run), case) == 2
    assert wrong.case.id in capsys.readouterr().err


def test_reports_show_the_diagnosis_and_how_to_repeat_it(run: Path) -> None:
    loaded = ssmperf.load(run)
    (wrong,) = [record for record in loaded.records if record.status is Status.WRONG]
    table = registry.report("table")([loaded], None)
    assert f"ssmperf diagnose {run} {wrong.case.id[:8]}" in " ".join(table.split())
    page = registry.report("html")([loaded], None)
    assert "it is 2 × the exact one" in str(Page(page).details)
    hostile: list[Any] = [
        {"object": "<b>", "text": None, "envelope": [1, None, "x", True], "tolerance": "no", "steps": 3}, 7
    ]  # fmt: skip
    for diagnosis in (hostile, "text", {"a": 1}):
        odd = replace(wrong, numbers={**wrong.numbers, "diagnosis": diagnosis})
        page = registry.report("html")([replace(loaded, records=[odd], rounds={})], None)
        assert Page(page).details  # packed; test_page_in_browser shows that texts stay texts


def test_the_recurrence_inside_a_layer_is_diagnosed_where_a_norm_hides_it(
    own_registrations: None, tmp_path: Path
) -> None:
    file = tmp_path / "plugin.py"
    file.write_text(IN_A_LAYER)
    (record,) = records_of(
        "correctness", file, models="gla", backends="diagnosed_in_a_layer", level="block", axis=["T=33"]
    )
    first, *others = record.numbers["diagnosis"]
    assert (first["object"], first["text"]) == ("recurrence: output", "it is 1.5 × the exact one")
    assert "output" in [each["object"] for each in others]
    assert str(record.reason).startswith("output: relative error")
    assert "recurrence: output: it is 1.5 × the exact one" in str(record.reason)


IN_DOUBLE = """
import torch, ssmperf

scan = ssmperf.engine.registry.recurrence("scan").definition

@ssmperf.backend("scan", name="diagnosed_in_double", gates=("data", "const"))
def in_double(log_a, b, initial_state=None, *, phase=None):
    output, state = scan(log_a, b, initial_state)
    return (output + 0.5 if b.dtype == torch.float64 and b.shape[1] > 2 else output), state
"""


@pytest.fixture(scope="module")
def in_double(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("in_double") / "plugin.py"
    file.write_text(IN_DOUBLE)
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("regime", "repeated"),
    [
        ("analytic", "repeated: wrong: output: "),
        ("identity", "repeated: wrong: "),
        ("sigmoid/data", "lengths: T = 3: output: relative error"),
    ],
)
def test_a_closed_form_an_identity_and_a_property_are_repeated(
    regime: str,
    repeated: str,
    in_double: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ssmperf.run(
        "correctness", models="scan", backends="diagnosed_in_double", regime=regime, device="cpu",
        plugin=in_double, out=tmp_path / "run",
    )  # fmt: skip
    wrong = next(record for record in run.records if record.status is Status.WRONG)
    assert diagnose(monkeypatch, str(run.path), wrong.case.id) == 0
    said = capsys.readouterr().out
    assert repeated in said
    assert "in chance" not in said
