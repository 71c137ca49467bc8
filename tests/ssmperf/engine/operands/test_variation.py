"""Values of timed calls: they never repeat, and their answers follow from those of two draws."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmperf import Case, Shape
from ssmperf.engine.measure.answers import Projection, norm
from ssmperf.engine.operands.build import build_operands
from ssmperf.engine.operands.subject import subject_of
from ssmperf.engine.operands.values import Values, call_of
from ssmperf.engine.operands.variation import (
    BOTH,
    FIRST,
    SECOND,
    Variation,
    as_json,
    from_json,
    linear_operands,
)
from ssmperf.suitekit import registry

SHAPES = {
    "scan": Shape(B=2, T=11, C=3),
    "linear_attention": Shape(B=2, T=9, H=2, K=4, V=3),
    "selective_scan": Shape(B=2, T=7, D=3, N=2),
    "delta_rule": Shape(B=2, T=6, H=2, K=4, V=3),
    "long_conv": Shape(B=2, T=8, C=3, N=2),
}
OF = {"scan": "hgrn", "linear_attention": "gla", "selective_scan": "mamba", "delta_rule": "deltanet",
      "long_conv": "s4"}  # fmt: skip


def made(recurrence: str, pass_: str, *, linear: bool = True) -> tuple[Case, Variation]:
    model = OF[recurrence]
    case = Case(
        "throughput", recurrence, "sequential", SHAPES[recurrence], model=model, pass_=pass_, dtype="float64"
    )
    subject = subject_of(case, "cpu")
    first, second = (subject.values(number, with_state=False) for number in (0, 1))
    names = registry.recurrence(recurrence).linear if linear else ()
    return case, Variation(pass_, names, first, second, case.shape["T"])


def answers(case: Case, values: Values) -> list[Tensor]:
    definition = registry.recurrence(case.recurrence).definition
    found = call_of(case.pass_, definition, values)()
    return [each for each in found if each is not None]


@pytest.mark.parametrize("pass_", ["forward", "backward", BOTH])
@pytest.mark.parametrize("recurrence", SHAPES)
def test_answers_are_combined_like_the_values(recurrence: str, pass_: str) -> None:
    case, variation = made(recurrence, pass_)
    assert variation.combines
    first, second = (answers(case, variation.values(base)) for base in (FIRST, SECOND))
    drawn = variation.draw(random.Random(5))
    one, two = drawn.answer
    for got, a, b in zip(answers(case, variation.values(drawn)), first, second, strict=True):
        torch.testing.assert_close(got, one * a + two * b, rtol=1e-9, atol=1e-9)


def test_the_first_base_is_what_the_judge_evaluates() -> None:
    _, variation = made("scan", "forward")
    written, base = variation.values(FIRST), variation.base()
    for name, value in base.tensors.items():
        torch.testing.assert_close(written.operands[name], value)


@pytest.mark.parametrize("pass_", ["forward", "backward", BOTH])
def test_the_bases_are_called_as_the_case_says(pass_: str) -> None:
    _, variation = made("scan", pass_)
    form: dict[str, Any] = {
        "wanted": ("x",),
        "missing": frozenset({"final_state"}),
        "circumstances": ("autocast",),
    }
    first, second = (replace(each, **form) for each in (variation.first, variation.second))
    base = replace(variation, first=first, second=second).base()
    assert {name: getattr(base, name) for name in form} == form


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("pass_", ["forward", "backward", BOTH])
def test_no_two_draws_give_the_same_values(pass_: str, linear: bool) -> None:
    _, variation = made("scan", pass_, linear=linear)
    secret = random.Random(3)
    seen = [variation.values(variation.draw(secret)) for _ in range(20)]
    for at, values in enumerate(seen):
        for other in seen[:at]:
            same = torch.equal(values.operands["b"], other.operands["b"])
            assert not (same and torch.equal(values.grad_output, other.grad_output))


def test_joint_operands_of_a_mixture_come_from_one_draw() -> None:
    """Longhorn's Δ k² is below 1 in each draw, and may be above it for a Δ and a k between two of them."""
    case = Case(
        "throughput", "selective_scan", "sequential", Shape(B=4, T=64, D=16, N=8), model="longhorn",
        dtype="float64",
    )  # fmt: skip
    subject = subject_of(case, "cpu")
    pair = [subject.values(number, with_state=False) for number in (0, 1)]
    for size, values in zip((9.0, 0.01), pair, strict=True):
        values.operands["k"].mul_(size / values.operands["k"].square().sum(-1, keepdim=True).sqrt())
        values.operands["delta"].copy_(1 / (1 + values.operands["k"].square().sum(-1, keepdim=True)))
    first, second = pair
    variation = Variation.of(case, first, second, equivalent=True)
    drawn = variation.draw(random.Random(2), mixed=True)
    found = variation.values(drawn).operands
    loss = found["delta"].unsqueeze(-1) * found["k"].square().unsqueeze(-2)
    assert float(loss.max()) <= 1
    from_first = (found["k"] == first.operands["k"]).all(-1)
    assert torch.equal(from_first, (found["delta"] == first.operands["delta"]).all(-1))
    assert 0 < int(from_first.sum()) < from_first.numel()
    blended = found["x"]
    assert not torch.equal(blended, first.operands["x"]) and not torch.equal(blended, second.operands["x"])


