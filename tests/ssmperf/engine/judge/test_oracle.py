"""The segmented oracle equals autograd of the whole literal loop; tolerances come from one function."""

from __future__ import annotations

import pytest
import torch

from ssmperf import Shape
from ssmperf.engine.judge.oracle import evaluate
from ssmperf.engine.judge.reference import reference_of
from ssmperf.engine.judge.tolerance import relative_error, tolerance
from ssmperf.engine.operands.values import Values, contract, draw_cotangents
from ssmperf.suitekit import registry

SUBJECTS = [
    ("scan", Shape(B=2, T=13, C=3), ("data", "const", "data_complex", "const_complex")),
    (
        "linear_attention",
        Shape(B=2, T=13, H=2, K=3, V=4),
        ("none", "const", "scalar", "key", "both", "key_complex"),
    ),
]
CASES = [(name, shape, kind) for name, shape, kinds in SUBJECTS for kind in kinds]


def values_of(name: str, shape: Shape, kind: str, *, regime: str = "reset", seed: int = 0) -> Values:
    recurrence = registry.recurrence(name)
    generator = torch.Generator().manual_seed(seed)
    drawn = recurrence.sample(shape, regime=regime, generator=generator, gate_kind=kind)
    operands = {key: value for key, value in drawn.items() if value is not None}
    _, state = contract(recurrence.definition, operands, shape["T"])
    operands["initial_state"] = torch.randn(state.shape, dtype=state.dtype, generator=generator)
    output, _ = recurrence.definition(**operands)
    return Values(operands, *draw_cotangents(output, state, seed))


@pytest.mark.parametrize("segment", [1, 5, 13])
@pytest.mark.parametrize(("name", "shape", "kind"), CASES)
def test_segments_equal_the_whole_loop(name: str, shape: Shape, kind: str, segment: int) -> None:
    definition, values = registry.recurrence(name).definition, values_of(name, shape, kind)
    leaves = {
        key: value.to(torch.complex128 if value.is_complex() else torch.float64).requires_grad_()
        for key, value in values.tensors.items()
    }
    output, state = definition(**leaves)
    cotangents = [values.grad_output.to(output.dtype), values.grad_state.to(state.dtype)]
    whole = dict(
        zip(leaves, torch.autograd.grad([output, state], list(leaves.values()), cotangents), strict=True)
    )
    found = evaluate(
        definition,
        values.operands,
        length=shape["T"],
        grad_output=values.grad_output,
        grad_state=values.grad_state,
        segment=segment,
    )
    assert relative_error(found.output, output.detach()) < 1e-14
    assert relative_error(found.final_state, state.detach()) < 1e-14
    assert found.gradients.keys() == whole.keys()
    for key, gradient in whole.items():
        assert relative_error(found.gradients[key], gradient) < 1e-14, key


def test_the_low_precision_error_is_of_the_dtype_s_size() -> None:
    name, shape, kind = "linear_attention", Shape(B=1, T=33, H=1, K=4, V=4), "key"
    definition, values = registry.recurrence(name).definition, values_of(name, shape, kind, regime="gla")
    errors = {}
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        operands = {
            key: value.to(dtype) if key in ("q", "k", "v") else value
            for key, value in values.operands.items()
        }
        reference = reference_of(
            definition,
            Values(operands, values.grad_output.to(dtype), values.grad_state),
            length=33,
            dtype=dtype,
            gradients=True,
        )
        errors[dtype] = max(reference.low_errors.values())
        assert reference.low_errors.keys() == {"output", "final_state", *operands}
    assert 1e-4 < errors[torch.bfloat16] < 0.1
    assert 1e-8 < errors[torch.float32] < 1e-5
    assert errors[torch.float64] < errors[torch.float32]


def test_a_gradient_below_the_numbers_of_its_dtype_may_be_rounded_to_0() -> None:
    definition = registry.recurrence("scan").definition
    for dtype, lost in ((torch.float16, True), (torch.float32, False)):
        operands = {"log_a": torch.full((1, 1, 2), -1.0), "b": torch.ones(1, 1, 2, dtype=dtype)}
        values = Values(operands, torch.full((1, 1, 2), 1e-8), torch.zeros(1, 2))
        found = reference_of(definition, values, length=1, dtype=torch.float32, gradients=True)
        assert (found.low_errors["b"] == 1) == lost


def test_tolerance_is_twice_error_plus_band_or_the_declared_bound() -> None:
    assert tolerance(3e-5, torch.float32, gradient=False) == pytest.approx(2 * (3e-5 + 1e-5))
    assert tolerance(0.0, torch.float32, gradient=True) == pytest.approx(2e-4)
    assert tolerance(0.0, torch.float32, gradient=False, bound=0.5) == 0.5
    assert tolerance(1.0, torch.float32, gradient=False, bound=0.5) > 2


def test_relative_error_is_against_the_largest_reference() -> None:
    assert relative_error(torch.tensor([1.0, 9.0]), torch.tensor([1.0, 10.0])) == pytest.approx(0.1)
    assert relative_error(torch.tensor([0.5]), torch.tensor([0.0])) == 0.5


def test_a_recurrence_without_a_state_is_evaluated_as_a_whole() -> None:
    def sums(u: torch.Tensor, kernel: torch.Tensor) -> tuple[torch.Tensor, None]:
        return u.cumsum(1) * kernel.sum(-1), None

    operands = {"u": torch.randn(2, 5, 3), "kernel": torch.randn(3, 5)}
    grad = torch.randn(2, 5, 3)
    found = evaluate(sums, operands, length=5, grad_output=grad)
    assert found.final_state is None
    leaves = {name: value.double().requires_grad_() for name, value in operands.items()}
    expected = torch.autograd.grad(sums(**leaves)[0], list(leaves.values()), grad.double())
    torch.testing.assert_close(list(found.gradients.values()), list(expected))


def test_an_initial_state_is_never_cut_into_steps() -> None:
    """A state has no time axis even if its second size is T, as here."""
    shape = Shape(B=2, T=3, H=3, K=3, V=4)
    values = values_of("linear_attention", shape, "key")
    definition = registry.recurrence("linear_attention").definition
    whole = evaluate(definition, values.operands, length=3, segment=3)
    pieces = evaluate(definition, values.operands, length=3, segment=1)
    torch.testing.assert_close(pieces.output, whole.output)
    torch.testing.assert_close(pieces.final_state, whole.final_state)
