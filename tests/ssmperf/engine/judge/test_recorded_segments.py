"""A recorded segment that is replayed gives what the segments give that run one after another."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmperf import Shape
from ssmperf.engine.judge.loops import parallel_segments, recording, segments
from ssmperf.engine.judge.loops.recording import CannotRecord, Recorder, Repeated, Results
from ssmperf.engine.judge.loops.segments import Loop, LoopStep, SequentialSegments, sequential_segments
from ssmperf.engine.judge.oracle import evaluate
from ssmperf.engine.operands.build import sample_state
from ssmperf.engine.operands.dtypes import widen
from ssmperf.engine.operands.time_axis import laid_out, with_time
from ssmperf.engine.operands.values import draw_cotangents
from ssmperf.suitekit import registry

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=gpu)]
T, SEGMENT = 37, 5  # seven segments, and two steps
SHAPES = {
    "scan": Shape(B=2, T=T, C=3),
    "linear_attention": Shape(B=2, T=T, H=2, K=3, V=4),
    "selective_scan": Shape(B=2, T=T, D=4, N=3),
    "delta_rule": Shape(B=2, T=T, H=2, K=3, V=4),
    "ratio_scan": Shape(B=2, T=T, C=3),
    "rnn": Shape(B=2, T=T, C=4),
}
KINDS = [(name, kind) for name in SHAPES for kind in registry.recurrence(name).gate_kinds]


class Rerun:
    """Records by keeping the work, which a replay does again in the same memory.

    waits: whether the work shows that it cannot be recorded. fails: whether recording it fails.
    """

    def __init__(self, *, waits: bool = False, fails: bool = False) -> None:
        self.waits, self.fails = waits, fails
        self.checked = self.recorded = self.replayed = 0

    def check(self, work: Callable[[], Results]) -> Results:
        self.checked += 1
        if self.waits:
            raise CannotRecord("it waits")
        return work()

    def record(self, work: Callable[[], Results]) -> tuple[Results, Callable[[], None]]:
        self.recorded += 1
        if self.fails:
            raise CannotRecord("it fails")
        results = work()

        def replay() -> None:
            self.replayed += 1
            for name, result in work().items():
                results[name].copy_(result)

        return results, replay


def draw(name: str, kind: str, *, state: bool, device: str = "cpu") -> dict[str, Any]:
    recurrence, generator = registry.recurrence(name), torch.Generator().manual_seed(1)
    drawn = recurrence.sample(SHAPES[name], regime="reset", generator=generator, gate_kind=kind)
    given = dict(drawn)
    if state:
        present = {key: value for key, value in drawn.items() if value is not None}
        given["initial_state"] = sample_state(recurrence, present, generator, T=T)
    wide = {key: widen(value, torch.float64) for key, value in given.items()}
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in wide.items()}


def results_of(
    definition: Callable[..., Any],
    given: Mapping[str, Any],
    recorder: Recorder | None,
    segment: int = SEGMENT,
) -> dict[str, Tensor]:
    """Run a loop in segments, forward and backward; give all its results by name."""
    operands = dict(given)
    state = operands.pop("initial_state", None)
    loop = SequentialSegments(Loop(definition, operands, with_time(operands, T), T), segment, recorder)
    output, final = loop.forward(state)
    grad_output, adjoint = draw_cotangents(output, final, 5)
    assert adjoint is not None
    gradients, start = loop.backward(grad_output, adjoint)
    found = {"output": output, "final_state": final, **gradients}
    return found if start is None else {**found, "initial_state": start}


def assert_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True, msg=name)


def recorder_on(device: str, definition: Callable[..., Any]) -> Recorder:
    return Rerun() if device == "cpu" else recording.GraphRecorder(definition, torch.device(device), 2**20)


@pytest.mark.parametrize("state", [True, False], ids=["state", "none"])
@pytest.mark.parametrize(("name", "kind"), KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_replays_give_the_same_bits(device: str, name: str, kind: str, state: bool) -> None:
    """Kinds have complex states, operands without a time axis, None among the operands, and a string."""
    definition, given = registry.recurrence(name).definition, draw(name, kind, state=state, device=device)
    recorder = recorder_on(device, definition)
    assert_equal(results_of(definition, given, recorder), results_of(definition, given, None))
    if isinstance(recorder, Rerun):
        # Of 7 segments forward, the first without a state is of a form of its own, then one is checked; of
        # those backward the same, with the last one checked and the first apart.
        assert (recorder.recorded, recorder.replayed) == (2, 6 + 6 if state else 5 + 5)
        assert recorder.checked == 2 + (1 if state else 2), "nothing is checked after it was recorded"
    else:
        assert definition not in recording._unrecordable


@pytest.mark.parametrize("device", DEVICES)
def test_lazy_conjugates_and_time_innermost(device: str) -> None:
    given = draw("linear_attention", "key_complex", state=True, device=device)
    given |= {name: torch.complex(given[name], given["q"]) for name in ("q", "k")}
    given["k"] = given["k"].conj()
    assert given["k"].is_conj()
    definition = registry.recurrence("linear_attention").definition
    for layout in ("channels_last", "time_last"):
        laid = laid_out(given, layout, T)
        recorder = recorder_on(device, definition)
        assert_equal(results_of(definition, laid, recorder), results_of(definition, laid, None))


def test_a_state_that_grows_is_never_recorded() -> None:
    entry = registry.recurrence("softmax_attention")
    generator = torch.Generator().manual_seed(1)
    drawn = entry.sample(Shape(B=2, T=T, H=2, K=3, V=4), regime="gla", generator=generator)
    recorder = Rerun()
    given = {key: widen(value, torch.float64) for key, value in drawn.items()}
    assert_equal(results_of(entry.definition, given, recorder), results_of(entry.definition, given, None))
    assert recorder.recorded == 0


@pytest.mark.parametrize("recorder", [Rerun(waits=True), Rerun(fails=True)], ids=["waits", "fails"])
def test_what_cannot_be_recorded_runs_as_usual_and_is_tried_once_a_pass(recorder: Rerun) -> None:
    definition, given = registry.recurrence("scan").definition, draw("scan", "data", state=True)
    assert_equal(results_of(definition, given, recorder), results_of(definition, given, None))
    assert recorder.replayed == 0
    assert recorder.recorded == (0 if recorder.waits else 2)
    assert recorder.checked == (2 if recorder.waits else 3)


def test_arguments_and_results_stay_the_caller_s() -> None:
    """The fixed memory is neither an argument of an earlier call nor its result."""
    repeated = Repeated(lambda operands, x: {"y": operands["a"] * x, "a": operands["a"]}, Rerun())
    pairs = [(torch.full((3,), float(a)), torch.full((3,), float(a + 1))) for a in range(5)]
    found = [repeated({"a": a}, x) for a, x in pairs]
    for n, ((a, x), results) in enumerate(zip(pairs, found, strict=True)):
        assert (a == n).all() and (x == n + 1).all()
        assert (results["y"] == n * (n + 1)).all() and (results["a"] == n).all()


@pytest.mark.parametrize(
    "other", [{"a": torch.ones(4)}, {"a": torch.ones(3).double()}, {"a": torch.ones(3), "power": 3.0}]
)
def test_arguments_of_another_form_are_worked_on_as_usual(other: dict[str, Any]) -> None:
    recorder = Rerun()
    repeated = Repeated(lambda operands: {"y": operands["a"] ** operands["power"]}, recorder)
    usual = {"a": torch.full((3,), 2.0), "power": 2.0}
    for _ in range(3):
        assert repeated(usual)["y"].tolist() == [4.0] * 3
    assert recorder.replayed == 2
    expected = {**usual, **other}
    torch.testing.assert_close(repeated(expected)["y"], expected["a"] ** expected["power"])
    assert recorder.replayed == 2
    assert repeated(usual)["y"].tolist() == [4.0] * 3
    assert recorder.replayed == 3


def test_only_definitions_of_this_package_on_a_gpu_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = registry.recurrence("scan").definition

    def foreign(**operands: Any) -> Any:
        return definition(**operands)

    cuda = torch.device("cuda")
    assert recording.recordable(definition, cuda)
    assert not recording.recordable(definition, torch.device("cpu"))
    assert not recording.recordable(foreign, cuda)
    assert not recording.recordable(functools.partial(foreign), cuda)
    monkeypatch.setattr(recording, "_unrecordable", {definition})
    assert not recording.recordable(definition, cuda)


def test_long_loops_of_many_steps_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segments fit into memory, and there are enough of them."""
    monkeypatch.setattr(segments, "recordable", lambda *_: True)
    monkeypatch.setitem(segments.SEGMENT_BYTES, "cpu", 2**20)
    kept_bytes = {"small": 8, "large": 2**14}
    found = {}
    for length in (16, 1024, 16384):
        for size, kept in kept_bytes.items():
            operands = {"b": torch.zeros(1, length, 1)}
            loop = sequential_segments(Loop(_never, operands, {"b"}, length), LoopStep(1, kept))
            found[length, size] = loop.segment, loop.recorder is not None
    assert found[16, "small"] == (2**16, False)
    assert found[1024, "small"] == (32, True) == found[1024, "large"]
    assert found[16384, "small"] == (64, True)
    assert found[16384, "large"] == (32, True)
    long = Loop(_never, {"b": torch.zeros(1, 1024, 1)}, {"b"}, 1024)
    grows = sequential_segments(long, LoopStep(1, 8, grows=True))
    assert grows.recorder is None


