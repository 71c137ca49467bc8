"""Make a request and its plan in a child that loads plug-ins, for a driver that imports none.

The child answers with plain data: the cases with their refusals, and outlines of what the plug-ins declare.
It speaks of cases of plug-ins alone: which others there are, and which of them are refused, the driver says.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from ssmperf import errors
from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case, split_source
from ssmperf.engine.cases.failure import failure_of
from ssmperf.engine.cases.place import place_of
from ssmperf.engine.plan.estimate import may_share, work_s
from ssmperf.engine.plan.parts import outlines
from ssmperf.engine.plan.plan import Plan, Planned, in_order, make_plan, unchecked_plan
from ssmperf.engine.plan.selection import Selection, check_source
from ssmperf.engine.processes.forked import BY_SIGNAL, forked_answer
from ssmperf.engine.registry.presets import Preset
from ssmperf.errors import PlanFailed, SsmperfError, UnknownName

File = str | os.PathLike[str]
PASSED_ON: dict[str, type[BaseException]] = {each.__name__: each for each in (MemoryError, KeyboardInterrupt)}


class Plannable(Protocol):
    """What is to be measured, as far as a plan needs it."""

    @property
    def selection(self) -> Selection: ...
    @property
    def suites(self) -> Sequence[str]: ...
    @property
    def scale(self) -> Preset: ...


R = TypeVar("R", bound=Plannable)


def planned_apart(files: Sequence[File], ask: Callable[[], R]) -> tuple[R, Plan | None]:
    """Make a request, and its plan in a child if there are plug-ins; None where `make_plan` may make it here.

    files: plug-in files. ask: makes the request; it is called in the child, and here with outlines alone. A
    process that has loaded plug-ins before loads these, too.

    Raises:
        SsmperfError: as `load_plugin`, `ask` and `make_plan` do.
        PlanFailed: the child died, or raised something else.
    """
    outlines.begin()
    if registry.plugins():
        for file in files:
            registry.load_plugin_apart(file)
        return ask(), None
    if not files and not registry.has_installed():
        return ask(), None
    registry.import_built_in()
    registry.take_installed(taken=False)
    found = answer_apart(partial(_planned, ask), files)
    outlines.register(found["outlines"])
    request = ask()
    outlines.forget()
    selection = _of_this_package(request.selection)
    suites = [name for name in request.suites if name in registry.suites()]
    own = Plan(()) if selection is None else unchecked_plan(selection, suites)
    outlines.register(found["outlines"])
    return request, _joined(own, found)


def _of_this_package(selection: Selection) -> Selection | None:
    """Leave out what this process does not know, since it is a plug-in's; None if nothing is left."""

    def knows(check: Callable[[str], object], name: str) -> bool:
        try:
            check(name)
        except UnknownName:
            return False
        return True

    checks: dict[str, tuple[Callable[[str], object], tuple[str, ...] | None]] = {
        "models": (registry.recurrence_of, selection.models),
        "backends": (lambda name: registry.check_backend_names((name,)), selection.backends),
        "choices": (_check_operands, selection.regimes),
    }
    known = {
        field: tuple(name for name in names if knows(check, name))
        for field, (check, names) in checks.items()
        if names is not None
    }
    parts = [part for each in selection.parts if (part := _of_this_package(each)) is not None]
    if not all(known.values()) or (selection.parts and not parts):
        return None
    kept: dict[str, Any] = {**known, "parts": tuple(parts)}
    if "choices" in known:
        kept["choices"] = {**selection.choices, "operand_source": known["choices"]}
    return replace(selection, **kept)


def _check_operands(source: str) -> None:
    """Raise UnknownName for a source of operands that this process does not know, and for its task."""
    check_source(source)
    kind, name = split_source(source)
    if kind == "task" and name is not None:
        registry.task(name)


def _joined(own: Plan, found: Mapping[str, Any]) -> Plan:
    """Join this process's plan with a child's, which counts for cases of plug-ins alone."""
    told = [Planned(Case.from_json(case), refusal) for case, refusal in found["cases"]]
    foreign = [each for each in told if outlines.concern(each.case)]  # it may say anything
    ids = {each.case.id for each in foreign}
    workloads: dict[str, dict[str, tuple[str, ...]]] = {}
    for name in {**found["workloads"], **own.workloads}:
        by_phase = [plan.get(name, {}) for plan in (own.workloads, found["workloads"])]
        phases = {**by_phase[0], **by_phase[1]}
        workloads[name] = {
            phase: (*by_phase[0].get(phase, ()), *(id_ for id_ in by_phase[1].get(phase, ()) if id_ in ids))
            for phase in phases
        }
    return Plan(in_order([*own.cases, *foreign]), workloads)


def with_plugins(work: Callable[[], Any]) -> Any:
    """Call a function where the plug-ins are: here, or in a child if this process has outlines of them.

    Its answer is plain data. Raises: as `answer_apart`.
    """
    return answer_apart(work, registry.plugins()) if outlines.registered() else work()


def answer_apart(work: Callable[[], Any], files: Sequence[File]) -> Any:
    """Call a function in a child that has loaded plug-ins; return its answer, plain data.

    Raises:
        SsmperfError: as the function does. PlanFailed: the child died, or raised something else.
    """
    data, status = forked_answer(partial(_told, work, files))
    if status or not data:
        ended = f"was killed by {signal.Signals(status - BY_SIGNAL).name}" if status > BY_SIGNAL else "ended"
        raise PlanFailed(f"the process that loads plug-ins {ended} without an answer")
    found = json.loads(data)
    if "answer" in found:
        return found["answer"]
    remote = Exception(f"in the process that loads plug-ins\n{found['traceback']}")
    raise _error(found["kind"], found["text"]) from remote


def _error(kind: str, text: str) -> BaseException:
    """Make the child's error here, without its attributes."""
    known: Any = PASSED_ON.get(kind) or getattr(errors, kind, None)
    if inspect.isclass(known) and issubclass(known, (SsmperfError, *PASSED_ON.values())):
        new: Callable[..., BaseException] = known.__new__
        made = new(known)
        made.args = (text,)
        return made
    return PlanFailed(f"{text} (--debug shows the traceback)")


def _told(work: Callable[[], Any], files: Sequence[File]) -> bytes:
    """Load plug-ins, call a function, and tell its answer or its error."""
    try:
        outlines.begin()
        registry.take_installed(taken=True)
        for file in files:
            registry.load_plugin(file)
        found = {"answer": work()}
    except BaseException as error:
        text = str(error)
        if not isinstance(error, (SsmperfError, *PASSED_ON.values())):
            place = place_of(error)
            text = f"{'' if place and place.of_author else 'internal error: '}{failure_of(error).reason}"
        shown = "".join(traceback.format_exception(error))
        found = {"kind": type(error).__name__, "text": text, "traceback": shown}
    return json.dumps(found).encode()


def _planned(ask: Callable[[], Plannable]) -> dict[str, Any]:
    request = ask()
    plan = make_plan(request.selection, request.suites, outlines.concern)
    own = [each for each in plan.cases if outlines.concern(each.case)]
    outlines.note_answers()
    for case in [each.case for each in own if each.refusal is None]:
        may_share(case)
        for training in (None, request.scale.training):
            work_s([case], training)
    models = {*_models_of(request.selection), *(each.case.model for each in own if each.case.model)}
    return {
        "cases": [[each.case.to_json(), each.refusal] for each in own],
        "workloads": plan.workloads,
        "outlines": outlines.describe(sorted(models)),
    }


def _models_of(selection: Selection) -> Iterator[str]:
    for each in (selection, *selection.parts):
        yield from each.models or ()
