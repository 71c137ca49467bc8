"""The small cases on which a backend's further promises are judged, with their references."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.calls.call import NONE as PLAIN
from ssmperf.engine.cases.calls.call import Call, parse
from ssmperf.engine.cases.calls.packing import UNPACKED, lengths_of
from ssmperf.engine.cases.case import Case, split_source
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.judge.calls import second
from ssmperf.engine.judge.reference import Reference, make_reference
from ssmperf.engine.operands.subject import OperationSubject
from ssmperf.engine.operands.values import Values
from ssmperf.engine.plan.selection import is_regime

REGIME = "sigmoid"  # whose values are moderate
LENGTHS = (21, 64, 128, 256)  # the first that a backend takes
BATCH, HEADS = 2, 2
SHARED = {"H": 4, "G": 2}  # so that h·G // H and h mod G differ
PACKED = "9,0,1,36,5"
NUMBER = 0  # of the draw


class CallProbe:
    """Operands of a case's kind, few sequences and steps, and the oracle's answers.

    The operands are those of a regime, since a form of a call is right or wrong whatever the values are.

    own_sizes: whether heads and channels have the case's sizes, and not the recurrence's smallest ones.
    """

    def __init__(self, case: Case, device: str, *, own_sizes: bool = False) -> None:
        self.recurrence = registry.recurrence(case.recurrence)
        self.case, self.device = probed(case, own_sizes=own_sizes), device
        self.values = cache(self._values)
        self.reference = cache(self._reference)
        self.second = cache(self._second)

    def plain(self, length: int) -> Case:
        """Make the case of a plain call of some length."""
        return replace(self.case, shape=self.case.shape.with_(T=length))

    def _values(self, case: Case) -> Values:
        return OperationSubject(case, self.device).values(NUMBER, with_state=True)

    def _reference(self, case: Case, definition: Callable[..., Any], gradients: bool) -> Reference:
        """Make the reference of a case, shared by all whose values and gradients are the same."""
        answered = replace(case, call=_answered(parse(case.call)))
        if answered != case:
            return self.reference(answered, definition, gradients)
        subject = OperationSubject(case, self.device)
        found = make_reference(subject, definition, self.values(case), gradients=gradients)
        return replace(found, row_axes={})  # a wrong form is far off; rows of so few steps hold chance

    def _second(self, case: Case, definition: Callable[..., Any]) -> second.Exact:
        return second.exact_second(definition, self.values(case), case.dtype)


def probed(case: Case, *, own_sizes: bool = False) -> Case:
    """Make the case of a regime that has a case's kind of gate, dtypes and layout."""
    kind = registry.model(case.model).gate if case.model else split_source(case.operand_source)[1]
    smallest = registry.recurrence(case.recurrence).presets.get("smoke") or (case.shape,)
    sizes = case.shape if own_sizes else smallest[0]
    shape = Shape({**sizes, "B": BATCH, **({"H": HEADS} if "H" in sizes else {})})
    source = f"{REGIME}/{kind}" if kind else REGIME
    return replace(
        case, model=None, shape=shape, operand_source=source, cache="hot", packing=UNPACKED, call=PLAIN
    )


def has_probe(case: Case) -> bool:
    """Tell whether a case has further promises to judge: it is plain, and its kind of gate is known."""
    known = case.model is not None or is_regime(case.operand_source)
    return known and case.plain and case.level == "op" and not case.decodes


def key_of(case: Case, *, own_sizes: bool) -> tuple[object, ...]:
    """Give the key of a case's probe: cases with equal ones need to be judged once per backend."""
    small = probed(case, own_sizes=own_sizes)
    sizes = tuple((letter, size) for letter, size in small.shape.items() if letter not in "BT")
    kind = (small.operand_source, small.dtype, small.gate_dtype, small.layout, small.gradients, small.seed)
    return (case.recurrence, sizes, *kind)


def _answered(call: Call) -> str:
    """Leave out of a call's words what changes neither its answers nor their tolerances."""
    views = {name: view for name, view in call.views.items() if view in ("expanded", "missing")}
    return str(replace(call, views=views, wanted=None))


def forms(
    probe: CallProbe, length: int, operands: tuple[str, ...], *, gradients: bool, few_shapes: bool
) -> Iterator[Case]:
    """List the cases that differ from a plain one in one form of the call.

    operands: those that can be differentiated. few_shapes: whether all shapes are those of the plain case.
    """
    case, recurrence = probe.plain(length), probe.recurrence
    if gradients:
        ends = ("dy", "ds") if recurrence.has_state else ("dy",)
        if case.layout == "channels_last":  # another one is a promise about memory, which views would break
            for view in ("expanded", "sliced", "transposed"):
                yield replace(case, call=" ".join(f"{end}:{view}" for end in ends))
            for end in ends if len(ends) > 1 else ():
                yield replace(case, call=f"{end}:missing")
        for name in operands:
            yield replace(case, call=f"grad={name}")
        for wanted in (operands[::2], operands[1::2]) if len(operands) > 2 else ():
            if len(wanted) > 1:  # each operand is a constant in one of the two
                yield replace(case, call=f"grad={','.join(wanted)}")
    for words in recurrence.calls:
        yield replace(case, call=words)
    if recurrence.shares_heads and not few_shapes:
        yield replace(case, shape=case.shape.with_(**SHARED))
    if recurrence.packs and not few_shapes:
        yield with_packing(case, PACKED)
    yield replace(case, call="autocast")


def with_packing(case: Case, packing: str) -> Case:
    """Pack sequences of some lengths instead of a case's batch."""
    total = sum(lengths_of(packing) or ())
    return replace(case, packing=packing, shape=case.shape.with_(B=1, T=total))
