"""Costs: passes are composed from each other, and least bytes are those of the actual tensors."""

from __future__ import annotations

import pytest
import torch

from ssmperf import Case, Shape, UsageError
from ssmperf.authoring import Cost, Spec
from ssmperf.engine.operands.subject import subject_of
from ssmperf.engine.operands.values import specs
from ssmperf.shell.terminal.lists import formulas
from ssmperf.suitekit import registry

FORWARD, BACKWARD = Cost(10, 20, 3, 4), Cost(100, 200, 30, 40)
STATE = {"initial_state": Spec((2, 3), 4)}
SIZES = {"B": 2, "C": 5, "H": 3, "K": 4, "V": 7, "D": 5, "N": 3}
KINDS = [
    (name, kind)
    for name in registry.recurrences()
    for kind in registry.recurrence(name).gate_kinds
    if registry.recurrence(name).has_state
]


def test_a_pass_costs_its_parts() -> None:
    assert Cost.of_pass("forward", FORWARD, BACKWARD, STATE) == FORWARD
    assert Cost.of_pass("backward", FORWARD, BACKWARD, STATE) == BACKWARD
    assert Cost.of_pass("forward_backward", FORWARD, BACKWARD, STATE) == Cost(110, 220, 33, 44)


def test_a_decode_step_reads_a_state_and_writes_one() -> None:
    assert Cost.of_pass("decode", FORWARD, BACKWARD, STATE) == Cost(10 + 2 * 24, 20, 3, 4)
    with pytest.raises(UsageError, match="state"):
        Cost.of_pass("decode", FORWARD, BACKWARD, {})


def decode_case(recurrence: str, kind: str) -> Case:
    letters = registry.recurrence(recurrence).presets["smoke"][0]
    past = {"S": 6} if registry.recurrence(recurrence).grows else {}
    shape = Shape({**{letter: SIZES.get(letter, 1) for letter in letters}, **past, "T": 1})
    return Case("test", recurrence, "sequential", shape, operand_source=f"sigmoid/{kind}", pass_="decode")


@pytest.mark.parametrize(("recurrence", "kind"), KINDS)
def test_the_least_bytes_of_a_decode_step_are_those_of_its_tensors(recurrence: str, kind: str) -> None:
    case, entry = decode_case(recurrence, kind), registry.recurrence(recurrence)
    values = subject_of(case, "cpu").values(0, with_state=True)
    output, state = entry.definition(**values.operands)
    moved = [*values.tensors.values(), output, state]
    cost = entry.cost(case.shape, specs(values.tensors), "decode")
    assert cost.bytes == sum(tensor.numel() * tensor.element_size() for tensor in moved)
    assert cost.depth == 1


@pytest.mark.parametrize(("recurrence", "kind"), KINDS)
def test_formulas_give_what_the_cost_models_compute(recurrence: str, kind: str) -> None:
    """Compute the cost at a shape whose sizes all differ, for float32 operands as they are sampled."""
    import sympy

    entry, case = registry.recurrence(recurrence), decode_case(recurrence, kind)
    texts = formulas.of_recurrence(recurrence, kind)
    sizes = {sympy.Symbol(letter): size for letter, size in case.shape.items()}
    values = subject_of(case, "cpu").values(0, with_state=True)
    sizes[sympy.Symbol("T")] = 1
    drawn = entry.sample(case.shape, regime="sigmoid", generator=torch.Generator(), gate_kind=kind)
    given = specs({name: value for name, value in drawn.items() if isinstance(value, torch.Tensor)})
    state = values.operands["initial_state"]
    assert number(texts["state"], sizes) == state.numel() * (2 if state.is_complex() else 1)
    for pass_ in ("forward", "backward", "decode"):
        cost = entry.cost(case.shape, {**given, **specs({"initial_state": state})}, pass_)
        for part in ("bytes", "flops", "special", "depth"):
            assert number(texts[pass_][part], sizes) == getattr(cost, part), (pass_, part)


def number(text: str, sizes: dict[object, int]) -> float:
    import sympy

    return float(sympy.sympify(text, locals={str(name): name for name in sizes}).subs(sizes))


@pytest.mark.parametrize("recurrence", ["linear_attention", "delta_rule"])
@pytest.mark.parametrize("pass_", ["forward", "backward", "forward_backward"])
def test_short_sequences_need_no_state(recurrence: str, pass_: str) -> None:
    """Where T is far less than K, attention over the steps does with fewer operations than the recurrence."""
    entry = registry.recurrence(recurrence)

    def cost(T: int) -> Cost:
        shape = Shape(B=2, T=T, H=1, K=512, V=512)
        drawn = entry.sample(shape, regime="sigmoid", generator=torch.Generator(), gate_kind="none")
        given = specs({name: value for name, value in drawn.items() if isinstance(value, torch.Tensor)})
        return entry.cost(shape, given, pass_)

    short, long = cost(16), cost(4096)
    assert short.least_flops < 0.6 * short.flops
    assert long.least_flops == long.flops
