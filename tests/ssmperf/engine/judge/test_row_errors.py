"""Errors by rows: they find cheap arithmetic and dropped gates, and call no right result wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmperf import Case, Shape, Status, Unsupported
from ssmperf.authoring import log_gates
from ssmperf.engine.judge.reference import Reference, reference_of
from ssmperf.engine.judge.tolerance import (
    alike_noise,
    row_axes,
    row_errors,
    row_sizes,
    row_tolerance,
    smallest_row,
)
from ssmperf.engine.operands.subject import subject_of
from ssmperf.engine.operands.values import Values
from ssmperf.suitekit import Verdict, judge_call, make_reference, registry

SHAPES = {"scan": Shape(B=2, T=67, C=64), "linear_attention": Shape(B=1, T=67, H=2, K=16, V=16)}
HALF = torch.bfloat16
Compute = Callable[..., tuple[Any, Any]]


def judged(
    recurrence: str,
    source: str,
    dtype: str,
    change: Callable[[Compute], Compute],
    *,
    bound: float | None = None,
) -> tuple[Verdict, Reference]:
    """Judge a changed `sequential` backend on the operands of a regime, with gradients."""
    values, reference = made(recurrence, source, dtype)
    function = change(registry.backend(recurrence, "sequential").function)
    verdict = judge_call(
        function, values.clone(), reference, dtype=getattr(torch, dtype), gradients=True, bound=bound
    )
    return verdict, reference


@functools.cache
def made(recurrence: str, source: str, dtype: str) -> tuple[Values, Reference]:
    case = Case(
        "test", recurrence, "sequential", SHAPES[recurrence], None, dtype, operand_source=source,
        pass_="forward_backward",
    )  # fmt: skip
    subject = subject_of(case, "cpu")
    values = subject.values(0, with_state=True)
    return values, make_reference(subject, registry.recurrence(recurrence).definition, values, gradients=True)


def unchanged(function: Compute) -> Compute:
    return function


def in_int8(function: Compute) -> Compute:
    """Round all data to 255 levels per tensor; gradients pass as if nothing was rounded."""

    def rounded(x: Tensor) -> Tensor:
        level = x.detach().abs().max() / 127
        return x + ((x / level).round() * level - x).detach()

    def run(**operands: Any) -> tuple[Any, Any]:
        data = [name for name in ("q", "k", "v", "b") if name in operands]
        return function(**operands | {name: rounded(operands[name]) for name in data})

    return run


def dropping(limit: float) -> Callable[[Compute], Compute]:
    """Take gates whose log is below a limit as 0."""

    def change(function: Compute) -> Compute:
        def run(log_a: Tensor, **operands: Any) -> tuple[Any, Any]:
            return function(log_a=torch.where(log_a < limit, -torch.inf, log_a), **operands)

        return run

    return change


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("source", ["sigmoid/key", "small/key", "reset/scalar", "ones/none", "retnet/const"])
def test_a_right_backend_is_within_every_row_tolerance(source: str, dtype: str) -> None:
    verdict, reference = judged("linear_attention", source, dtype, unchanged)
    assert verdict.status is Status.OK, verdict.reason
    assert {"output", "final_state", "gradient of v"} <= set(verdict.row_errors)
    assert verdict.row_errors.keys() == verdict.row_tolerances.keys()
    assert all(error <= verdict.row_tolerances[name] for name, error in verdict.row_errors.items())
    assert len(reference.row_axes) == len(verdict.row_errors)


@pytest.mark.parametrize(("recurrence", "source"), [("linear_attention", "sigmoid/key"),
                                                    ("linear_attention", "gla/scalar"),
                                                    ("scan", "rglru/data")])  # fmt: skip
def test_int8_inside_bfloat16_is_found_by_its_rows_alone(recurrence: str, source: str) -> None:
    verdict, _ = judged(recurrence, source, "bfloat16", in_int8)
    assert verdict.status is Status.WRONG and "of its size" in str(verdict.reason)
    assert verdict.errors["output"] < verdict.tolerances["output"]
    assert verdict.row_errors["output"] > verdict.row_tolerances["output"]


@pytest.mark.parametrize("limit", [-9.0, -12.0])
@pytest.mark.parametrize(
    ("recurrence", "source"), [("scan", "small/data"), ("linear_attention", "small/key")]
)
def test_dropped_small_gates_are_found(recurrence: str, source: str, limit: float) -> None:
    verdict, _ = judged(recurrence, source, "float32", dropping(limit))
    assert verdict.status is Status.WRONG, verdict.errors
    found, _ = judged(recurrence, source, "float32", dropping(-20.5))
    assert found.status is Status.OK, found.reason


def test_gates_dropped_below_the_ninth_power_are_found_in_bfloat16_too() -> None:
    verdict, _ = judged("scan", "small/data", "bfloat16", dropping(-9.0))
    assert verdict.status is Status.WRONG and "log_a" in str(verdict.reason)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.complex64], ids=str)
def test_equal_numbers_are_moved_alike_and_others_independently(dtype: torch.dtype) -> None:
    values = torch.randn(2, 300, 4, 32, dtype=torch.promote_types(dtype, torch.float32)).to(dtype)
    values[:, 200] = values[:, 50]
    noise = alike_noise(values, torch.float64, 3)
    assert torch.equal(noise[:, 200], noise[:, 50])
    assert noise.mean().abs() < 0.02 and abs(noise.std() - 3**-0.5) < 0.02 and noise.abs().max() <= 1
    other = alike_noise(values, torch.float64, 4)
    for a, b in ((noise, other), (noise[:, 1:], noise[:, :-1]), (noise[..., 1:], noise[..., :-1])):
        assert (a * b).mean().abs() < 0.02
    same = alike_noise(torch.full((300,), -0.1), torch.float64, 0)  # gates of heads
    assert same.std() > 0.5


def test_one_small_channel_off_by_three_per_cent_is_found_and_named() -> None:
    def change(function: Compute) -> Compute:
        def run(b: Tensor, **operands: Any) -> tuple[Any, Any]:
            channel = torch.ones(64)
            channel[7] = 1.03
            output, state = function(b=b, **operands)
            return output * channel.to(output.dtype), state

        return run

    values = made("scan", "sigmoid/data", "bfloat16")[0].clone()
    for name in ("b", "initial_state"):
        values.operands[name][..., 7] /= 200
    definition = registry.recurrence("scan").definition
    reference = reference_of(definition, values, length=67, dtype=torch.bfloat16, gradients=False)
    function = change(registry.backend("scan", "sequential").function)
    verdict = judge_call(function, values, reference, dtype=torch.bfloat16, gradients=False)
    assert verdict.errors["output"] < verdict.tolerances["output"] / 2
    assert verdict.status is Status.WRONG and ", 7) is off by" in str(verdict.reason)


def test_a_declared_bound_of_elements_holds_for_rows() -> None:
    def change(function: Compute) -> Compute:
        def run(**operands: Any) -> tuple[Any, Any]:
            output, state = function(**operands)
            return output + 0.9e-3 * output.detach().abs().max(), state + 0.9e-3 * state.detach().abs().max()

        return run

    assert judged("scan", "s4d/data", "float32", change)[0].status is Status.WRONG
    assert judged("scan", "s4d/data", "float32", change, bound=1e-3)[0].status is Status.OK
    assert judged("scan", "s4d/data", "float32", change, bound=0.8e-3)[0].status is Status.WRONG


def test_rows_are_sequences_and_whole_batch_items_where_these_are_short() -> None:
    assert row_axes((2, 67, 4, 8), timed=True) == (1,)
    assert row_axes((2, 3, 4, 8), timed=True) == (1, 2, 3)
    assert row_axes((2, 3, 2), timed=True) is None
    assert row_axes((2, 16), timed=False) == (1,)
    assert row_axes((5, 4, 8), timed=False) == (1, 2)
    assert row_axes((16,), timed=False) == (0,)
    assert row_axes((3, 5), timed=False) is None
    assert row_axes((), timed=False) is None


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_a_row_that_cancelled_is_judged_by_the_size_of_the_others(dtype: torch.dtype) -> None:
    least = smallest_row(dtype)
    expected = torch.ones(2, 16, dtype=torch.float64)
    expected[1] *= 1e-6
    sizes = row_sizes(expected, (1,), dtype)
    torch.testing.assert_close(sizes, torch.tensor([4.0, 4.0 * least], dtype=torch.float64))
    errors = row_errors(expected + 1e-6, expected, (1,), sizes)
    torch.testing.assert_close(errors, 1e-6 / torch.tensor([1.0, least], dtype=torch.float64))
    assert torch.equal(row_sizes(0 * expected, (1,), dtype), torch.ones(2, dtype=torch.float64))


def test_the_smallest_row_of_float32_may_be_off_by_some_last_places_of_the_largest() -> None:
    allowed = row_tolerance(0.0, torch.float32, gradient=True) * smallest_row(torch.float32)
    assert 8 <= allowed / torch.finfo(torch.float32).eps <= 32


def test_a_row_of_one_element_is_judged_as_elements_are_and_by_the_size_of_the_others() -> None:
    """It may be what is left of terms that cancelled, and no errors average out in it."""
    expected = torch.zeros(2, 32, 64, dtype=torch.float64)
    expected[:, -1] = 1.0
    expected[0, -1, 0] = 1e-2
    typical = float(expected[0, -1].square().mean().sqrt())
    for dtype, of_elements in ((HALF, 8), (torch.float32, 1)):
        sizes = row_sizes(expected, (1,), dtype)
        assert sizes[0, 0] == pytest.approx(of_elements * typical)
        assert sizes[1, 0] == pytest.approx(of_elements)


def test_a_small_row_of_many_elements_is_judged_by_its_own_size() -> None:
    spread = torch.ones(2, 32, 64, dtype=torch.float64)
    spread[0, :, 0] = 1e-2
    assert row_sizes(spread, (1,), HALF)[0, 0] == pytest.approx(1e-2 * 32**0.5)


def test_a_gradient_beyond_the_largest_half_number_refuses_the_values() -> None:
    """Its operand's dtype has no number for it, so infinity is no fault of the backend."""
    shape = Shape({"B": 33, "T": 160, "C": 5})
    case = Case(
        "correctness", "scan", "sequential", shape, dtype="float16", gate_dtype="float16",
        operand_source="phase/const_complex", pass_="forward_backward",
    )  # fmt: skip
    subject = subject_of(case, "cpu")
    values = subject.values(0xD73CF256D, with_state=True)
    definition = registry.recurrence("scan").definition
    with pytest.raises(Unsupported, match=r"overflow .*gradient of phase"):
        make_reference(subject, definition, values, gradients=True)
    make_reference(subject, definition, values, gradients=False)


