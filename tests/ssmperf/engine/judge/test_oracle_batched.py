"""Parallel segments give the results of autograd of the whole loop, or the segments run sequentially."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmperf import Shape
from ssmperf.engine.judge.loops import parallel_segments as batched
from ssmperf.engine.judge.loops.parallel_segments import ParallelSegments
from ssmperf.engine.judge.loops.segments import SEGMENT_BYTES, SLACK, Loop, LoopStep, measure_step
from ssmperf.engine.judge.oracle import Evaluation, as_backend, evaluate
from ssmperf.engine.judge.tolerance import relative_error
from ssmperf.engine.operands.build import sample_state
from ssmperf.engine.operands.dtypes import widen
from ssmperf.engine.operands.time_axis import laid_out
from ssmperf.engine.operands.values import draw_cotangents
from ssmperf.suitekit import registry

Definition = Callable[..., Any]
SHAPES = {
    "scan": Shape(B=2, T=131, C=3),
    "linear_attention": Shape(B=2, T=131, H=2, K=3, V=4),
    "selective_scan": Shape(B=2, T=131, D=5, N=3),
    "delta_rule": Shape(B=2, T=131, H=2, K=3, V=4),
    "ratio_scan": Shape(B=2, T=131, C=3),
    "rnn": Shape(B=2, T=131, C=4),
}
DIAGONAL = ("scan", "linear_attention", "selective_scan")
WITH_STATE, WITHOUT = ("reset", "mamba"), ("ones", "sigmoid")
KINDS = [(name, kind) for name in SHAPES for kind in registry.recurrence(name).gate_kinds]


def draw(name: str, kind: str, regime: str, shape: Shape, *, state: bool = True) -> dict[str, Any]:
    recurrence, generator = registry.recurrence(name), torch.Generator().manual_seed(1)
    drawn = recurrence.sample(shape, regime=regime, generator=generator, gate_kind=kind)
    given = {key: value for key, value in drawn.items() if value is not None}
    if state:
        given["initial_state"] = sample_state(recurrence, given, generator, T=shape["T"])
    return given


def counted(definition: Definition) -> tuple[Definition, list[int]]:
    """Wrap a definition so that it records the number of steps of each call."""
    taken: list[int] = []

    @functools.wraps(definition)
    def wrapped(**operands: Any) -> Any:
        output, state = definition(**operands)
        taken.append(output.shape[1])
        return output, state

    return wrapped, taken


def whole(definition: Definition, given: Mapping[str, Any]) -> Evaluation:
    """Differentiate the whole loop by autograd, with the loss that `judged` uses."""
    leaves = {
        name: widen(value, torch.float64).detach().requires_grad_()
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
        else value
        for name, value in given.items()
    }
    wanted = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Tensor) and leaf.requires_grad}
    output, state = definition(**leaves)
    found = torch.autograd.grad([output, state], list(wanted.values()), draw_cotangents(output, state, 5))
    return Evaluation(output.detach(), state.detach(), dict(zip(wanted, found, strict=True)))


def judged(definition: Definition, given: Mapping[str, Any], expected: Evaluation) -> float:
    """Measure the largest error of `evaluate`, relative to the largest value."""
    grad_output, grad_state = draw_cotangents(expected.output, expected.final_state, 5)
    found = evaluate(
        definition, given, length=expected.output.shape[1], grad_output=grad_output, grad_state=grad_state
    )
    assert found.gradients.keys() == expected.gradients.keys()
    assert all(found.gradients[key].shape == given[key].shape for key in found.gradients)
    return max(errors(found, expected).values())


def errors(found: Evaluation, expected: Evaluation) -> dict[str, float]:
    pairs = {"output": (found.output, expected.output), "state": (found.final_state, expected.final_state)}
    pairs |= {key: (found.gradients[key], expected.gradients[key]) for key in expected.gradients}
    return {key: relative_error(*pair) for key, pair in pairs.items()}


@pytest.mark.parametrize("state", [True, False], ids=["state", "none"])
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_it_is_autograd_of_the_whole_loop(name: str, kind: str, state: bool) -> None:
    """The shapes have a remainder or a whole number of segments, and several batch items or one."""
    shape = SHAPES[name] if state else SHAPES[name].with_(B=1, T=128)
    regimes = WITH_STATE if state else WITHOUT
    regime = regimes[registry.recurrence(name).gate_kinds.index(kind) % 2]
    given = draw(name, kind, regime, shape, state=state)
    definition, taken = counted(registry.recurrence(name).definition)
    assert judged(definition, given, whole(registry.recurrence(name).definition, given)) < 1e-13
    if name in DIAGONAL:
        assert sum(taken) < shape["T"], "it ran one segment after another"
    else:
        assert sum(taken) > 2 * shape["T"], "no batch of segments is right here"


@pytest.mark.parametrize("regime", WITH_STATE + WITHOUT)
@pytest.mark.parametrize("kind", ["data", "const_complex"])
def test_gates_of_every_regime(kind: str, regime: str) -> None:
    given = draw("scan", kind, regime, SHAPES["scan"])
    definition, taken = counted(registry.recurrence("scan").definition)
    assert judged(definition, given, whole(definition, given)) < 1e-13
    assert sum(taken[1:]) < 131


def test_options_of_the_selective_scan_and_time_innermost() -> None:
    given = draw("selective_scan", "exp", "mamba", SHAPES["selective_scan"])
    generator = torch.Generator().manual_seed(2)
    given |= {name: torch.randn(5, generator=generator) for name in ("skip", "delta_bias")}
    given |= {"output_gate": torch.randn(2, 131, 5, generator=generator), "delta_softplus": True}
    definition, taken = counted(registry.recurrence("selective_scan").definition)
    expected = whole(registry.recurrence("selective_scan").definition, given)
    assert judged(definition, laid_out(given, "time_last", 131), expected) < 1e-13
    assert sum(taken) < 131


@pytest.mark.parametrize("size", [(1, 131, 3), (2, 1, 3), (1, 1, 3), (2, 131, 1), (3,)], ids=str)
def test_operands_that_broadcast(size: tuple[int, ...]) -> None:
    given = draw("scan", "data", "sigmoid", SHAPES["scan"])
    given["log_a"] = -torch.rand(*size, generator=torch.Generator().manual_seed(3))
    definition, taken = counted(registry.recurrence("scan").definition)
    assert judged(definition, given, whole(registry.recurrence("scan").definition, given)) < 1e-13
    assert sum(taken) < 131


def test_packed_sequences_are_not_cut() -> None:
    """The offsets of packed sequences count from the first step of all, so segments would misread them."""
    given = draw("selective_scan", "exp", "mamba", SHAPES["selective_scan"].with_(B=1), state=False)
    given["cu_seqlens"] = torch.tensor([0, 50, 50, 131])
    given["initial_state"] = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(4))
    definition = registry.recurrence("selective_scan").definition
    assert judged(definition, given, whole(definition, given)) == 0


def test_groups_of_segments_bound_the_memory() -> None:
    given = {
        key: widen(value, torch.float64)
        for key, value in draw("scan", "data", "mamba", SHAPES["scan"].with_(T=128)).items()
    }
    definition, taken = counted(registry.recurrence("scan").definition)
    expected = whole(registry.recurrence("scan").definition, given)
    state = given.pop("initial_state")
    step = LoopStep(6, SEGMENT_BYTES["cpu"] // SLACK // 50)  # three segments of 16 steps fit, not four
    part = ParallelSegments(Loop(definition, given, ["log_a", "b"], 128), 16, step)
    output, final = part.forward(state)
    before = len(taken)
    gradients, adjoint = part.backward(*draw_cotangents(output, final, 5))
    assert taken[before:] == [16] * 3
    assert adjoint is not None
    found = Evaluation(output, final, {**gradients, "initial_state": adjoint})
    assert max(errors(found, expected).values()) < 1e-13


def test_steps_grow_with_the_root_of_the_length() -> None:
    steps = {}
    for T in (4096, 16384):
        definition, taken = counted(registry.recurrence("scan").definition)
        given = {"log_a": -torch.rand(1, T, 1), "b": torch.randn(1, T, 1)}
        evaluate(definition, given, length=T, grad_output=torch.randn(1, T, 1))
        steps[T] = sum(taken)
    assert steps[4096] < 4096 / 16
    assert steps[16384] < 2.2 * steps[4096]


def rolled(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Let each channel read its neighbour's state."""
    return _loop(a, b, initial_state, lambda a_t, b_t, h: a_t * h.roll(1, -1) + b_t)


