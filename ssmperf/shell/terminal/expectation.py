"""Say before a long run begins how long it will take, and which backends take most of that."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ssmperf.engine.cases.case import Case
from ssmperf.engine.execute.request import Request
from ssmperf.engine.plan.parts.apart import with_plugins
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.plan.selection import Selection
from ssmperf.shell.terminal.display import counted, duration, expected_of

LONG_S = 60.0
MOST_NAMED = 3
LARGE_SHARE = 0.75  # of the time, that a few backends take


def say_if_long(request: Request, cases: Sequence[Case]) -> None:
    """Say on stderr how long a run will take, if that is long. cases: those without a record."""
    seconds = expected_of(request, cases)
    if seconds >= LONG_S:
        print(words(request, cases, seconds), file=sys.stderr, flush=True)


def words(request: Request, cases: Sequence[Case], seconds: float) -> str:
    """Say how long a run will take, and which few backends take most of the time."""
    text = f"{counted(len(cases), 'case')}, about {duration(seconds)}"
    by_backend = defaultdict(list)
    for case in cases:
        by_backend[case.backend].append(case)
    own_s = {name: expected_of(request, own) for name, own in by_backend.items()}
    slowest, share = [], 0.0
    for name in sorted(own_s, key=lambda each: -own_s[each]):
        if share < LARGE_SHARE:
            slowest.append(name)
            share += own_s[name] / sum(own_s.values())
    if len(slowest) > MOST_NAMED or len(slowest) == len(own_s):
        return text
    names = " and ".join(filter(None, (", ".join(slowest[:-1]), slowest[-1])))
    named = _only_since_named(request, [case for name in slowest for case in by_backend[name]])
    takes = f"{names} {'takes' if len(slowest) == 1 else 'take'} {duration(share * seconds)} of it"
    return f"{text}; {takes}{' (named, so not skipped)' if named else ''}"


def _only_since_named(request: Request, cases: Sequence[Case]) -> bool:
    """Tell whether suites would leave out some of these cases if no backend were named."""
    if not request.selection.backends:
        return False
    wider = partial(_ids_to_run, replace(request.selection, backends=None), request.suites)
    return not {case.id for case in cases} <= set(with_plugins(wider))


def _ids_to_run(selection: Selection, suites: Sequence[str]) -> list[str]:
    return [case.id for case in make_plan(selection, suites).to_run]