def test_a_value_that_is_not_finite_makes_its_row_the_worst() -> None:
    def change(function: Compute) -> Compute:
        def run(**operands: Any) -> tuple[Any, Any]:
            output, state = function(**operands)
            mask = torch.zeros_like(output)
            mask[1, 3, 5] = float("nan")
            return output + mask, state

        return run

    verdict, _ = judged("scan", "sigmoid/data", "float32", change)
    assert verdict.status is Status.NAN and verdict.row_errors["output"] != verdict.row_errors["output"]


class AsDifferences(torch.autograd.Function):
    """Linear attention; the gradient of the log gate is the sum of q ⊙ dq − k ⊙ dk over all later steps."""

    @staticmethod
    def forward(ctx: Any, *operands: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*operands)
        output, state = registry.backend("linear_attention", "sequential").function(
            *operands[:4], None, operands[4]
        )
        return output, state

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_state: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            results = registry.backend("linear_attention", "sequential").function(
                *leaves[:4], None, leaves[4]
            )
        dq, dk, dv, _, dstate = torch.autograd.grad(results, leaves, [grad_output, grad_state])
        q, k = (x.detach() for x in leaves[:2])
        later = (q * dq - k * dk).flip(1).cumsum(1).flip(1)
        return dq, dk, dv, later + (results[1].detach() * grad_state).sum(-1).unsqueeze(1), dstate


