"""The stability suite: planted faults, their place and their size; models and regimes, with their decay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ssmperf.suites.stability import LENGTHS, MIXED, usual_sources
from ssmperf.suites.stability_numbers import PIECES, state_envelope, tf32_allowed
from support.processes.commands import repeated
from support.processes.in_process import records_of

from ssmperf import Case, Record, Shape, UnknownName, Unsupported
from ssmperf.engine.execute.request import select
from ssmperf.engine.operands.build import build_operands
from ssmperf.engine.plan import command_that_repeats, make_plan
from ssmperf.engine.plan.selection import Device, Selection
from ssmperf.engine.trial.judge import errors_along_time
from ssmperf.suitekit import Envelope, decay_span, envelope_of, registry

PLUGIN = Path(__file__).parents[1] / "support" / "plugins" / "faulty.py"
NAN_STEP = 40
WRAPPED_STEP = 300
FAULTY = ("nan_at_40", "half_state", "boasts")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return records_of(
        "stability",
        PLUGIN,
        models="scan",
        backends=["sequential", "logspace", "surrogate_raw", *(f"faulty_{name}" for name in FAULTY)],
        regime="sigmoid/data,ones/data",
        axis=["T=256", "C=4", "B=2"],
        dtype="float32",
    )


def of(records: list[Record], backend: str, source: str = "sigmoid/data") -> Record:
    (record,) = [r for r in records if r.case.backend == backend and r.case.operand_source == source]
    return record


def test_a_case_for_each_regime_and_backend(records: list[Record]) -> None:
    assert len(records) == 2 * 6
    assert {record.case.model for record in records} == {None}


def test_the_first_nan_has_its_place(records: list[Record]) -> None:
    record = of(records, "faulty_nan_at_40")
    assert record.status == "nan"
    assert record.numbers["first_nan_step"] == NAN_STEP
    assert 0 <= record.numbers["largest_finite_error"] < 1e-5
    pieces = zip(record.numbers["steps"], record.numbers["error_envelope"], strict=True)
    broken = [end for end, error in pieces if error is None]
    assert broken == [next(end for end in record.numbers["steps"] if end > NAN_STEP)]


def test_a_half_precision_state_shows(records: list[Record]) -> None:
    """Without decay the error grows along the sequence, far beyond float32's."""
    for source in ("sigmoid/data", "ones/data"):
        record = of(records, "faulty_half_state", source)
        assert record.status == "wrong"
        assert record.numbers["error_output"] > 1e-4
        assert (
            record.numbers["error_output"] > 100 * of(records, "sequential", source).numbers["error_output"]
        )
        assert record.numbers["error_final_state"] > 1e-5
    envelope = of(records, "faulty_half_state", "ones/data").numbers["error_envelope"]
    assert max(envelope[-4:]) > 3 * max(envelope[:4])


def test_a_sound_backend_is_right_and_has_no_bound(records: list[Record]) -> None:
    numbers = of(records, "sequential").numbers
    assert of(records, "sequential").status == "ok" and numbers["error_output"] < 1e-5
    assert numbers["first_nan_step"] is None
    assert numbers["error_bound"] is None and numbers["bound_holds"] is None
    assert max(numbers["error_envelope"]) == pytest.approx(numbers["largest_finite_error"])


def test_whether_a_declared_bound_holds(records: list[Record]) -> None:
    """The faulty error is within the tolerance, yet not within the bound that this backend declares."""
    honest, boasting = of(records, "logspace").numbers, of(records, "faulty_boasts").numbers
    assert honest["bound_holds"] is True
    assert honest["error_bound"] > honest["error_output"]
    assert boasting["bound_holds"] is False and boasting["error_bound"] == 1e-9


def test_beyond_its_span_a_backend_refuses_with_the_reason(records: list[Record]) -> None:
    refused = of(records, "surrogate_raw")
    assert refused.status == "unsupported" and "88.7" in str(refused.reason)
    assert refused.numbers["decay_span"] > 88.7
    assert refused.numbers["command"].startswith("ssmperf run --suite stability --models scan")
    assert of(records, "surrogate_raw", "ones/data").status == "ok"


def test_growth_without_decay_shows_in_the_envelope(records: list[Record]) -> None:
    free, decaying = (of(records, "sequential", s).numbers for s in ("ones/data", "sigmoid/data"))
    assert free["largest_state"] > 3 * decaying["largest_state"]
    assert free["largest_state"] == max(free["state_envelope"])
    assert free["steps"][-1] == 256 and len(free["steps"]) == PIECES


