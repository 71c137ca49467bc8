"""Experiments: repeat a wrong case with one thing changed, and conclude from what is right then.

An experiment is a case, so that it runs where the wrong one ran: in this process, or in workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ssmperf.engine import registry
from ssmperf.engine.cases.calls.call import STATE, STATELESS, parse
from ssmperf.engine.cases.calls.packing import UNPACKED
from ssmperf.engine.cases.case import DECAY, Case, split_source
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.judge.tolerance import within_float32
from ssmperf.engine.judge.verdict import Verdict
from ssmperf.engine.plan.refusal import gate_kind
from ssmperf.engine.plan.selection import is_own, is_regime

CHUNK = 64  # usual length of a chunk
SHORT = 67  # steps of a shortened case: no multiple of any usual chunk
NEAR = 3.0  # an error below so many tolerances may be rounding, which no experiment explains
PARITY, ALIKE, MULTIPLE, ONE_STEP, PRECISION = "parity", "alike", "multiple", "one step", "float64"
LENGTHS = (PARITY, MULTIPLE, ONE_STEP)
PARTS = (("H", "head", "heads"), ("C", "channel", "channels"), ("D", "channel", "channels"))
RESULTS = ("output", "final_state")
BETA = "beta"
ALL_ONES = "ones"  # a regime of gates, and a view of an operand
FAILED = (Status.WRONG, Status.NAN, Status.CRASH)
ACCURATE_TO_FLOAT32 = "Accurate to float32 only: declare dtypes."

JudgeCase = Callable[[Case], Verdict]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A case that differs from a wrong one in one thing.

    where: the difference, as in "right where gates are 1". meaning: the fault, if it is right there.
    kind: of experiments that are evaluated together.
    """

    where: str
    meaning: str
    case: Case
    kind: str = ""


Found = Sequence[tuple[Experiment, Verdict]]


def experiments_on(case: Case) -> list[Experiment]:
    """List the experiments on a wrong case, the most telling first: at most ten."""
    kinds = (_in_precision, _of_lengths, _of_sizes, _of_state, _of_gates, _of_one_step)
    return [each for kind in kinds for each in kind(case)]


def explained_by_experiments(case: Case, verdict: Verdict, judge: JudgeCase) -> str:
    """Run experiments on a wrong case, and conclude; empty if they show nothing.

    Where the results are wrong, gradients are left out: they may be wrong where the results are right.
    A long case is shortened first, if it is wrong then, too. A case that is right when it is repeated is left
    alone: experiments could not show what has changed.

    judge: judges one call of a case from an initial state, unless the case's words exclude one.
    """
    if not stands_out(verdict):
        return ""
    case = _without_gradients(case, verdict)
    short = _shortened(case)
    again = judge(short)
    if short != case and again.status is Status.OK:
        short, again = case, judge(case)
    if again.status not in FAILED:
        return ""
    found = [(each, judge(each.case)) for each in experiments_on(short)]
    return conclusion(verdict, found, again)


def stands_out(verdict: Verdict) -> bool:
    """Tell whether a verdict is wrong, and not by an error near the tolerance."""
    return verdict.status in FAILED and not 0 < verdict.excess < NEAR


def conclusion(verdict: Verdict, found: Found, again: Verdict | None = None) -> str:
    """Say what the experiments on a wrong case show; empty if they add nothing to its diagnosis.

    verdict: that of the case, with its diagnosis. again: that of the shortened case, if it was shortened.
    """
    ran = [(each, own) for each, own in found if own.status is not Status.UNSUPPORTED]
    right = _of_one_parity(ran, [each for each, own in ran if own.status is Status.OK])
    if right and right[0].kind == PRECISION and _only_float32(again or verdict):
        return ACCURATE_TO_FLOAT32
    if not right:
        return _nothing_explains(verdict, len(ran))
    first, *others = right
    text = f"Right {first.where}: {first.meaning}."
    return text + (f" Also right {', '.join(each.where for each in others)}." if others else "")


def verdict_of(record: Record) -> Verdict:
    """Read the verdict that a record was made of. JSON has null for NaN."""
    numbers = record.numbers
    errors, limits, of_rows, limits_of_rows = (
        {each: math.nan if value is None else value for each, value in (numbers.get(name) or {}).items()}
        for name in ("errors", "tolerances", "row_errors", "row_tolerances")
    )
    diagnosis = tuple(numbers.get("diagnosis") or ())
    return Verdict(record.status, record.reason, errors, limits, of_rows, limits_of_rows, diagnosis=diagnosis)


def _of_one_parity(ran: Found, right: Sequence[Experiment]) -> list[Experiment]:
    """Leave out that T is odd or even if another such T is judged otherwise; else that T fills chunks."""
    parity = next((each for each in right if each.kind == PARITY), None)
    others = [each for each in right if each.kind != ALIKE]
    if parity is None:
        return others
    odd = parity.case.shape["T"] % 2
    alike = [each for each, _ in ran if each.kind in LENGTHS and each.case.shape["T"] % 2 == odd]
    holds = len(others) == len(right) and all(each in right for each in alike)
    return [each for each in others if each.kind != (MULTIPLE if holds else PARITY)]


