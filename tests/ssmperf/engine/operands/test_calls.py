"""Kernels that are right for plain calls and wrong for one form are named, with the cause, by every verb."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes.in_process import records_of

import ssmperf
from ssmperf import Case, Shape, Unsupported, UsageError
from ssmperf.engine.cases.calls.call import complex_refusal
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.execute.judging import Judging
from ssmperf.engine.execute.request import select
from ssmperf.engine.operands.calls.memory import copied, viewed
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.registry import tables
from ssmperf.shell.cli import main
from ssmperf.suitekit import registry

PLUGIN = Path(__file__).parents[3] / "support" / "plugins" / "broken_calls.py"
# backend -> its recurrence, a model and a regime in which it runs, and the words of its cause
BROKEN = {
    "heads_modulo": ("linear_attention", "gla", "key", "as if head h read key head h mod G"),
    "heads_backwards": ("delta_rule", "gated_deltanet", "scalar", "wrong where 4 heads share 2"),
    "leaks": (
        "linear_attention",
        "mamba2",
        "scalar",
        "as if the state of each sequence went on into the next",
    ),
    "forgets_empty": ("delta_rule", "gated_deltanet", "scalar", "wrong for packed ones of 9,0,1,36,5"),
    "loses_skip": ("selective_scan", "mamba", "exp", "skip: right without, wrong with skip"),
    "loses_bonus": ("linear_attention", "gla", "key", "no gradient reaches bonus"),
    "output_memory": (
        "scan",
        "hgrn",
        "data",
        "at the output, wrong for a sliced one: it reads the gradient's",
    ),
    "state_memory": (
        "linear_attention",
        "gla",
        "key",
        "at the final state, wrong for a sliced one: it reads",
    ),
    "state_alone": ("scan", "hgrn", "data", "wrong where only the final state has one"),
    "frozen_operand": ("linear_attention", "gla", "key", "wrong where that of k alone is"),
    "operand_alone": ("scan", "hgrn", "data", "wrong where that of b alone is"),
    "first_adds": ("scan", "hgrn", "data", "output: relative error"),
    "first_changes": ("linear_attention", "gla", "key", "it changed its input q"),
    "once": ("scan", "hgrn", "data", "second derivatives: wrong, and not refused"),
    "detached": ("delta_rule", "gated_deltanet", "scalar", "second derivatives: wrong, and not refused"),
    "half_state": ("scan", "hgrn", "data", "under autocast (final_state is bfloat16, must be float32"),
    "no_autocast": (
        "linear_attention",
        "gla",
        "key",
        "wrong under autocast (TypeError: expected scalar type",
    ),
    "state_in_place": ("scan", "hgrn", "data", "it changed its input initial_state"),
    "key_in_place": ("delta_rule", "gated_deltanet", "scalar", "it changed its input k"),
    "turns_back": ("scan", "hgrn", "data", "b:complex64: right without, wrong with b:complex64"),
}
FIRST = ("first_adds", "first_changes")  # wrong in the first call of a process alone


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ssmperf.Run:
    """Run all of them on models and on regimes, in workers."""
    out = tmp_path_factory.mktemp("calls")
    names = ",".join(f"broken_{name}" for name in BROKEN)
    models = ",".join({model for _, model, _, _ in BROKEN.values()})
    return ssmperf.run(
        "correctness", models=models, backends=names, device="cpu", plugin=PLUGIN, out=out / "run",
        axis=["T=67", "B=2"],
    )  # fmt: skip


def command_line(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run the command line in this process; give its exit code."""
    monkeypatch.setattr(sys, "argv", ["ssmperf", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def reason_of(run: ssmperf.Run, name: str) -> str:
    (record,) = [each for each in run.records if each.case.backend == f"broken_{name}" and runs(each, name)]
    assert record.status == "wrong"
    return str(record.reason)


def runs(record: ssmperf.Record, name: str) -> bool:
    return record.case.model == BROKEN[name][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_run_names_the_cause(run: ssmperf.Run, name: str) -> None:
    words = BROKEN[name][-1]
    if name == "first_adds":
        words = "its first call is wrong, a later one on the same values is right: output"
    assert words in reason_of(run, name)


@pytest.mark.parametrize("name", ["output_memory", "leaks"])
def test_a_regime_shows_it_as_a_model_does(name: str) -> None:
    of, _, kind, words = BROKEN[name]
    (record,) = records_of(
        "correctness", PLUGIN, models=of, backends=f"broken_{name}", regime=f"sigmoid/{kind}", dtype="float32"
    )
    assert record.status == "wrong"
    assert words in str(record.reason)


@pytest.mark.slow(but=("detached", "heads_modulo", "no_autocast", "turns_back"))
@pytest.mark.parametrize("name", BROKEN)
def test_verify_names_the_cause(name: str) -> None:
    registry.load_plugin(PLUGIN)
    of, _, kind, words = BROKEN[name]
    function: Any = registry.backend(of, f"broken_{name}").function
    function.__globals__.get("called", set()).clear()
    report = ssmperf.verify(of, function, gates=kind, T=67)
    assert not report
    assert words in str(report.reason)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BROKEN if name not in FIRST])
def test_diagnose_repeats_it(
    run: ssmperf.Run, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = [each for each in run.records if each.case.backend == f"broken_{name}" and runs(each, name)]
    assert command_line(monkeypatch, "diagnose", str(run.path), record.case.id) == 0
    said = re.sub(r"\s+", " ", capsys.readouterr().out).split("repeated:", 1)[1]
    assert BROKEN[name][-1] in said
    assert "or in chance" not in said


@pytest.mark.slow
def test_failed_form_is_a_field_and_an_option_that_repeats_it(run: ssmperf.Run) -> None:
    (record,) = [each for each in run.records if each.case.backend == "broken_output_memory"]
    assert record.numbers["failed_call"] == "dy:sliced"
    (again,) = records_of(
        "correctness",
        PLUGIN,
        models="hgrn",
        backends="broken_output_memory",
        call="dy:sliced",
        dtype="float32",
    )
    assert again.status == "wrong"


@pytest.mark.slow(but=("scan-options5", "selective_scan-options4", "delta_rule-options2"))
@pytest.mark.parametrize(
    ("of", "options"),
    [
        ("linear_attention", {"packing": [13, 0, 1, 7], "G": 1, "H": 2}),
        ("linear_attention", {"call": "read=pre bonus q:strided k:transposed v:sliced dy:expanded grad=k,v"}),
        ("delta_rule", {"packing": "5x3,0", "G": 2, "H": 4, "call": "ds:missing"}),
        ("selective_scan", {"packing": "3,0,9", "call": "skip output_gate delta_bias delta_softplus"}),
        ("selective_scan", {"call": "dy:transposed ds:sliced grad=x,A", "gates": "exp"}),
        ("scan", {"call": "b:expanded ds:transposed dy:missing"}),
        ("linear_attention", {"H": 4, "call": "q:one_head k:one_head v:negated"}),
        ("linear_attention", {"call": "initial_state:complex64", "gates": "key"}),
        ("linear_attention", {"call": "initial_state:complex128", "gates": "key_complex"}),
    ],
)
def test_verify_takes_packing_key_heads_and_words(of: str, options: dict[str, Any]) -> None:
    report = ssmperf.verify(of, "sequential", **options)
    assert report, report


def test_an_exception_over_complex_operands_is_a_refusal() -> None:
    """An error of the device is none."""
    assert complex_refusal("b:complex64", "RuntimeError: CUDA error: an illegal memory access") is None
    assert complex_refusal("initial_state:complex64", "ValueError: real alone") is None

    def real(log_a: torch.Tensor, b: torch.Tensor, initial_state: torch.Tensor | None = None) -> Any:
        assert not b.is_complex(), "real alone"
        return registry.recurrence("scan").definition(log_a, b, initial_state)

    report = ssmperf.verify("scan", real, T=9)
    assert report, report
    asked = ssmperf.verify("scan", real, T=9, call="b:complex64")
    assert not asked and "no complex b: AssertionError: real alone" in str(asked.reason)


def test_a_view_of_one_head_and_a_negated_one_keep_their_kind_when_copied() -> None:
    x = torch.randn(2, 5, 4, 3)
    alike, turned = viewed(x, "one_head"), viewed(x, "negated")
    assert alike.stride(2) == copied(alike).stride(2) == 0
    assert turned.is_neg() and copied(turned).is_neg()
    assert torch.equal(turned, x) and torch.equal(copied(turned), x)
    z = torch.randn(2, 5, dtype=torch.complex64)
    turned = viewed(z, "negated")
    assert turned.is_conj() and copied(turned).is_conj() and torch.equal(copied(turned), z)
    with pytest.raises(Unsupported, match="no view negated"):
        viewed(x.bfloat16(), "negated")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--axis", "G=3", "--axis", "H=4"], "G, the number of key heads, must divide H"),
        (["--axis", "packing=5,x"], "packing '5,x' is not understood"),
        (["--packing", "@no-such-file.json"], "packing @no-such-file.json"),
        (["--packing", "5,6", "--axis", "T=12"], "packing 5,6 has T = 11: leave out the axis T"),
        (["--packing", "5,6", "--axis", "packing=5"], "packing is given by --axis and by --packing"),
        (["--call", "bonsu"], "linear_attention has no optional operand bonsu (it has bonus)"),
        (["--call", "read=4="], "'read=4=' is not understood"),
        (["--call", "dq:sliced"], "linear_attention has no operand or gradient dq"),
        (["--call", "q:missing"], "'q:missing' is not understood"),
        (["--call", "q:diagonal"], "unknown view of q 'diagonal'"),
    ],
)
def test_an_illegal_form_is_one_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--suite", "correctness", "--models", "gla", "--device", "cpu", "--dry-run"]
    code = command_line(monkeypatch, *words, *options)
    said = capsys.readouterr().err
    assert code == 2
    assert message in said
    assert len(said.strip().splitlines()) == 1