@pytest.mark.parametrize("length", [512, 9])
def test_gates_of_a_mixture_are_those_of_either_base_in_another_order(length: int) -> None:
    """A blend of two draws would have less strong decay than either, where kernels take longer."""
    case = Case(
        "throughput", "linear_attention", "sequential", Shape(B=2, T=length, H=3, K=4, V=2), model="gla",
        dtype="float64",
    )  # fmt: skip
    pair = [subject_of(case, "cpu").values(number, with_state=False) for number in (0, 1)]
    variation = Variation.of(case, *pair, equivalent=True)
    secret = random.Random(4)
    found = [variation.values(variation.draw(secret, mixed=True)).operands for _ in range(8)]
    size = 256 if length == 512 else length
    blocks = [
        values.operands["log_a"].unflatten(1, (-1, size)).transpose(2, 3).flatten(0, 2) for values in pair
    ]
    known = {block.numpy().tobytes() for each in blocks for block in each}
    for each in found:
        parts = each["log_a"].unflatten(1, (-1, size)).transpose(2, 3).flatten(0, 2)
        assert {part.contiguous().numpy().tobytes() for part in parts} <= known
        assert not any(torch.equal(each[name], values.operands[name]) for values in pair for name in "qkv")
    assert len({each["log_a"].numpy().tobytes() for each in found}) > 2
    alone = Variation(variation.pass_, (), *pair, length)
    blended = alone.values(alone.draw(secret)).operands["log_a"]
    assert not any(torch.equal(blended, values.operands["log_a"]) for values in pair)


def test_a_draw_survives_json() -> None:
    for linear in (True, False):
        _, variation = made("scan", BOTH, linear=linear)
        drawn = variation.draw(random.Random(1))
        again = from_json(as_json(drawn))
        assert again == drawn
        one, two = variation.values(drawn), variation.values(again)
        assert all(torch.equal(value, two.operands[name]) for name, value in one.tensors.items())


def test_a_layer_and_another_function_are_not_combined() -> None:
    assert linear_operands(("b",), level="op", equivalent=True) == ("b",)
    assert linear_operands(("b",), level="block", equivalent=True) == ()
    assert linear_operands(("b",), level="op", equivalent=False) == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("shape", [(2, 67, 64), (5,), (1, 1, 3), (2, 600, 3, 2)])
def test_a_projection_is_linear_and_sees_every_number(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(*shape, generator=generator).to(dtype) for _ in range(2))
    project = Projection(x, generator)
    wide = torch.promote_types(dtype, torch.float32)
    together = float(project((x.to(wide) + y.to(wide)).to(dtype)))
    rounding = project.rounding + 2 * torch.finfo(dtype).eps
    assert abs(together - float(project(x)) - float(project(y))) <= rounding * (norm(x) + norm(y))
    for index in range(0, x.numel(), max(1, x.numel() // 7)):
        changed = x.clone()
        changed.view(-1)[index] += 100
        difference = abs(float(project(changed)) - float(project(x)))
        assert difference == pytest.approx(100, rel=0.05)


def test_a_projection_of_another_shape_is_not_a_number() -> None:
    project = Projection(torch.zeros(4, 5), torch.Generator().manual_seed(0))
    assert torch.isnan(project(torch.zeros(4, 4)))
    assert torch.isnan(project(torch.zeros(4, 5, dtype=torch.float64)))


@pytest.mark.parametrize("T", [1, 2, 3])
def test_neighbouring_draws_differ_where_the_text_is_a_few_bytes(T: int) -> None:
    """Mixtures of two draws of the same bytes are all the same, and an honest backend was wrong for it."""
    shape = Shape(B=1, T=T, H=1, K=2, V=2)
    case = Case("throughput", "linear_attention", "sequential", shape, model="linear_transformer")
    drawn = [build_operands(case, draw=number)["q"] for number in range(100)]
    assert not any(torch.equal(one, other) for one, other in pairwise(drawn))