def _only_float32(verdict: Verdict) -> bool:
    """Tell whether a verdict in float64 is that of a function that computes in float32, or takes no other."""
    return verdict.status is Status.CRASH or within_float32(verdict.errors, verdict.tolerances)


def _nothing_explains(verdict: Verdict, ran: int) -> str:
    worst = next((each for each in verdict.diagnosis if each.get("object")), None)
    if worst is None or worst.get("kind") is not None:
        return ""
    return f"None of {worst.get('tested', 0) + ran} explanations fits."


def _without_gradients(case: Case, verdict: Verdict) -> Case:
    """Leave out a wrong case's gradients where output or final state are wrong."""
    results = any(each.get("object") in RESULTS for each in verdict.diagnosis)
    return replace(case, pass_="forward") if case.gradients and results else case


def _shortened(case: Case) -> Case:
    """Shorten a case to few steps, of which there are as odd or even a number."""
    T = case.shape["T"]
    short = SHORT - (T % 2 == 0)
    if case.packing != UNPACKED or case.decodes or short >= T:
        return case
    return replace(case, shape=case.shape.with_(T=short))


def _in_precision(case: Case) -> Iterator[Experiment]:
    if case.dtype == "float32":
        return
    meaning = f"it is in how it computes in {case.dtype}"
    yield Experiment("in float32", meaning, replace(case, dtype="float32", gate_dtype="float32"), case.dtype)


def _of_lengths(case: Case) -> Iterator[Experiment]:
    if case.packing != UNPACKED or case.decodes:
        return
    T = case.shape["T"]
    other = T - 1 if T > 1 and (T + 1) % CHUNK == 0 else T + 1
    odd, even = ("odd", "even") if T % 2 else ("even", "odd")
    yield Experiment(
        f"where T is {even}", f"it is in how it treats an {odd} T", _sized(case, T=other), PARITY
    )
    same = T + 2 if (T + 2) % CHUNK or T <= 2 else T - 2
    yield Experiment(f"at T = {same}", f"it is not in how it treats an {odd} T", _sized(case, T=same), ALIKE)
    if T % CHUNK:
        whole = max(1, T // CHUNK) * CHUNK
        meaning = "it is in the last chunk, which T does not fill"
        yield Experiment(f"at T = {whole}, a multiple of {CHUNK}", meaning, _sized(case, T=whole), MULTIPLE)
    else:
        more = T + CHUNK // 2 + 1
        yield Experiment(
            f"at T = {more}, no multiple of {CHUNK}",
            "it is in what whole chunks do",
            _sized(case, T=more),
            MULTIPLE,
        )


def _of_sizes(case: Case) -> Iterator[Experiment]:
    for letter, one, many in PARTS:
        if case.shape.get(letter, 1) > 1:
            shared = {"G": 1} if "G" in case.shape and letter == "H" else {}
            changed = _sized(case, **{letter: 1}, **shared)
            yield Experiment(f"with one {one}", f"it is in how {many} are told apart", changed)
            break
    if case.shape["B"] > 1:
        yield Experiment("with one batch item", "it is in how batch items are told apart", _sized(case, B=1))


def _of_state(case: Case) -> Iterator[Experiment]:
    recurrence, call = registry.recurrence(case.recurrence), parse(case.call)
    if case.level != "op" or case.decodes or not recurrence.has_state or STATE in call.names:
        return
    words = tuple(word for word in call.circumstances if word != STATELESS)
    where = "from an initial state"
    if STATELESS not in call.circumstances:
        words, where = (*words, STATELESS), "without an initial state"
    changed = str(replace(call, circumstances=words))
    yield Experiment(where, "it is in how the initial state enters", replace(case, call=changed))


def _of_gates(case: Case) -> Iterator[Experiment]:
    recurrence, call, kind = registry.recurrence(case.recurrence), parse(case.call), gate_kind(case)
    if case.level != "op":
        return
    source = ALL_ONES if case.model else f"{ALL_ONES}/{kind}"
    source = f"{DECAY}/0" if is_own(case.operand_source) else source
    known = split_source(case.operand_source)[0] in (ALL_ONES, "phase") or source == case.operand_source
    if kind and recurrence.log_gates(kind) and not known:
        meaning = "it is in how the decay enters"
        yield Experiment("where gates are 1", meaning, replace(case, operand_source=source))
    if BETA in recurrence.operand_shapes and BETA not in call.names:
        ones = str(replace(call, views={**call.views, BETA: ALL_ONES}))
        yield Experiment("where β is 1", "it is in how β enters", replace(case, call=ones))


def _of_one_step(case: Case) -> Iterator[Experiment]:
    if case.packing == UNPACKED and case.shape["T"] > 1:
        meaning = "it is in what passes from step to step"
        yield Experiment("at T = 1", meaning, _sized(case, T=1), ONE_STEP)


def _sized(case: Case, **sizes: int) -> Case:
    return replace(case, shape=case.shape.with_(**sizes))


def can_be_explained(case: Case) -> bool:
    """Tell whether experiments apply: to operands of a model or of a regime."""
    return is_own(case.operand_source) or is_regime(case.operand_source)