def test_a_form_that_no_selected_recurrence_has_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--suite", "correctness", "--device", "cpu", "--dry-run", "--models", "hgrn"]
    assert command_line(monkeypatch, *words, "--packing", "5,6") == 2
    assert "no selected recurrence packs sequences" in capsys.readouterr().err
    assert command_line(monkeypatch, *words, "--axis", "G=2") == 2
    assert "axis 'G' is no dimension" in capsys.readouterr().err


def test_a_file_of_lengths_and_a_list_are_the_same_packing(tmp_path: Path) -> None:
    file = tmp_path / "lengths.json"
    file.write_text("[13, 0, 1, 1, 1]")
    cases: set[Case] = set()
    for packing in (f"@{file}", [13, 0, 1, 1, 1], "13,0,1x3"):
        selection, _ = select(device="cpu", models="gla", backends="sequential", packing=packing)
        cases |= {planned.case for planned in make_plan(selection, ["correctness"]).cases}
    (case,) = cases
    assert (case.packing, case.shape["T"], case.shape["B"]) == ("13,0,1x3", 16, 1)
    assert Case.from_json(case.to_json()) == case


def test_a_record_from_outside_opens_no_file(tmp_path: Path) -> None:
    (tmp_path / "lengths.json").write_text("[1]")
    with pytest.raises(UsageError, match="is not understood"):
        Case("correctness", "scan", "x", Shape(T=1), packing=f"@{tmp_path / 'lengths.json'}")


