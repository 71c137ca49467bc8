"""The correctness suite: the cases it plans, the faults it finds, and the backends that must be right."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes.commands import repeated

from ssmperf import REGIMES, Backend, Record, Status
from ssmperf.engine.cases.case import split_source
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.execute.judging import Judging
from ssmperf.engine.execute.worker import run_case
from ssmperf.engine.judge.tolerance import perturb
from ssmperf.engine.operands.decay import decay_span
from ssmperf.engine.plan.command import command_that_repeats
from ssmperf.engine.plan.plan import Plan, make_plan
from ssmperf.engine.plan.selection import Device, Selection
from ssmperf.engine.plan.sizes import Sizes
from ssmperf.engine.registry import tables
from ssmperf.suitekit import registry

TESTS = Path(__file__).parent.parent
MUST_BE_OK = json.loads((TESTS / "must_be_ok.json").read_text())
MILD = "gla"  # a regime whose decay no backend refuses


def new_context() -> Context:
    return Context("cpu", "env", Settings(), ceilings=None)  # type: ignore[arg-type]


def plan(**choices: Any) -> Plan:
    return make_plan(Selection.of(**choices), ["correctness"])


def run(**choices: Any) -> list[Record]:
    """Run the cases of a selection in this process."""
    context = new_context()
    return [run_case(case, context) for case in plan(**choices).to_run]


def with_backend(monkeypatch: pytest.MonkeyPatch, of: str, name: str, **changes: Any) -> None:
    """Change the function or the declarations of a built-in backend for this test."""
    entry = registry.backend(of, name)
    fields = {field: getattr(entry, field) for field in Backend.__dataclass_fields__}
    monkeypatch.setitem(tables.entries["backend"], f"{of}/{name}", Backend(**{**fields, **changes}))


def test_the_default_selection_covers_models_regimes_closed_forms_and_identities() -> None:
    cases = [planned.case for planned in plan().cases]
    assert {case.model for case in cases} - {None} == set(registry.models())
    sources = {case.operand_source for case in cases if case.model is None}
    assert {split_source(source)[0] for source in sources} == {*REGIMES, "analytic", "identity"}
    for name, recurrence in registry.recurrences().items():
        for kind in recurrence.gate_kinds:
            backends = {
                c.backend for c in cases if (c.recurrence, c.operand_source) == (name, f"sigmoid/{kind}")
            }
            assert backends == set(registry.backend_names(name))
        assert {f"analytic/{label}" for label in registry.analytics(name)} <= sources
    assert {f"identity/{label}" for label in registry.identities()} <= sources
    assert max(Counter((c.model or c.recurrence, c.operand_source, c.backend) for c in cases).values()) == 1


@pytest.mark.parametrize(
    ("of", "source"),
    [
        ("scan", "sigmoid/const"),
        ("scan", "analytic/geometric"),
        ("selective_scan", "identity/f3_is_f2_with_a_head_a_channel"),
    ],
)
def test_every_kind_of_case_can_be_repeated_alone(of: str, source: str) -> None:
    (case,) = (item.case for item in plan(models=(of,), regimes=(source,), backends=("sequential",)).cases)
    command = command_that_repeats(case, ())
    assert {("--models", of), ("--backends", "sequential"), ("--regime", source)} <= set(
        pairwise(shlex.split(command))
    )
    assert repeated(command) == [case]


def test_a_model_named_alone_is_judged_on_its_own_operands() -> None:
    (case,) = (item.case for item in plan(models=("gla",), backends=("sequential",)).cases)
    assert (case.model, case.operand_source, case.pass_) == ("gla", "model", "forward_backward")


def test_an_identity_is_found_by_the_models_that_it_speaks_of() -> None:
    found = {item.case.operand_source for item in plan(models=("hgrn2",), regimes=("identity",)).cases}
    assert {"identity/hgrn2_is_gla_with_tied_key", "identity/hgrn2_of_head_width_one_is_hgrn"} == found


def test_a_backend_without_float64_meets_closed_forms_in_float32() -> None:
    cases = [item.case for item in plan(models=("scan",), regimes=("analytic",)).cases]
    assert {c.dtype for c in cases if c.backend == "triton"} == {"float32"}
    assert {c.dtype for c in cases if c.backend == "blelloch"} == {"float64"}


def test_all_properties_hold_of_a_right_backend_and_are_recorded() -> None:
    (record,) = run(models=("scan",), regimes=("reset/data",), backends=("blelloch",))
    assert record.status is Status.OK, record.reason
    measured = {name for name, error in record.numbers["properties"].items() if error is not None}
    assert measured == {"lengths", "state_passing", "causality", "prefix", "batch_independence",
                        "determinism", "linearity", "delay", "reset"}  # fmt: skip
    assert record.numbers["failed_property"] is None


def faults() -> dict[str, Any]:
    """Make wrappers around a right scan. Each breaks one property, at the lengths of the probe only."""
    calls = Counter[str]()
    odd = 1 + 1e-6

    def state_passing(f: Any, b: Any, kw: Any) -> Any:
        output, state = f(b=b, **kw)
        return output, state * odd if b.shape[1] < 37 and b.shape[1] not in (1, 2, 3, 16, 17) else state

    def causality(f: Any, b: Any, kw: Any) -> Any:
        output, state = f(b=b, **kw)
        return output + (1e-13 * b[:, -1:].detach() if b.shape[1] == 37 else 0), state

    def batch_independence(f: Any, b: Any, kw: Any) -> Any:
        output, state = f(b=b, **kw)
        return output + (1e-14 * b.detach().flip(0) if b.shape[1] == 37 else 0), state

    def determinism(f: Any, b: Any, kw: Any) -> Any:
        output, state = f(b=b, **kw)
        calls["n"] += b.requires_grad and b.shape[1] == 37
        return output * (1 + 1e-14 * (calls["n"] % 2)), state

    def linearity(f: Any, b: Any, kw: Any) -> Any:
        output, state = f(b=b, **kw)
        return output + (1e-3 * (b.detach().abs().amax() > 5) if b.shape[1] == 37 else 0), state

    def delay(f: Any, b: Any, kw: Any) -> Any:
        output, state = f(b=b, **kw)
        return output * (odd if b.shape[1] == 40 else 1), state

    def prefix(f: Any, b: Any, kw: Any) -> Any:
        output, state = f(b=b, **kw)
        return output * (odd if b.shape[1] == 19 else 1), state

    def lengths(f: Any, b: Any, kw: Any) -> Any:
        output, state = f(b=b, **kw)
        return output * (odd if b.shape[1] == 63 else 1), state

    def reset(f: Any, b: Any, kw: Any) -> Any:
        kw = {**kw, "log_a": kw["log_a"].clamp(min=-5.0) if b.shape[1] == 37 else kw["log_a"]}
        return f(b=b, **kw)

    return {f.__name__: f for f in (state_passing, causality, batch_independence, determinism, linearity,
                                    delay, prefix, lengths, reset)}  # fmt: skip


@pytest.mark.parametrize("broken", faults())
def test_each_property_is_seen_to_fail(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, fault = registry.backend("scan", "blelloch").function, faults()[broken]

    def wrong(log_a: Any, b: Any, initial_state: Any = None, *, phase: Any = None) -> Any:
        return fault(right, b, {"log_a": log_a, "initial_state": initial_state, "phase": phase})

    with_backend(monkeypatch, "scan", "blelloch", function=wrong)
    (record,) = run(models=("scan",), regimes=("s4d/data",), backends=("blelloch",))
    assert record.status is Status.WRONG
    assert record.numbers["failed_property"] == broken, record.reason
    assert record.reason and record.reason.startswith(broken)


@pytest.mark.parametrize(("leak", "status"), [(1e-14, Status.OK), (1e-3, Status.WRONG)])
def test_a_backend_may_declare_that_batch_items_round_together(
    leak: float, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = registry.backend("scan", "blelloch").function

    def mixes(log_a: Any, b: Any, initial_state: Any = None, *, phase: Any = None) -> Any:
        output, state = right(log_a, b, initial_state, phase=phase)
        return output + (leak * b.detach().flip(0) if b.shape[1] == 37 else 0), state

    with_backend(monkeypatch, "scan", "blelloch", function=mixes, batches="tolerance")
    (record,) = run(models=("scan",), regimes=("s4d/data",), backends=("blelloch",))
    assert record.status is status, record.reason


def test_gradients_through_a_passed_state_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    right = registry.backend("scan", "blelloch").function

    def detaches(log_a: Any, b: Any, initial_state: Any = None, *, phase: Any = None) -> Any:
        output, state = right(log_a, b, initial_state, phase=phase)
        return output, state.detach() if b.shape[1] == 16 and len(b) == 2 and log_a.stride()[
            0
        ] > 150 else state

    with_backend(monkeypatch, "scan", "blelloch", function=detaches)
    (record,) = run(models=("scan",), regimes=("s4d/data",), backends=("blelloch",))
    assert (record.status, record.numbers["failed_property"]) == (Status.WRONG, "state_passing")


def test_a_wrong_lowering_condemns_every_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = registry.model("gla").cls
    original = cls.readout
    monkeypatch.setattr(cls, "readout", lambda self, output, x: original(self, output, x) * 1.0000001)
    records = run(models=("gla",), backends=("sequential", "chunkwise"))
    assert len(records) == 2
    for record in records:
        assert record.status is Status.WRONG and "lowering" in str(record.reason)
        assert record.numbers["error_lowering"] == pytest.approx(1e-7, rel=0.1)


def test_another_function_by_declaration_is_neither_right_nor_wrong() -> None:
    for regime in ("sigmoid/key", "analytic/slots"):
        (record,) = run(
            models=("linear_attention",),
            regimes=(regime,),
            backends=("surrogate_softmax",),
            dtypes=("float32",),
        )
        assert record.status is Status.UNSUPPORTED
        assert "another function" in str(record.reason)
        assert not record.numbers["tolerances"]


def test_another_function_that_fails_its_own_definition_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = registry.backend("linear_attention", "surrogate_softmax").function

    def wrong(q: Any, k: Any, v: Any, log_a: Any = None) -> Any:
        return right(q, k, 1.001 * v, log_a)

    with_backend(monkeypatch, "linear_attention", "surrogate_softmax", function=wrong)
    (record,) = run(models=("gla",), backends=("surrogate_softmax",))
    assert record.status is Status.WRONG


def test_a_wrong_definition_is_not_taken_for_a_wrong_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = registry.recurrence("scan")
    right = entry.definition

    def wrong(log_a: Any, b: Any, initial_state: Any = None, *, phase: Any = None) -> Any:
        return right(log_a, b * 1.001, initial_state, phase=phase)

    monkeypatch.setitem(tables.entries["recurrence"], "scan", replace(entry, definition=wrong))
    (record,) = run(models=("scan",), regimes=("analytic/geometric",), backends=("blelloch",))
    assert record.status is Status.WRONG and "the definition does not give" in str(record.reason)


def test_a_float32_phase_sum_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = registry.backend("scan", "surrogate").function

    def narrow(log_a: Any, b: Any, initial_state: Any = None, *, phase: Any = None) -> Any:
        return right(log_a, b, initial_state, phase=None if phase is None else phase.float().to(phase.dtype))

    with_backend(monkeypatch, "scan", "surrogate", function=narrow)
    (record,) = run(models=("scan",), regimes=("phase/data_complex",), backends=("surrogate",))
    assert record.numbers["failed_property"] == "lengths"


def test_a_state_of_another_dtype_at_the_lengths_of_the_probe_is_wrong_and_not_nan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = registry.backend("scan", "sequential").function

    def narrow(log_a: Any, b: Any, initial_state: Any = None, *, phase: Any = None) -> Any:
        output, state = right(log_a, b, initial_state, phase=phase)
        return output, state.float()

    with_backend(monkeypatch, "scan", "sequential", function=narrow)
    (record,) = run(
        models=("scan",), regimes=("sigmoid/data",), backends=("sequential",), dtypes=("float32",)
    )
    assert record.status is Status.WRONG
    assert record.reason == "lengths: T = 1: final_state is float32, must be float64 (float64)"


def combinations(device: str) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """(backend, dtype) that must be ok, by (recurrence, gate kind), on a device type."""
    wanted: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for group in MUST_BE_OK:
        if group.get("device", "cpu") == device:
            for kind in group["gates"]:
                pairs = {(name, dtype) for name in group["backends"] for dtype in group["dtypes"]}
                wanted.setdefault((group["recurrence"], kind), set()).update(pairs)
    return wanted


def test_the_matrix_has_every_recurrence_and_every_gate_kind() -> None:
    kinds = {(name, kind) for name, entry in registry.recurrences().items() for kind in entry.gate_kinds}
    assert set(combinations("cpu")) == kinds


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_must_be_ok_is_planned(device: str) -> None:
    for (recurrence, kind), wanted in combinations(device).items():
        planned = plan(
            device=Device(device, capability=(9, 0) if device == "cuda" else None),
            models=(recurrence,),
            regimes=(f"{MILD}/{kind}",),
            dtypes=tuple(sorted({dtype for _, dtype in wanted})),
            preset="smoke",
        )
        assert wanted <= {(case.backend, case.dtype) for case in planned.to_run}, (recurrence, kind)


@pytest.mark.slow(but=("long_conv", "rnn"))
@pytest.mark.parametrize("recurrence", sorted({group["recurrence"] for group in MUST_BE_OK}))
def test_what_must_be_ok_is_ok(recurrence: str) -> None:
    context, problems = new_context(), []
    for (name, kind), wanted in combinations("cpu").items():
        if name != recurrence:
            continue
        cases = plan(models=(name,), regimes=(f"{MILD}/{kind}",), dtypes=("float32", "float64")).to_run
        for case in (case for case in cases if (case.backend, case.dtype) in wanted):
            record = run_case(case, context)
            if record.status is not Status.OK:
                problems.append(f"{kind} {case.backend} {case.dtype}: {record.status} {record.reason}")
    assert not problems


def test_the_decay_span_of_a_constant_gate_counts_every_step() -> None:
    operands = {"log_a": torch.tensor([[[-2.0, -0.5]]]), "b": torch.zeros(1, 9, 2)}
    assert decay_span(registry.recurrence("scan"), operands) == 18
    operands["log_a"] = operands["log_a"].view(2)
    assert decay_span(registry.recurrence("scan"), operands) == 18


def test_an_error_bound_counts_a_reset_as_what_logarithms_are_clamped_to() -> None:
    context = new_context()
    (case,) = plan(models=("scan",), regimes=("gla/data",), backends=("logspace",)).to_run
    operands = {"log_a": torch.full((1, 9, 2), -1000.0), "b": torch.zeros(1, 9, 2)}
    bounds = [Judging(case, context).bound(operands)]
    operands["log_a"][:] = -torch.inf
    bounds.append(Judging(case, context).bound(operands))
    assert bounds[0] == bounds[1] == pytest.approx(20 * 2**-24 * 9 * 104)
    assert Judging(replace(case, backend="blelloch"), context).bound(operands) is None


def test_operands_are_moved_without_making_infinite_ones_no_number() -> None:
    value = torch.complex(torch.tensor([-torch.inf, 1.0]), torch.tensor([0.3, 2.0]))
    moved = perturb({"A": value}, torch.float64)["A"]
    assert moved[0].real == -torch.inf and bool(torch.isfinite(torch.view_as_real(moved)[:, 1]).all())
    torch.testing.assert_close(moved[1], value[1].to(moved.dtype), rtol=1e-7, atol=0)
    assert moved[1] != value[1]


@pytest.mark.slow
def test_in_half_precision_one_regime_stands_for_all() -> None:
    cases = [item.case for item in plan(device=Device("cuda", capability=(9, 0))).cases]
    halves = {split_source(c.operand_source)[0] for c in cases if c.model is None and c.dtype == "bfloat16"}
    assert halves == {"sigmoid"}
    assert max(c.shape["T"] for c in cases if c.model is None) < 100 < max(c.shape["T"] for c in cases)


@pytest.mark.slow
def test_models_keep_the_sizes_of_a_head_and_the_length_of_their_preset() -> None:
    """Sequences and heads are few, since all are computed alike."""
    on_gpu = Device("cuda", capability=(9, 0))
    for case in plan(device=on_gpu).to_run:
        if case.model is not None and case.operand_source == "model":
            full = min(registry.shapes(registry.model(case.model), "standard"), key=lambda shape: shape["T"])
            assert all(case.shape[letter] == full[letter] for letter in full if letter not in "BHT")
            assert case.shape["T"] == full["T"] + 3
            assert case.shape["B"] <= (1 if full["T"] > 1000 else 3)
            if "H" in full:
                heads, head = case.shape["H"], case.shape["K"] * case.shape["V"]
                assert heads == 1 or heads * head <= 3 * 128**2
                assert heads == full["H"] or (heads + 1) * head > 3 * 128**2
    chosen = plan(device=on_gpu, models=("gla",), sizes=(Sizes("H", (16,)), Sizes("B", (4,)))).to_run
    assert {(case.shape["B"], case.shape["H"]) for case in chosen} == {(4, 16)}