@pytest.mark.parametrize("T", [5, 16, 37])
def test_the_envelope_is_the_state_at_the_ends(T: int) -> None:
    case = Case(
        suite="stability",
        recurrence="scan",
        backend="",
        shape=Shape(B=2, T=T, C=3),
        dtype="float64",
        operand_source="sigmoid/data",
    )
    ends, envelope = state_envelope(case, build_operands(case))
    states, _ = registry.recurrence("scan").definition(**build_operands(case))
    assert ends[-1] == T and len(ends) == min(PIECES, T)
    assert envelope == pytest.approx([float(states[:, end - 1].abs().max()) for end in ends])


def test_values_that_are_not_finite_hide_no_error() -> None:
    expected = torch.full((1, 4, 2), 2.0, dtype=torch.float64)
    output = expected.float().clone()
    output[0, 1, 0] += 0.5
    output[0, 2, 1] = float("inf")
    found = errors_along_time(output, expected, (1, 2, 3, 4), 0.3)
    assert found["first_nan_step"] == 2
    assert found["largest_finite_error"] == 0.25
    assert found["first_wrong_step"] == 2 and found["phase_drift"] is None
    assert found["error_envelope"][:2] == [0.0, 0.25] and found["error_envelope"][3] == 0


def test_usual_gates_and_phases() -> None:
    assert usual_sources("scan", "sigmoid") == ["sigmoid/data"]
    assert usual_sources("scan", "phase") == ["phase/data_complex"]
    assert usual_sources("linear_attention", "reset") == ["reset/key"]


def test_models_run_with_their_own_decay_and_with_others() -> None:
    cases = planned(models=("gla", "hgrn", "mamba", "lru", "longhorn", "gru"))
    assert {case.model for case in cases} == {"gla", "hgrn", "mamba", "lru", "longhorn", "gru"}
    found = {name: {c.operand_source for c in cases if c.model == name} for name in ("gla", "mamba", "gru")}
    assert found["gla"] == {"model", "decay/0", "decay/10", "decay/reset"}
    assert found["mamba"] == {"model", "decay/0", "decay/10"}  # Δ·A: no single step can be a reset
    assert found["gru"] == {"model"}  # it has no log gates
    assert {c.operand_source for c in cases if c.model == "longhorn"} == {"model"}
    assert {c.operand_source for c in cases if c.model == "lru"} == {"model", "decay/0", "decay/10"}
    assert {case.dtype for case in cases} == {"float32", "bfloat16"}


def test_recurrences_run_bare_only_if_they_or_regimes_are_named() -> None:
    assert {case.model is None for case in planned()} == {False}
    assert {case.operand_source for case in planned(models=("scan",), regimes=("sigmoid",))} == {
        f"sigmoid/{kind}" for kind in registry.recurrence("scan").gate_kinds
    }
    assert {case.model for case in planned(regimes=("ones",))} == {None}
    under = planned(models=("gla",), regimes=("mamba", "decay/3"))
    assert {(case.model, case.operand_source) for case in under} == {("gla", "mamba"), ("gla", "decay/3")}
    with pytest.raises(UnknownName, match="sideways"):
        planned(models=("gla",), regimes=("decay/sideways",))


def test_one_model_stands_for_each_kind_of_gate() -> None:
    entries = [registry.model(name) for name in {case.model for case in planned() if case.model}]
    kinds = {(entry.recurrence, entry.gate) for entry in entries}
    every = {
        (registry.model(name).recurrence, registry.model(name).gate)
        for name in registry.models()
        if ":" not in name
    }
    assert kinds == every and len(entries) == len(kinds)


def test_lengths_reach_a_million_steps_on_a_gpu_and_loops_only_a_part() -> None:
    gpu = Selection.of(Device("cuda", 140 * 2**30, (9, 0)), models=("hgrn", "deltanet"))
    plan = make_plan(gpu, ("stability",))
    reached = {
        (case.model, case.backend): max(c.shape["T"] for c in plan.to_run if c.model == case.model
                                        and c.backend == case.backend)
        for case in plan.to_run
    }  # fmt: skip
    assert reached["hgrn", "hillis_steele"] == max(LENGTHS) == 2**20
    assert 4096 <= reached["hgrn", "sequential"] < 2**20
    assert reached["deltanet", "hillis_steele"] == MIXED
    assert {case.shape["B"] for case in plan.to_run} == {1}