def rolled_backward(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Let gradients, but not states, flow from a channel to its neighbour."""
    return _loop(
        a, b, initial_state, lambda a_t, b_t, h: a_t * (h.detach() + (h - h.detach()).roll(1, -1)) + b_t
    )


def centred(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Let each row read the other rows' inputs."""
    return _loop(a, b - b.mean(0), initial_state, lambda a_t, b_t, h: a_t * h + b_t)


def positional(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weight inputs by the number of steps before them."""
    weights = torch.arange(b.shape[1], dtype=b.dtype).view(1, -1, 1)
    return _loop(a, b * weights, initial_state, lambda a_t, b_t, h: a_t * h + b_t)


def squashed(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return _loop(a, b, initial_state, lambda a_t, b_t, h: torch.tanh(a_t * h + b_t))


def started_at_one(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Start from ones if there is no initial state."""
    begin = torch.ones_like(b[:, 0]) if initial_state is None else initial_state
    return _loop(a, b, begin, lambda a_t, b_t, h: a_t * h + b_t)


def of_two_rows(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return _loop(a, b.view(2, -1, 3), initial_state, lambda a_t, b_t, h: a_t * h + b_t)


def _loop(a: Tensor, b: Tensor, state: Tensor | None, step: Definition) -> tuple[Tensor, Tensor]:
    state, states = torch.zeros_like(b[:, 0]) if state is None else state, []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        state = step(a_t, b_t, state)
        states.append(state)
    return torch.stack(states, dim=1), state


def planted(T: int = 131, *, state: bool = True) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(6)
    given = {"a": 0.9 + 0.1 * torch.rand(2, T, 3, generator=generator)}
    given["b"] = torch.randn(2, T, 3, generator=generator)
    return given | ({"initial_state": torch.randn(2, 3, generator=generator)} if state else {})


@pytest.mark.parametrize(
    "definition", [rolled, rolled_backward, centred, positional, squashed, started_at_one, of_two_rows]
)
@pytest.mark.parametrize("state", [True, False], ids=["state", "none"])
def test_a_loop_that_is_no_batch_of_segments_is_right(definition: Definition, state: bool) -> None:
    given = planted(state=state)
    assert judged(definition, given, whole(definition, given)) < 1e-13


def test_a_guess_that_is_nearly_right_is_refined() -> None:
    """Steps that are diagonal but for a small term are not solved at once, but refinement converges."""

    def nearly(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return _loop(a, b, initial_state, lambda a_t, b_t, h: a_t * h + b_t + 1e-9 * h.roll(1, -1))

    given = planted()
    definition, taken = counted(nearly)
    found = evaluate(definition, given, length=131)
    expected = whole(nearly, given)
    assert sum(taken) < 131
    assert relative_error(found.output, expected.output) < 1e-13


@pytest.mark.parametrize("definition", [rolled, rolled_backward, centred, positional, squashed])
def test_without_the_checks_it_would_be_wrong(
    definition: Definition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ParallelSegments, "_only_rounding", lambda *_: True)
    given = planted()
    assert judged(definition, given, whole(definition, given)) > 1e-10


def test_out_of_memory_is_raised_to_the_caller() -> None:
    @functools.wraps(squashed)
    def greedy(**operands: Any) -> Any:
        if len(operands["b"]) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return squashed(**operands)

    with pytest.raises(torch.OutOfMemoryError):
        evaluate(greedy, planted(), length=131)


def test_a_large_state_gains_nothing_and_is_not_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(batched.SMALL_STATE, "cpu", 5)
    definition, taken = counted(registry.recurrence("scan").definition)
    evaluate(definition, draw("scan", "data", "mamba", SHAPES["scan"]), length=131)
    assert taken == [2, 131]


def test_what_a_step_keeps_is_seen() -> None:
    """Memory of its operands does not count, nor that of later steps."""

    def wasteful(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        def step(a_t: Tensor, b_t: Tensor, h: Tensor) -> Tensor:
            for _ in range(20):
                h = torch.sin(h)  # autograd keeps its input
            return a_t * h + b_t

        return _loop(a, b, initial_state, step)

    given = {key: value.double() for key, value in planted().items()}
    state = given.pop("initial_state")
    step = measure_step(wasteful, given, ["a", "b"], state)
    assert step is not None
    assert step.elements == 6
    assert 20 * 6 * 8 <= step.kept_bytes <= 22 * 6 * 8


@pytest.mark.parametrize("regime", ["ones", "mamba"])
@pytest.mark.parametrize("name", ["scan", "linear_attention"])
def test_the_error_in_float32_is_that_of_the_loop(name: str, regime: str) -> None:
    """Tolerances are derived from this error, so it must not depend on how the loop is computed."""
    T = 1024
    given = draw(name, registry.recurrence(name).gate_kinds[0], regime, SHAPES[name].with_(T=T))
    definition = registry.recurrence(name).definition
    exact = whole(definition, given)
    evaluated = functools.partial(evaluate, definition, given, length=T, dtype=torch.float32)
    cotangents = draw_cotangents(exact.output, exact.final_state, 5)
    found, loop = (
        evaluated(grad_output=cotangents[0], grad_state=cotangents[1], segment=segment)
        for segment in (None, T)
    )
    for key in ("output", *exact.gradients):
        sizes = [_spread(_of(each, key), _of(exact, key)) for each in (found, loop)]
        assert 1 / 3 < sizes[0] / sizes[1] < 3, key


def _of(evaluation: Evaluation, key: str) -> Tensor:
    return evaluation.output if key == "output" else evaluation.gradients[key]


def _spread(found: Tensor, expected: Tensor) -> float:
    return float((widen(found, torch.float64) - expected).abs().square().mean().sqrt())


def test_the_oracle_as_a_backend_is_differentiable_through_many_segments() -> None:
    given = draw("scan", "data", "mamba", SHAPES["scan"])
    definition = registry.recurrence("scan").definition
    expected = whole(definition, given)
    leaves = {key: value.clone().requires_grad_() for key, value in given.items()}
    output, state = as_backend(definition, torch.float64)(**leaves)
    found = torch.autograd.grad(
        [output, state], list(leaves.values()), draw_cotangents(expected.output, expected.final_state, 5)
    )
    for key, gradient in zip(leaves, found, strict=True):
        assert relative_error(gradient, expected.gradients[key]) < 1e-6, key


@pytest.mark.slow
def test_a_million_float32_steps_without_decay_run_in_parallel() -> None:
    """As in cosFormer's low-precision evaluation: all terms have one sign, and a phase turns a quarter."""
    T, C = 2**20, 8
    definition = registry.recurrence("scan").definition
    given = {
        "log_a": torch.zeros(1, T, C),
        "b": torch.linspace(0.1, 1, C).expand(1, T, C),
        "phase": torch.full((1, T, C), torch.pi / 2 / T),
    }
    step = measure_step(definition, given, tuple(given), None)
    assert step is not None
    found = ParallelSegments(Loop(definition, given, tuple(given), T), 2048, step)
    found.forward(None)
    assert found.states is not None
