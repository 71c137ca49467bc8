"""The Python interface: refusals say their reason in words, and repeat on a second call."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ssmperf
from ssmperf import Backend, Case, Selection, Shape, Status, Unsupported, UsageError
from ssmperf.authors import direct
from ssmperf.comparison.comparison import parse_threshold
from ssmperf.engine.execute.request import Request, select
from ssmperf.engine.plan.sizes import Sizes

LOG_A, B = -torch.rand(2, 5, 3), torch.randn(2, 5, 3)


@pytest.mark.parametrize(
    ("operands", "options", "expected"),
    [
        ((), {}, "log_a.*its operands: log_a, b, initial_state=None, phase=None"),
        ((LOG_A,), {}, "missing.*'b'"),
        ((LOG_A, B), {"decay": B}, "unexpected.*'decay'"),
        ((LOG_A.tolist(), B), {}, "log_a must be a tensor, got list"),
        ((LOG_A, None), {}, "b must be a tensor, got NoneType"),
        ((LOG_A, B), {"phase": 0.5}, "phase must be a tensor, got float"),
        ((LOG_A[:, :0], B[:, :0]), {}, "empty"),
        ((LOG_A.to("meta"), B), {}, "several devices: cpu, meta"),
    ],
)
def test_compute_names_the_operands(
    operands: tuple[Any, ...], options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        ssmperf.compute("scan", "sequential", *operands, **options)


def test_compute_calls_the_backend_or_says_why_not() -> None:
    output, final_state = ssmperf.compute("scan", "blelloch", LOG_A, b=B, phase=None)
    assert output.shape == B.shape
    torch.testing.assert_close(final_state, output[:, -1])
    with pytest.raises(Unsupported, match="no int64"):
        ssmperf.compute("scan", "sequential", LOG_A, B.long())


def test_choices_are_named_as_on_the_command_line() -> None:
    selection, found = select(
        device="cpu", axis=["T=8", "T=16"], models="hgrn, gla", dtype=["float32"], gate_dtype=None, seed=3
    )
    assert found == ("cpu",)
    assert selection.models == ("hgrn", "gla")
    assert selection.sizes == (Sizes("T", (8, 16)),)
    assert (selection.dtypes, selection.chosen("gate_dtype"), selection.chosen("seed")) == (
        ("float32",),
        None,
        3,
    )


ALIASES = {
    "float64": ("fp64", "double", torch.float64, torch.double),
    "float32": ("fp32", "float", torch.float32, torch.float),
    "bfloat16": ("bf16", torch.bfloat16),
    "float16": ("fp16", "half", torch.float16, torch.half),
}


@pytest.mark.parametrize("name", ALIASES)
def test_a_dtype_has_short_names_and_one_case(name: str) -> None:
    full = Case("correctness", "scan", "blelloch", Shape(B=1, T=2, C=3), dtype=name, gate_dtype=name)
    for alias in ALIASES[name]:
        for given in (alias, [alias], [alias, name]) + (
            (f"{alias} ,{name}",) if isinstance(alias, str) else ()
        ):
            selection, _ = select(device="cpu", dtype=given, gate_dtype=given)
            assert (selection.dtypes, selection.chosen("gate_dtype")) == ((name,), (name,))
        short = dataclasses.replace(full, dtype=alias, gate_dtype=alias)
        assert short == full and short.id == full.id and short.to_json() == full.to_json()
        assert Selection.of(dtypes=(alias,)).dtypes == (name,)
        assert ssmperf.dtype_of(alias) is getattr(torch, name)
        assert Backend("b", "scan", lambda: None, dtypes=(alias,)).dtypes == (name,)


@pytest.mark.parametrize(
    "given", ["fp8", "bf17", torch.complex64, torch.int8, 16, ["bf16", "fp8"], "bf16,,fp8"]
)
def test_an_unknown_dtype_is_refused_with_the_known_ones(given: Any) -> None:
    with pytest.raises(UsageError, match=r"known: bfloat16, float16, float32, float64|expected names"):
        select(device="cpu", dtype=given)


@pytest.mark.slow
def test_records_carry_the_full_name(tmp_path: Path) -> None:
    run = ssmperf.run(
        "correctness",
        models="hgrn",
        backends="blelloch",
        axis=["T=5", "C=2"],
        dtype=torch.bfloat16,
        gate_dtype="fp32",
        device="cpu",
        out=tmp_path / "run",
    )
    (record,) = run.records
    assert (record.status, record.case.dtype, record.case.gate_dtype) == (Status.OK, "bfloat16", "float32")
    assert "--dtype bfloat16" in record.numbers["command"]


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("inf"), float("nan")])
def test_a_timeout_is_positive_and_finite(timeout: float, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="timeout"):
        ssmperf.run("correctness", models="hgrn", device="cpu", timeout=timeout, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        ("timeout", "5", "--timeout must be a number of seconds, got '5'"),
        ("axis", None, None),
        ("axis", 64, "--axis takes sizes such as T=64"),
        ("time", True, "--time must be a number of seconds, got True"),
        ("rounds", 1.0, "--rounds must be a whole number, got 1.0"),
        ("samples", "12", "--samples must be a whole number, got '12'"),
        ("seeds", "2", "--seeds must be a whole number, got '2'"),
        ("tag", 3, "--tag must be a text, got 3"),
        ("models", 3, "expected names, got 3"),
        ("models", ssmperf, "expected names, got <module"),
        ("preset", 3, "unknown preset 3"),
        ("axis", [("T", 8)], r"axis \('T', 8\) is not understood"),
        ("device", "none", "unknown device 'none'"),
        ("devices", [], r"devices must be CUDA indices such as \(0, 1\), got \(\)"),
        ("devices", [-1], r"devices must be CUDA indices such as \(0, 1\), got \(-1,\)"),
        ("devices", "0;1", "--devices takes CUDA indices"),
    ],
)
def test_a_value_of_a_wrong_type_is_wrong_usage(keyword: str, value: Any, message: str | None) -> None:
    if message is None:
        Request.of("throughput", device="cpu", **{keyword: value})
        return
    with pytest.raises(UsageError, match=message):
        Request.of("throughput", **{"device": "cpu", keyword: value})


def test_what_is_no_name_is_an_unknown_name() -> None:
    with pytest.raises(UsageError, match=r"the threshold must look like .*, got None"):
        parse_threshold(None)  # type: ignore[arg-type]
    for call in (ssmperf.backends, lambda name: ssmperf.compute(name, "sequential")):
        with pytest.raises(ssmperf.UnknownName, match=r"unknown model or recurrence 3 \(known: "):
            call(3)


@pytest.mark.usefixtures("own_registrations")
def test_planned_refusals_carry_the_command_that_repeats_them(tmp_path: Path) -> None:
    @ssmperf.backend("scan", name="of_this_process")
    def of_this_process(log_a, b, initial_state=None, *, phase=None):
        return b, b[:, -1]

    run = ssmperf.run(
        "correctness",
        models="hgrn",
        backends="of_this_process",
        preset="smoke",
        axis=["T=5", "C=2"],
        device="cpu",
        out=tmp_path / "run",
    )
    assert run.records
    for record in run.records:
        assert record.status is Status.UNSUPPORTED
        assert record.reason is not None
        assert f"plugin={Path(__file__).resolve()}" in record.reason
        command = record.numbers["command"]
        assert command.startswith("ssmperf run --suite correctness --models hgrn --backends of_this_process")
        assert "--preset smoke" in command
        assert "--axis T=5" in command


def test_compute_sees_what_is_registered_later(own_registrations: None) -> None:
    """A model's own backend comes before its recurrence's, be it registered after a call."""
    from ssmperf.authoring import backend
    from ssmperf.engine.registry import tables

    def own(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Any = None) -> Any:
        return b, b[:, -1]

    first, _ = ssmperf.compute("hgrn", "sequential", LOG_A, B)
    backend("hgrn", name="sequential")(own)
    second, _ = ssmperf.compute("hgrn", "sequential", LOG_A, B)
    assert not torch.equal(first, B) and torch.equal(second, B)
    tables.entries["backend"].pop("hgrn/sequential")
    tables.origins.pop(("backend", "hgrn/sequential"))
    third, _ = ssmperf.compute("hgrn", "sequential", LOG_A, B)
    assert torch.equal(third, first)


def test_a_kind_of_call_that_was_taken_is_not_examined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """But on the CPU it is, and another dtype or device is."""
    target = direct.Target("scan", "triton")
    asked: list[str] = []

    def refusal(entry: Any, definition: Any, bound: dict[str, Any]) -> str | None:
        asked.append(str(bound["b"].dtype))
        return "no int64" if bound["b"].dtype == torch.int64 else None

    monkeypatch.setattr(direct, "_refusal", refusal)
    far = {"log_a": LOG_A.to("meta"), "b": B.to("meta")}
    for given in (far, far, far | {"b": far["b"].half()}, far | {"phase": None}):
        target.check((), given)
    assert asked == ["torch.float32", "torch.float16"]
    for _ in range(2):
        with pytest.raises(Unsupported, match="scan/triton no int64"):
            target.check((), far | {"b": far["b"].long()})
        target.check((LOG_A, B), {})
    assert len(asked) == 6


def test_compute_refuses_sizes_that_a_backend_does_not_declare(own_registrations: None) -> None:
    @ssmperf.backend("scan", name="of_twos", sizes={"C": range(2, 9, 2)})
    def of_twos(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Any = None) -> Any:
        return ssmperf.compute("scan", "sequential", log_a, b, initial_state, phase=phase)

    ssmperf.compute("scan", "of_twos", LOG_A[..., :2], B[..., :2])
    with pytest.raises(Unsupported, match="scan/of_twos C = 3"):
        ssmperf.compute("scan", "of_twos", LOG_A, B)
    target, far = direct.Target("scan", "of_twos"), torch.empty(2, 5, 2, device="meta")
    assert target.kind({"log_a": far, "b": far}) != target.kind({"log_a": far[..., :1], "b": far[..., :1]})
