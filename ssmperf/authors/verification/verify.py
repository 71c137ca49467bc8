"""Judge one function in this process as a run would, for a test or a notebook cell.

Nothing is registered, timed or written. Checks of runs alone are left out: the calls that are timed, the
state of the process afterwards, properties such as causality, closed forms and identities.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ssmperf.authors.verification.bench import (
    NO_CEILINGS,
    UntimedBench,
    entry_of,
    like_a_worker,
    refusal_of,
    selection_of,
    subjects_of,
)
from ssmperf.authors.verification.experiments import with_experiments
from ssmperf.authors.verification.report import AT_LENGTH, FROM_STATE, OTHER_CALLS, Verification
from ssmperf.engine import registry
from ssmperf.engine.cases.calls.call import NONE as PLAIN
from ssmperf.engine.cases.calls.call import complex_refusal
from ssmperf.engine.cases.calls.packing import UNPACKED
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.failure import TRACEBACK, failure_of, message_of
from ssmperf.engine.cases.record import Status
from ssmperf.engine.execute.context import Settings
from ssmperf.engine.execute.judging import Judging
from ssmperf.engine.execute.worker import is_out_of_memory
from ssmperf.engine.judge.calls.probe import has_probe
from ssmperf.engine.judge.checked import with_checks
from ssmperf.engine.judge.verdict import Verdict
from ssmperf.engine.plan.plan import PlannedSubject
from ssmperf.engine.plan.refusal import form_problem
from ssmperf.engine.plan.run_options import Names, names
from ssmperf.engine.plan.selection import Selection
from ssmperf.engine.registry.declarations import Backend, Recurrence
from ssmperf.errors import BrokenContract, Unsupported, UsageError

PRESET = "smoke"  # whose sizes are taken where none are given
ODD = 3  # added to its shortest T
BOTH = "both"


def verify(
    of: str,
    function: Callable[..., Any] | str,
    *,
    dtype: Any = "float32",
    gate_dtype: Any = None,
    regime: Names | None = None,
    gates: Names | None = None,
    layout: str = "channels_last",
    device: Any = "auto",
    seed: int = 0,
    gradients: bool = True,
    initial_state: bool | str = BOTH,
    packing: Any = UNPACKED,
    call: str = PLAIN,
    **sizes: int,
) -> Verification:
    """Judge a function against float64 in this process: `assert ssmperf.verify("scan", fn, T=3000)`.

    The judgement is that of a run before it times a call. Output, final state and the gradients of all
    operands are compared with the recurrence's definition in float64, for two draws of values in the same
    buffers, with tolerances derived from the dtype. Fresh memory reads as NaN, and operands must not change.

    Args:
        of: a recurrence, or a model, whose operands are then its own.
        function: takes the recurrence's operands, by their names or in their order, and returns (output,
            final_state). Or the name of a registered backend. An operand that the function has no parameter
            for is one that it does not support.
        dtype: float64, float32, bfloat16 or float16; short names and torch's dtypes are allowed.
        gate_dtype: dtype of the log gates; None means float32, or float64 in float64.
        regime: gate regimes to draw from. None means sigmoid for a recurrence, and a model's own operands.
        gates: gate kinds to judge. None means all kinds of the recurrence that the function supports.
        layout: channels_last or time_last. device: "auto", "cpu", "cuda" or "cuda:N".
        seed: changes all values. Equal arguments give equal values.
        gradients: whether to judge the gradients too.
        initial_state: True or False, whether the calls start from a random state; "both" judges both.
        packing: lengths of sequences packed into one, such as `[1300, 547, 0, 1]` or "1024x8".
        call: words such as "read=pre bonus dy:expanded grad=k,v" (see `ssmperf.engine.cases.calls.call`).
            With neither packing nor words, other forms of the call are judged, too, as `correctness` does,
            where calls with and without a state are; the report has a verdict on them if one is wrong.
        sizes: sizes of dimensions by letter, such as T=3000; G is the number of key heads. Others are small.
            If T is even, a small odd one is judged, too: tiles may divide T. The report has a verdict on it
            if it is wrong.

    Returns:
        A report that is true if everything that was judged is right, and if anything was judged, of each
        regime and each gate kind that was asked for. An exception that the function raises is a verdict, too.

    Raises:
        UsageError: a name, letter or value is illegal.
    """
    selection, torch_device = selection_of(
        of, dtype, gate_dtype, regime, layout, device, seed, sizes, preset=PRESET, keywords=KEYWORDS,
        packing=packing, call=call,
    )  # fmt: skip
    recurrence = registry.recurrence(registry.recurrence_of(of))
    entry = entry_of(of, function, recurrence)
    states = _states(of, initial_state, recurrence)
    found = subjects_of(of, selection, recurrence, names(gates))
    pass_ = "forward_backward" if gradients else "forward"
    cases = [_case(subject, entry, selection, pass_, sizes) for subject in found]
    for case in cases:
        problem = form_problem(case, recurrence)
        if problem:
            raise UsageError(f"call: {problem}")
    odd = [_case(subject, entry, selection, pass_, {**sizes, "T": _odd(subject)}) for subject in found]
    odd = [] if cases[0].shape["T"] % 2 or selection.packing is not None else odd
    context = UntimedBench(torch_device, "", Settings(), NO_CEILINGS, entry=entry)
    judgings = {
        _label(case, state): Judging(case, context, with_state=state)
        for case, state in itertools.product(cases, states)
    }
    at_odd = {
        f"{_label(case, state)}{AT_LENGTH}{case.shape['T']}": Judging(case, context, with_state=state)
        for case, state in itertools.product(odd, states)
    }
    verdicts: dict[str, Verdict] = {}
    not_covered: dict[str, str] = {}
    with like_a_worker(torch_device):
        for label, judging in judgings.items():
            try:
                verdicts[label] = _judge(judging, selection)
            except Unsupported as refusal:
                not_covered[label] = message_of(refusal) or "it gave no reason"
        for label, judging in at_odd.items():
            if _right(verdicts, judging.case):
                try:
                    verdict = _judge(judging, selection)
                except Unsupported as refusal:
                    not_covered[label] = message_of(refusal) or "it gave no reason"
                    continue
                if verdict.status is not Status.OK:
                    verdicts[label] = verdict
        for case in cases if initial_state == BOTH else ():
            if _right(verdicts, case) and has_probe(case):
                other = _other_calls(Judging(case, context))
                if other.status is not Status.OK:
                    verdicts[case.operand_source + OTHER_CALLS] = other
        verdicts |= with_experiments(verdicts, {**judgings, **at_odd}, partial(_once, context, selection))
    kinds = names(gates) if of == recurrence.name else None  # a model has one
    asked = (*(names(regime) or ()), *(kinds or ()))
    lengths = tuple(dict.fromkeys(case.shape["T"] for case in odd))
    return Verification(of, entry.name, cases[0], verdicts, not_covered, asked, lengths)


def _label(case: Case, with_state: bool) -> str:
    return case.operand_source + FROM_STATE * with_state


def _right(verdicts: Mapping[str, Verdict], case: Case) -> bool:
    """Tell whether something was judged of a case's source of operands, and all of it is right."""
    own = [verdicts[label] for state in (False, True) if (label := _label(case, state)) in verdicts]
    return bool(own) and all(each.status is Status.OK for each in own)