def test_a_gate_gradient_found_as_a_difference_is_right_however_small_the_gates() -> None:
    def change(_: Compute) -> Compute:
        def run(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, initial_state: Tensor) -> tuple[Any, Any]:
            results: tuple[Any, Any] = AsDifferences.apply(q, k, v, log_a, initial_state)  # type: ignore[no-untyped-call]
            return results

        return run

    for source in ("small/key", "sigmoid/key"):
        verdict, _ = judged("linear_attention", source, "float32", change)
        assert verdict.status is Status.OK, verdict.reason
        noisy = verdict.errors["gradient of log_a"] > 1e-3
        assert noisy == (source == "small/key")


def test_the_small_regime_lies_between_two_powers() -> None:
    gates = log_gates("small", (1000, 4), torch.Generator().manual_seed(0))
    assert -20 <= gates.min() < -19.9 and -9.1 < gates.max() <= -9


@pytest.mark.parametrize(("T", "K", "factor", "status"), [
    (61, 1, 1.0, Status.OK), (3, 16, 1.0, Status.OK), (3, 16, 0.98, Status.WRONG),
])  # fmt: skip
def test_a_gradient_that_steps_have_removed_may_be_as_large_as_the_rounding_of_what_arrived(
    T: int, K: int, factor: float, status: Status
) -> None:
    """With K = 1 the delta rule leaves 10⁻³⁰ of the final state's gradient; sums over chunks leave 10⁻⁷."""
    case = Case(
        "test", "delta_rule", "chunkwise", Shape(B=2, T=T, H=1, K=K, V=3), None, "float32",
        operand_source="sigmoid/none", pass_="forward_backward", call="dy:missing",
    )  # fmt: skip
    subject, function = subject_of(case, "cpu"), registry.backend("delta_rule", "chunkwise").function
    values = subject.values(0, with_state=True)
    definition = registry.recurrence("delta_rule").definition
    reference = make_reference(subject, definition, values, gradients=True)

    def scaled(*args: Any, initial_state: Tensor, **options: Any) -> tuple[Any, Any]:
        passed = initial_state * factor
        return function(*args, initial_state=initial_state.detach() + passed - passed.detach(), **options)

    verdict = judge_call(scaled, values.clone(), reference, dtype=torch.float32, gradients=True)
    assert verdict.status is status
    assert status is Status.OK or "initial_state" in verdict.reason


def test_an_object_that_is_0_is_judged_by_its_elements_alone() -> None:
    """Without a state the first gate has no gradient; one found as a difference of sums is not exactly 0."""
    case = Case(
        "test", "linear_attention", "sequential", Shape(B=3, T=1, H=2, K=16, V=16), None, "bfloat16",
        operand_source="sigmoid/key", pass_="forward_backward", call="stateless", gate_dtype="bfloat16",
    )  # fmt: skip
    subject, function = subject_of(case, "cpu"), registry.backend("linear_attention", "sequential").function
    values = subject.values(0, with_state=True)
    definition = registry.recurrence("linear_attention").definition
    reference = make_reference(subject, definition, values, gradients=True)
    assert not reference.exact.gradients["log_a"].any()

    def noisy(log_a: Tensor, noise: float, **operands: Any) -> tuple[Any, Any]:
        output, state = function(log_a=log_a, **operands)
        return output + noise * (log_a - log_a.detach()).mean().to(output.dtype), state

    verdicts = [
        judge_call(
            functools.partial(noisy, noise=noise), values.clone(), reference, dtype=HALF, gradients=True
        )
        for noise in (0.02, 10.0)
    ]
    assert [each.status for each in verdicts] == [Status.OK, Status.WRONG], verdicts