def _never(**operands: Any) -> Any:
    raise AssertionError("it is not called")


def test_a_recorded_state_need_not_be_as_small_to_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_segments, "memory_budget", lambda _: 2**30)
    definition, cuda = registry.recurrence("scan").definition, torch.device("cuda")
    for elements, parallel, alone in ((2**16, True, True), (2**19, True, False), (2**21, False, False)):
        step = LoopStep(elements, elements * 8)
        assert (parallel_segments.segment_length(step, 4096, cuda, _never) is not None) == parallel
        assert (parallel_segments.segment_length(step, 4096, cuda, definition) is not None) == alone


@pytest.mark.parametrize("default", [True, False], ids=["default", "side"])
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=gpu)])
def test_the_oracle_replays_on_either_stream(
    device: str, default: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_segments, "SMALL_RECORDED", 0)
    recorded: list[Recorder] = []
    record = recording.GraphRecorder.record

    def counted(self: recording.GraphRecorder, work: Callable[[], Results]) -> Any:
        recorded.append(self)
        return record(self, work)

    monkeypatch.setattr(recording.GraphRecorder, "record", counted)
    entry, length = registry.recurrence("linear_attention"), 300
    generator = torch.Generator(device).manual_seed(1)
    shape = Shape(B=2, T=length, H=2, K=3, V=4)
    given = entry.sample(shape, regime="gla", generator=generator, gate_kind="const")
    given = {name: value for name, value in given.items() if value is not None}
    loss = torch.randn(2, length, 2, 4, device=device)
    stream = torch.cuda.current_stream() if default else torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = evaluate(entry.definition, given, length=length, grad_output=loss)
        segment = math.isqrt(length)
        expected = evaluate(entry.definition, given, length=length, grad_output=loss, segment=segment)
    assert len(recorded) == 2
    torch.cuda.synchronize()
    assert found.final_state is not None and expected.final_state is not None
    assert_equal(
        {"output": found.output, "state": found.final_state, **found.gradients},
        {"output": expected.output, "state": expected.final_state, **expected.gradients},
    )


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=gpu)])
def test_a_definition_that_waits_for_the_gpu_is_not_captured(device: str) -> None:
    def waits(b: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert float(b.abs().max()) < math.inf
        return b * 2, b[:, -1]

    given = {"b": torch.randn(2, T, 3, device=device)}
    recorder = recording.GraphRecorder(waits, torch.device(device), 2**20)
    assert_equal(results_of(waits, given, recorder), results_of(waits, given, None))
    assert torch.cuda.get_sync_debug_mode() == 0
    assert recording.recordable(registry.recurrence("scan").definition, torch.device(device))