def test_a_command_repeats_one_source_of_a_model() -> None:
    cases = [case for case in planned(models=("gla",)) if case.shape["T"] == 64 and case.dtype == "float32"]
    assert len({str(case) for case in cases}) == len(cases) == 4
    assert [repeated(command_that_repeats(case)) for case in cases] == [[case] for case in cases]


def planned(**choices: Any) -> list[Case]:
    """Cases of the backend that every recurrence has."""
    selection = Selection.of(Device("cpu"), backends=("sequential",), **choices)
    return list(registry.suite("stability").cases(selection))


@pytest.mark.parametrize("name", ["hgrn", "gla", "rwkv4", "mamba", "gated_deltanet", "lru"])
def test_the_decay_of_a_model_is_scaled(name: str) -> None:
    entry = registry.model(name)
    recurrence = registry.recurrence(entry.recurrence)

    def operands(source: str) -> dict[str, Any]:
        shape = registry.shapes(entry, "smoke")[0].with_(B=1, T=300)
        return build_operands(Case("stability", recurrence.name, "", shape, name, operand_source=source))

    own = operands("model")
    spans = {
        factor: decay_span(recurrence, operands(f"decay/{factor}")) for factor in ("0", "0.1", "1", "10")
    }
    span = decay_span(recurrence, own)
    assert span > 0 and spans["0"] == 0
    assert [spans[factor] / span for factor in ("0.1", "1", "10")] == pytest.approx([0.1, 1, 10], rel=1e-4)
    if recurrence.resets(entry.gate):
        log_gate = operands("decay/reset")[recurrence.log_gates(entry.gate)[0]]
        assert 0 < float(torch.isinf(log_gate).float().mean()) < 0.1


def test_no_log_gates_no_other_decay() -> None:
    shape = registry.shapes(registry.model("gru"), "smoke")[0]
    with pytest.raises(Unsupported, match="no log gates"):
        build_operands(Case("stability", "rnn", "", shape, "gru", operand_source="decay/0"))


@pytest.fixture(scope="module")
def grown() -> list[Record]:
    """Records of hgrn, whose decay span is about 1.2 per step, with planted faults that lengths find."""
    names = ("overflows", "wraps", "varies")
    return records_of(
        "stability",
        PLUGIN,
        models="hgrn",
        backends=["sequential", "logspace", "surrogate_raw", *(f"faulty_{name}" for name in names)],
        regime="model,decay/0,decay/10",
        axis=["T=64,80,256,512", "C=4"],
        dtype="float32",
    )


def test_tf32_is_allowed_for_a_while() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    with pytest.raises(ZeroDivisionError), tf32_allowed():
        assert torch.backends.cuda.matmul.allow_tf32
        raise ZeroDivisionError
    assert torch.backends.cuda.matmul.allow_tf32 == before


def by_place(records: list[Record], backend: str) -> dict[tuple[str, int], Record]:
    return {(r.case.operand_source, r.case.shape["T"]): r for r in records if r.case.backend == backend}


def envelope(records: list[Record], backend: str) -> Envelope:
    mine = by_place(records, backend).values()
    return envelope_of([(str(r.status), {**r.case.shape, **r.numbers}) for r in mine], ("decay_span", "T"))


@pytest.mark.slow
def test_the_error_of_logarithms_is_proportional_to_the_span(grown: list[Record]) -> None:
    """docs/recurrences.md#logspace: about 1e-7 of the span, and 4e-7 at most."""
    found = by_place(grown, "logspace").values()
    long = [r.numbers for r in found if r.status == "ok" and r.numbers["decay_span"] > 100]
    assert len(long) >= 4
    assert all(1e-8 < n["error_output"] / n["decay_span"] < 4e-7 for n in long)
    assert max(n["error_output"] for n in long) > 5 * min(n["error_output"] for n in long)
    assert all(r.numbers["error_output"] < 1e-5 for r in by_place(grown, "sequential").values())


def test_the_raw_surrogate_ends_at_a_span_of_88(grown: list[Record]) -> None:
    found = by_place(grown, "surrogate_raw").values()
    assert {(r.status == "ok", r.numbers["decay_span"] < 88.7) for r in found} == {
        (True, True),
        (False, False),
    }
    limits = envelope(grown, "surrogate_raw")
    assert 60 < limits.largest["decay_span"] < 88.7 and limits.limited == {"decay_span"}
    assert limits.largest["T"] == 512


