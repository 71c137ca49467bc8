"""The memory suite: processes of its cases, faults that its numbers show, blocks, and what it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ssmperf.suites import memory_numbers
from ssmperf.suites.memory import longest
from support.processes.in_process import CEILINGS, records_of

import ssmperf
from ssmperf import Case, Record, Run, Shape, Status
from ssmperf.authoring import build_block
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.execute.request import select
from ssmperf.engine.plan.parts.groups import needs_fresh_process
from ssmperf.engine.plan.plan import make_plan
from ssmperf.suitekit import registry

PLUGIN = Path(__file__).parents[1] / "support" / "plugins" / "faulty.py"
T, C, B = 64, 32, 2
ELEMENTS = 4 * B * T * C  # bytes of b
EXPECTED = {
    "none": ("ok", None),
    "leaks": ("ok", None),
    "leaks_bytes": ("ok", None),
    "modest": ("ok", None),
    "quadratic": ("ok", None),
    "hoards": ("ok", None),
    "forward_only": ("ok", None),
    "wrong": ("wrong", "output: relative error"),
    "aborts": ("crash", "SIGABRT"),
    "leaves": ("crash", "the worker exited with 0"),
    "allocates": ("oom", "memory"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    """Run all faulty backends, and sound ones among them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULTY_FOLDER", str(folder))
        return ssmperf.run(
            "memory",
            models="hgrn",
            backends=["sequential", *(f"faulty_{name}" for name in EXPECTED)],
            axis=[f"T={T}", f"C={C}", f"B={B}"],
            dtype="float32",
            device="cpu",
            plugin=PLUGIN,
            timeout=60,
            out=folder / "run",
        )


def of(run: Run, name: str) -> Record:
    (record,) = [r for r in run.records if r.case.backend in (name, f"faulty_{name}")]
    return record


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_each_case_has_its_status(run: Run, name: str) -> None:
    status, reason = EXPECTED[name]
    record = of(run, name)
    assert record.status == status, record.reason
    assert reason is None or reason in str(record.reason)


def test_a_peak_or_a_reason(run: Run) -> None:
    for record in run.records:
        peak = record.numbers.get("peak_bytes")
        if record.status is Status.OK:
            assert peak > 0 or record.numbers["peak_bytes_reason"]
        else:
            assert peak is None


