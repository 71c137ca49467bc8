"""Choose sizes that give a model a width, and the backend that trains it in the least time."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ssmperf.engine import registry
from ssmperf.engine.cases.case import MODEL, Case
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.layers.block import build_block
from ssmperf.engine.machine import devices
from ssmperf.engine.plan.plan import PlannedSubject, product
from ssmperf.engine.plan.refusal import (
    SECONDS_PER_LAUNCH,
    SECONDS_PER_REPLAYED_LAUNCH,
    predicted_call_s,
    refusal,
)
from ssmperf.engine.plan.selection import Selection
from ssmperf.engine.registry.declarations import Backend
from ssmperf.errors import Unsupported
from ssmperf.papers.learn.testing import GROWTH, TEST_ROWS

NO_SUITE = "learn"  # stands for a suite in cases that are only predicted


@functools.cache
def sized(model: str, width: int, preset: str = "smoke") -> dict[str, int]:
    """Give a model sizes whose residual stream has this width, if its channels can be scaled to that.

    The first sizes of a preset are scaled by one letter: that of its channels, or else its number of heads,
    or the size of a single head.
    """
    sizes = dict(registry.shapes(registry.model(model), preset)[0])
    own = build_block(model, {**sizes, "B": 1, "T": 1}).width
    several = sizes.get("H", 1) > 1
    letter = "C" if "C" in sizes else "D" if "D" in sizes else "H" if several else "V"
    scaled, rest = divmod(sizes[letter] * width, own)
    if not rest and scaled:
        sizes[letter] = scaled
    return sizes


def choose_backend(
    model: str,
    sizes: Mapping[str, int],
    device: str,
    *,
    updates: int,
    growth: int = GROWTH[-1],
    among: Sequence[str] | None = None,
) -> str:
    """Choose the backend that is predicted to train a model in the least time, tests included.

    sizes: the model's shape, with the batch B and the length T of the training. device: a torch device.
    growth: the longest test, as a multiple of T. among: names of backends; None means all.

    Raises:
        Unsupported: no exact backend of this package can do it on the device.
    """
    type_, found = devices.resolve(device)
    names = None if among is None else tuple(among)
    selection = Selection(device=devices.describe(type_, found), backends=names)
    subject = PlannedSubject(registry.recurrence_of(model), MODEL, (Shape(sizes),), model)
    cases = product(
        selection,
        NO_SUITE,
        passes=("forward_backward",),
        dtypes=("float32",),
        cache="hot",
        about=[subject],
        peers=False,
    )
    chosen = [case.backend for case in quickest(cases, selection, updates=updates, growth=growth)]
    if not chosen:
        raise Unsupported(f"no exact backend {'' if names is None else f'of {names} '}trains {model} here")
    return chosen[0]


def quickest(
    cases: Iterable[Case], selection: Selection, *, updates: int | None = None, growth: int = GROWTH[-1]
) -> Iterator[Case]:
    """Choose, among cases that differ only in the backend, the one predicted to take the least time.

    Only exact backends of the recurrence itself, of this package, that are not refused are considered. If
    there is none, there is no case.

    updates: of a training; None means the preset's. growth: the longest test, as a multiple of T.
    """
    count = selection.scale.training.updates if updates is None else updates
    best: dict[Case, tuple[float, str]] = {}
    for case in cases:
        if refusal(case, selection) is not None:
            continue
        backend = registry.backend(case.owner, case.backend)
        ours = not registry.foreign("backend", f"{backend.of}/{backend.name}")
        if ours and backend.equivalent and backend.error_bound is None:
            key = replace(case, backend="")
            found = (predicted_s(backend, case, count, growth), case.backend)
            best[key] = min(found, best.get(key, found))
    return (replace(case, backend=name) for case, (_, name) in best.items())


def predicted_s(backend: Backend, case: Case, updates: int, growth: int) -> float:
    """Predict the seconds of a case's calls from a backend's declarations; infinite if it declares nothing.

    These are the updates of one training, which a GPU replays as a graph, and a test at each length, of which
    the longest costs the most.
    """
    if not (backend.kernels or (backend.launches is not None and backend.workspace is not None)):
        return math.inf
    longest = case.shape.with_(B=TEST_ROWS, T=growth * case.shape["T"])
    test = replace(case, shape=longest, pass_="forward")
    launch_s = SECONDS_PER_LAUNCH if case.device == "cpu" else SECONDS_PER_REPLAYED_LAUNCH
    return updates * predicted_call_s(case, launch_s=launch_s) + 2 * predicted_call_s(test)