def test_an_overflow_is_found_at_its_step(grown: list[Record]) -> None:
    """Beyond the span of 88.7 the planted product of gates has no inverse in float32."""
    for (source, T), record in by_place(grown, "faulty_overflows").items():
        operands = build_operands(record.case)
        spans = -operands["log_a"].double().cumsum(1).amin((0, 2))
        if record.status == "ok":
            assert spans[-1] < 88.8, (source, T)
        else:
            assert record.status == "nan"
            assert 80 < float(spans[record.numbers["first_nan_step"]]) < 110, (source, T)
    assert 60 < envelope(grown, "faulty_overflows").largest["decay_span"] < 88.7


def test_a_fault_beyond_a_length_is_found_at_that_length(grown: list[Record]) -> None:
    found = by_place(grown, "faulty_wraps")
    for (source, T), record in found.items():
        assert (record.status == "wrong") == (T > WRAPPED_STEP), (source, T, record.reason)
        if record.status == "wrong":
            assert record.numbers["first_wrong_step"] == WRAPPED_STEP
    limits = envelope(grown, "faulty_wraps")
    assert limits.largest["T"] == 256 and limits.limited == {"T"}


def test_backends_are_called_again_for_the_same_bits_and_rounded_gates(grown: list[Record]) -> None:
    sound, varied = (by_place(grown, name)["model", 256].numbers for name in ("sequential", "faulty_varies"))
    assert sound["deterministic"] is True and varied["deterministic"] is False
    assert 1e-4 < sound["gate_dtype_difference"] < 1e-1
    free = by_place(grown, "sequential")["decay/0", 256].numbers
    assert free["gate_dtype_difference"] == 0
    assert "deterministic" not in by_place(grown, "sequential")["model", 64].numbers


def test_sums_of_phases_in_float32_drift_with_length() -> None:
    records = records_of(
        "stability",
        PLUGIN,
        models="s5",
        backends=["hillis_steele", "faulty_turns"],
        regime="decay/0",
        axis=["T=16,2048", "C=8"],
        dtype="float32",
    )
    short, long = (by_place(records, "faulty_turns")["decay/0", T] for T in (16, 2048))
    sound = by_place(records, "hillis_steele")["decay/0", 2048]
    assert short.status == "ok" and long.status == "wrong" and sound.status == "ok"
    assert long.numbers["phase_drift"] > 5 * max(short.numbers["phase_drift"], sound.numbers["phase_drift"])
    assert 16 <= long.numbers["first_wrong_step"] < 2048


def test_a_backend_that_is_named_is_tried_at_every_length() -> None:
    for backends, lengths in ((None, {64, 512}), ("surrogate", {64, 512, 4096})):
        selection, _ = select(device="cpu", models="gla", backends=backends, regime="model")
        plan = make_plan(selection, ["stability"])
        assert {case.shape["T"] for case in plan.to_run if case.backend == "surrogate"} == lengths
        refused = {
            item.case.shape["T"]: item.refusal for item in plan.refused if item.case.backend == "surrogate"
        }
        assert set(refused) == {64, 512, 4096} - lengths
        assert all("--backends" in str(reason) for reason in refused.values())


def test_of_a_million_steps_what_is_slow_is_refused_with_a_reason() -> None:
    """Kernels that take one step after another take seconds there. All lengths have a status."""
    gpu = Selection.of(Device("cuda", 140 * 2**30, (9, 0)), models=("hgrn", "gla", "cosformer"))
    plan = make_plan(gpu, ("stability",))
    ran, refused = (
        {(case.model, case.backend) for case in cases if case.shape["T"] == max(LENGTHS)}
        for cases in (plan.to_run, [item.case for item in plan.refused])
    )
    assert {("hgrn", "triton"), ("gla", "triton"), ("gla", "chunkwise"), ("hgrn", "blelloch")} <= ran
    slow = {(model, "logspace") for model in ("hgrn", "gla", "cosformer")}
    assert slow | {("hgrn", "sequential"), ("hgrn", "surrogate_raw")} <= refused - ran
    assert all("s per call is more than" in str(item.refusal) or "GiB" in str(item.refusal)
               for item in plan.refused if (item.case.model, item.case.backend) in slow)  # fmt: skip
    named = Selection.of(gpu.device, models=("hgrn",), backends=("surrogate_raw",))
    assert max(case.shape["T"] for case in make_plan(named, ("stability",)).to_run) == max(LENGTHS)