def test_peaks_hold_the_results_and_the_gradients(run: Run) -> None:
    """At least the output, and with a backward pass the gradients of log_a and b."""
    record = of(run, "sequential")
    assert record.numbers["forward_peak_bytes"] >= ELEMENTS
    assert record.numbers["peak_bytes"] >= record.numbers["graph_bytes"] >= ELEMENTS
    assert record.numbers["peak_bytes"] >= 2 * ELEMENTS
    assert record.numbers["operand_bytes"] == 2 * ELEMENTS
    assert 0.9 < record.numbers["growth_exponent"] < 1.1
    assert record.numbers["lengths"] == [T // 4, T // 2, T]
    assert record.numbers["peaks_bytes"][-1] == record.numbers["peak_bytes"]


def test_a_leak_shows_to_the_byte(run: Run) -> None:
    assert of(run, "leaks").numbers["left_bytes"] == ELEMENTS
    assert of(run, "leaks_bytes").numbers["left_bytes"] == B * T
    assert of(run, "none").numbers["left_bytes"] == 0


def test_a_leak_is_told_in_words(run: Run) -> None:
    (doubt,) = of(run, "leaks_bytes").numbers["doubts"]
    assert doubt.startswith(f"{B * T} bytes are still held after a second call, 1 per token: a leak")
    assert of(run, "none").numbers["doubts"] == []


def test_quadratic_growth_shows(run: Run) -> None:
    quadratic = of(run, "quadratic").numbers
    assert 1.8 < quadratic["growth_exponent"] < 2.01
    assert quadratic["peak_bytes"] >= 4 * 64 * T**2
    assert quadratic["predicted_largest_T"] < of(run, "none").numbers["predicted_largest_T"]


def test_a_workspace_declared_too_small_shows(run: Run) -> None:
    """The declared peak is that of results and gradients; sixty-four more outputs are taken."""
    modest, sound = of(run, "modest").numbers, of(run, "sequential").numbers
    results = ELEMENTS + modest["state_bytes"] + 2 * ELEMENTS
    assert modest["declared_peak_bytes"] == results
    assert modest["peak_over_declared"] >= 64 * ELEMENTS / results
    assert sound["peak_over_declared"] < 2
    assert of(run, "none").numbers["declared_peak_bytes"] is None  # it declares no workspace
    assert modest["declared_largest_T"] > 4 * modest["predicted_largest_T"]
    assert modest["declared_largest_B"] > 4 * modest["predicted_largest_B"]


def test_the_state_and_the_growth_with_the_batch_show(run: Run) -> None:
    numbers = of(run, "sequential").numbers
    assert numbers["state_bytes"] == 4 * B * C
    assert 0.9 < numbers["batch_exponent"] < 1.1
    assert of(run, "quadratic").numbers["batch_exponent"] < 0.5  # its matrix has no batch


def test_what_no_hook_sees_shows_in_the_graph(run: Run) -> None:
    """Eight hidden copies, and the output of which they are copies."""
    hidden, plain = of(run, "hoards").numbers, of(run, "none").numbers
    assert hidden["saved_bytes"] == plain["saved_bytes"]
    assert hidden["graph_bytes"] - plain["graph_bytes"] == 8 * ELEMENTS


def test_a_backend_without_backward_is_measured_forward(run: Run) -> None:
    record = of(run, "forward_only")
    assert record.case.pass_ == "forward"
    assert record.numbers["peak_bytes"] == record.numbers["forward_peak_bytes"]


def test_a_cpu_is_not_filled_to_the_brim(run: Run) -> None:
    numbers = of(run, "sequential").numbers
    assert numbers["largest_T"] is None and "CPU" in numbers["largest_T_reason"]
    assert numbers["predicted_largest_T"] > T
    assert numbers["largest_B"] is None and "CPU" in numbers["largest_B_reason"]
    assert numbers["predicted_largest_B"] > B


def test_each_case_has_a_process_of_its_own(run: Run, folder: Path) -> None:
    calling = [name for name in EXPECTED if name not in ("aborts", "leaves", "allocates")]
    assert len(calling) == 8
    assert len(set((folder / "processes").read_text().split())) == len(calling)


def test_the_smoke_preset_keeps_the_longest_shape() -> None:
    assert longest((Shape(B=1, T=8), Shape(B=1, T=32), Shape(B=1, T=16))) == (Shape(B=1, T=32),)


@pytest.mark.slow
def test_the_state_of_attention_grows_with_the_length() -> None:
    """Keys and values of all tokens, and a block of it beside its parameters."""
    sizes = {"B": 1, "H": 2, "K": 8, "V": 8}
    axis = [f"{name}={size}" for name, size in sizes.items()]
    op, longer, block = (
        only(models="attention", backends="chunkwise", axis=[*axis, f"T={length}"], level=level)
        for length, level in ((16, "op"), (32, "op"), (16, "block"))
    )
    assert op["state_bytes"] > 0 and longer["state_bytes"] == 2 * op["state_bytes"]
    assert block["state_bytes"] == op["state_bytes"]
    assert op["parameter_bytes"] is None and op["declared_peak_bytes"] > 0
    assert block["declared_peak_bytes"] is None


def test_a_block_counts_its_parameters_apart() -> None:
    numbers = only(models="hgrn", backends="sequential", axis=["B=2", "T=32", "C=16"], level="block")
    with torch.random.fork_rng(devices=[]):
        layer = build_block("hgrn", Shape(B=1, T=1, C=16))
    parameters = sum(4 * each.numel() for each in layer.parameters())
    assert numbers["parameter_bytes"] == parameters
    assert numbers["operand_bytes"] == 4 * 2 * 32 * layer.width
    assert numbers["peak_bytes"] > parameters  # their gradients
    assert 0.8 < numbers["growth_exponent"] < 1.2  # of what is not theirs


def only(**choices: Any) -> dict[str, Any]:
    """Measure one case in this process and return its numbers."""
    (record,) = records_of("memory", PLUGIN, pass_="forward_backward", dtype="float32", **choices)
    assert record.status is Status.OK, record.reason
    return dict(record.numbers)


def test_the_standard_run_on_a_gpu_has_one_dtype_and_no_process_per_case() -> None:
    """See test_forecasts.py for what it takes."""
    selection, _ = select(device="cuda", planning=True)
    cases = make_plan(selection, ["memory"]).to_run
    assert len({case.owner for case in cases}) > 20
    assert {case.dtype for case in cases} <= {"bfloat16", "float32"}  # the latter for complex operands
    assert not any(map(needs_fresh_process, cases))
    assert all(needs_fresh_process(replace(case, device="cpu")) for case in cases)


def test_a_slow_case_varies_its_batch_at_its_shortest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is predicted from that is what is predicted from batches at its own length."""
    choices: dict[str, Any] = {"models": "hgrn", "backends": "sequential", "axis": ["B=4", "T=64", "C=32"]}
    usual = only(**choices)
    monkeypatch.setattr(memory_numbers, "is_slow", lambda case: True)
    slow = only(**choices)
    assert (usual["batch_T"], slow["batch_T"]) == (64, 16) and slow["lengths"] == [16, 64]
    assert slow["batch_exponent"] == pytest.approx(usual["batch_exponent"], rel=0.05)
    assert slow["predicted_largest_B"] == pytest.approx(usual["predicted_largest_B"], rel=0.1)
    for name in ("peak_bytes", "saved_bytes", "graph_bytes", "state_bytes", "forward_peak_bytes"):
        assert slow[name] == usual[name]


def test_a_backend_compiled_for_each_shape_is_called_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilation takes seconds on a GPU: two lengths, one batch, and no search, unless it is named."""
    backends = {(name, "torch_scan") for name in registry.recurrences()}
    found = [registry.backend(*key) for key in backends if key[1] in registry.backend_names(key[0])]
    assert len(found) == 5 and all(backend.compiles_per_shape for backend in found)
    case = Case("memory", "scan", "torch_scan", Shape(B=8, T=2048, C=8), "hgrn", device="cuda")
    context, named = (Context("cpu", "env", Settings(), CEILINGS, specific=on) for on in (False, True))
    assert memory_numbers.measured_lengths(case, context) == (512, 2048)
    assert memory_numbers.measured_lengths(case, named) == (512, 1024, 2048)
    monkeypatch.setattr(memory_numbers, "compiles_per_shape", lambda case: True)
    numbers = only(models="hgrn", backends="sequential", axis=["B=4", "T=64", "C=32"])
    assert numbers["lengths"] == [16, 64] and numbers["predicted_largest_T"] > 64
    assert numbers["batch_exponent"] is numbers["batch_T"] is numbers["predicted_largest_B"] is None


@pytest.mark.parametrize(
    ("model", "backend", "power"), [("attention", "chunkwise", 2), ("gla", "chunkwise", 1)]
)
def test_the_work_of_attention_grows_with_the_square_of_the_length(
    model: str, backend: str, power: int
) -> None:
    entry = registry.model(model)
    shape = Shape(B=2, T=512, H=2, K=8, V=8)
    case = Case("memory", entry.recurrence, backend, shape, model, pass_="forward_backward")
    context = Context("cpu", "env", Settings(), CEILINGS)
    values = context.subject(case).values(0, with_state=False)
    assert memory_numbers.flops_exponent(case, context, values, "T") == pytest.approx(power, abs=0.01)
    assert memory_numbers.flops_exponent(case, context, values, "B") == pytest.approx(1)


def test_the_growth_of_work_is_known_for_every_model() -> None:
    """Among them models whose operands are not all tensors, and cells that are no recurrence."""
    selection, _ = select(preset="smoke", device="cpu")
    cases = {case.model: case for case in make_plan(selection, ["memory"]).to_run}
    assert len(cases) > 40
    for case in cases.values():
        context = Context("cpu", "env", Settings(), CEILINGS)
        values = context.subject(case).values(0, with_state=False)
        for dimension in ("T", "B"):
            assert memory_numbers.flops_exponent(case, context, values, dimension) > 0.5, case.model