def _odd(subject: PlannedSubject) -> int:
    """Choose a small odd T that no tile divides."""
    shortest = min(shape["T"] for shape in subject.shapes)
    return shortest + (ODD if shortest % 2 == 0 else ODD - 1)


def _other_calls(judging: Judging) -> Verdict:
    """Judge what the signature promises beside plain calls; the errors are those of other values."""
    found = judging.context.calls_judged(judging.case, judging.bound)
    verdict, _ = with_checks(Verdict(Status.OK), "call", found)
    return dataclasses.replace(verdict, errors={}, tolerances={})


def _states(of: str, initial_state: bool | str, recurrence: Recurrence) -> tuple[bool, ...]:
    """List whether to start from a state. Raises UsageError for a value that is none, or without states."""
    if initial_state is True and not recurrence.has_state:
        raise UsageError(f"{of} has no state to start from")
    if initial_state == BOTH:
        return (False, True) if recurrence.has_state else (False,)
    if not isinstance(initial_state, bool):
        raise UsageError(f"initial_state must be True, False or {BOTH!r}, got {initial_state!r}")
    return (initial_state,)


def _case(
    subject: PlannedSubject, entry: Backend, selection: Selection, pass_: str, sizes: Mapping[str, int]
) -> Case:
    shape = min(subject.shapes, key=lambda shape: shape["T"])
    if selection.packing is not None:
        sizes = {**sizes, "B": 1, "T": sum(selection.packing)}
    chosen = {name: selection.chosen(name)[0] for name in ("dtype", "gate_dtype", "layout")}
    return Case(
        "verify",
        subject.recurrence,
        entry.name,
        shape.with_(**{"T": _odd(subject), **sizes}),
        subject.model,
        **chosen,
        operand_source=subject.source,
        device=selection.device.type,
        pass_=pass_,
        seed=selection.chosen("seed"),
        packing=selection.chosen("packing"),
        call=selection.chosen("call"),
    )


def _once(context: UntimedBench, selection: Selection, case: Case) -> Verdict:
    """Judge one call of an experiment, from an initial state unless the case's words exclude one."""
    problem = form_problem(case, context.recurrence(case))
    if problem:
        return Verdict(Status.UNSUPPORTED, problem)
    try:
        return _judge(Judging(case, context, with_state=True), selection, once=True)
    except Unsupported as refusal:
        return Verdict(Status.UNSUPPORTED, message_of(refusal))


def _judge(judging: Judging, selection: Selection, *, once: bool = False) -> Verdict:
    """Judge one case. An exception from the function becomes the verdict, with its place and traceback.

    once: judge a single call.

    Raises:
        Unsupported: the backend refuses the case, by declaration or when it is called.
    """
    case = judging.case
    refusal = refusal_of(case, judging.context.backend(case), selection)
    if refusal:
        raise Unsupported(refusal)
    try:
        verdict = judging.once() if once else judging.first()[0]
        return dataclasses.replace(verdict, output=None)  # whose memory is given back
    except (Unsupported, UsageError):
        raise
    except BrokenContract as error:
        return Verdict(Status.WRONG, message_of(error))
    except Exception as error:
        failure = failure_of(error)
        status = Status.OOM if is_out_of_memory(error) else Status.CRASH
        if status is Status.CRASH and (refusal := complex_refusal(case.call, failure.reason)):
            raise Unsupported(refusal) from error
        return Verdict(status, failure.reason, extra={TRACEBACK: failure.traceback})


KEYWORDS = tuple(
    name for name, each in inspect.signature(verify).parameters.items() if each.kind is each.KEYWORD_ONLY
)