@pytest.mark.slow
def test_packed_grouped_calls_are_timed(tmp_path: Path) -> None:
    run = ssmperf.run(
        "throughput", models="gated_deltanet", backends="chunkwise,sequential", device="cpu", time=0.02,
        axis=["H=4", "G=2", "K=8", "V=8", "packing=13,5,0,1"], out=tmp_path / "run",
    )  # fmt: skip
    assert {record.status for record in run.records} == {"ok"}
    assert all(record.numbers["latency_s"] > 0 for record in run.records)


def test_the_first_call_on_operands_of_each_kind_and_shape_is_judged_beside_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[bool] = []
    backend = registry.backend("scan", "sequential")

    def counted(*operands: Any, **options: Any) -> Any:
        calls.append(torch.is_grad_enabled())
        return backend.function(*operands, **options)

    monkeypatch.setitem(tables.entries["backend"], "scan/sequential", replace(backend, function=counted))
    context = Context("cpu", "env", Settings(), ceilings=None)  # type: ignore[arg-type]

    def passes(source: str, T: int) -> int:
        """Count the calls with gradients for a case."""
        shape = Shape(B=1, T=T, C=4)
        case = Case(
            "correctness", "scan", "sequential", shape, operand_source=source, pass_="forward_backward"
        )
        calls.clear()
        assert Judging(case, context).first()[0].status == "ok"
        return sum(calls)

    assert passes("sigmoid/data", 9) == 3  # the first one, a later one, and one on other values
    assert passes("gla/data", 9) == 1
    assert passes("gla/data", 10) == 3
    assert passes("gla/const", 9) == 3
