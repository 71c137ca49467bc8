"""At which lengths is each backend measured? Curves over T, and what is left out of them to save time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

from ssmperf import Case, Selection, Shape
from ssmperf.suitekit import predicted_call_s, refusal, registry

LENGTHS = 3  # of a curve
LONG_CALL_S = 0.05
# in plain torch; of all models, they are measured at one length
BASELINES = ("hillis_steele", "blelloch", "torch_scan", "logspace", "surrogate_raw", "surrogate_softmax")
QUADRATIC = "surrogate"  # where shapes are large, it is treated like them

Runs = Callable[[Case], bool]  # whether a case is not refused


def _anything(case: Case) -> bool:
    return True


def runs_in(selection: Selection) -> Runs:
    """Make the function that tells whether a case would run, and is not refused."""
    return functools.cache(lambda case: refusal(case, selection) is None)


def middle(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Take the shape of middle length."""
    return shapes[len(shapes) // 2 :][:1]


def curve(shapes: tuple[Shape, ...], factor: int | None) -> tuple[Shape, ...]:
    """Take the shape of middle length, and others with as many tokens whose lengths differ by a factor.

    There are LENGTHS lengths around that of the shape, or below it where one sequence has no more tokens.
    With no factor, the shapes stay the same.
    """
    if factor is None:
        return shapes
    (shape,) = middle(shapes)
    tokens = shape["B"] * shape["T"]
    longest = max(
        (T for above in range(LENGTHS // 2 + 1) if tokens % (T := shape["T"] * factor**above) == 0),
        default=shape["T"],
    )
    lengths = [longest // factor**below for below in range(LENGTHS) if longest % factor**below == 0]
    return tuple(shape.with_(B=tokens // T, T=T) for T in reversed(lengths) if T > 0)


def forward_curves(cases: Iterable[Case]) -> Iterator[Case]:
    """Leave out backward passes, except at the shortest length of a model."""
    every = list(cases)
    shortest = _shortest(every)
    return (case for case in every if case.pass_ == "forward" or case.shape["T"] == shortest[case.owner])


def without_slow_lengths(cases: Iterable[Case], runs: Runs = _anything) -> Iterator[Case]:
    """Leave out loops over time and long calls beyond a model's shortest length.

    Where nothing else that runs is left at a length, the backend that is predicted to be the quickest stays.
    """
    every = list(cases)
    shortest = _shortest(every)
    at_length: dict[tuple[str, str, int], list[Case]] = {}
    for case in every:
        at_length.setdefault((case.owner, case.pass_, case.shape["T"]), []).append(case)
    kept: set[Case] = set()
    for (owner, _, T), found in at_length.items():
        quick = found if shortest[owner] == T else [case for case in found if not _is_slow(case)]
        known = [case for case in found if not registry.import_problem(case.owner, case.backend)]
        alone = [case for case in known if runs(case)] or known
        kept |= {*quick, *([] if any(map(runs, quick)) else sorted(alone, key=predicted_call_s)[:1])}
    return (case for case in every if case in kept)


def baselines_at_one_length(cases: Iterable[Case], runs: Runs = _anything) -> Iterator[Case]:
    """Leave the baselines to a model's shortest length, unless nothing else of it runs at a length."""
    every = list(cases)
    shortest = _shortest(every)
    others = {(case.owner, case.shape["T"]) for case in every if case.backend not in BASELINES and runs(case)}
    return (
        case
        for case in every
        if case.backend not in BASELINES
        or case.shape["T"] == shortest[case.owner]
        or (case.owner, case.shape["T"]) not in others
    )


def without_slow_baselines(cases: Iterable[Case], runs: Runs = _anything) -> Iterator[Case]:
    """Leave out backward passes and long calls of loops and baselines, unless nothing else of a model runs.

    And baselines that compute another function than the recurrence, which need a reference of their own, and
    what grows with the square of the length, beyond the shortest one.
    """
    every = list(cases)
    shortest = _shortest(every)
    ordinary = [case for case in every if not _is_baseline(case) and case.backend != QUADRATIC]
    passes = {(case.owner, case.pass_) for case in ordinary if runs(case)}
    lengths = {(case.owner, case.shape["T"]) for case in ordinary if runs(case)}

    def dear(case: Case) -> bool:
        return case.gradients or predicted_call_s(case) > LONG_CALL_S or _is_another_function(case)

    def beyond(case: Case) -> bool:
        return case.backend == QUADRATIC and case.shape["T"] > shortest[case.owner]

    left_out = {
        case
        for case in set(every).difference(ordinary)
        if (dear(case) and (case.owner, case.pass_) in passes)
        or (beyond(case) and (case.owner, case.shape["T"]) in lengths)
    }
    return (case for case in every if case not in left_out)


def _is_another_function(case: Case) -> bool:
    """Tell whether a backend does not compute the recurrence."""
    if registry.import_problem(case.owner, case.backend):
        return False
    return not registry.backend(case.owner, case.backend).equivalent


def _is_baseline(case: Case) -> bool:
    """Tell whether a backend is a loop over time or one of the baselines."""
    return case.backend in BASELINES or _is_loop(case)


def _shortest(cases: Iterable[Case]) -> dict[str, int]:
    """Find the shortest length of each model or recurrence."""
    found: dict[str, int] = {}
    for case in cases:
        found[case.owner] = min(found.get(case.owner, case.shape["T"]), case.shape["T"])
    return found


def _is_slow(case: Case) -> bool:
    """Tell whether a backend declares that it launches something for each step, or that calls are long."""
    if registry.import_problem(case.owner, case.backend):
        return False
    return _is_loop(case) or predicted_call_s(case) > LONG_CALL_S


def _is_loop(case: Case) -> bool:
    """Tell whether a backend declares that it launches something for each step."""
    if registry.import_problem(case.owner, case.backend):
        return False
    launches, T = registry.backend(case.owner, case.backend).launches, case.shape["T"]
    return launches is not None and T > 1 and launches(case.shape.with_(T=2 * T)) - launches(case.shape) >= T
