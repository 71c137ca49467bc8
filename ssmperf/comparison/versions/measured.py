"""Read what `ab` has measured from its folder, and draw its verdicts again. Nothing is measured."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssmperf.comparison.comparison import THRESHOLD
from ssmperf.comparison.outcome import RunComparison
from ssmperf.comparison.versions.follow_up import follow_up_sides
from ssmperf.comparison.versions.procedure import Versions, common_values, conclude
from ssmperf.comparison.versions.sides import Side
from ssmperf.comparison.versions.state import PLAN_FILE, read_state
from ssmperf.engine.cases.case import chosen_axes
from ssmperf.engine.cases.record import Status
from ssmperf.engine.measure import paired
from ssmperf.engine.plan.run_options import Choices, RunOptions
from ssmperf.engine.runs import store
from ssmperf.engine.runs.store import Run
from ssmperf.errors import UnreadableRun, UsageError


def load_comparison(folder: Path) -> RunComparison:
    """Read the comparison of two versions that `ab` has left in a folder.

    Raises:
        UnreadableRun: there is none, it is damaged, or it was interrupted.
    """
    file = folder / PLAN_FILE
    if not file.exists():
        raise UnreadableRun(f"{folder} is no folder of `ssmperf ab`: it has no {PLAN_FILE}")
    state = read_state(file)
    try:
        wanted = _wanted(state)
        sides = {name: _side(state["sides"][name]) for name in ("base", "new")}
        screened = tuple(map(str, state.get("screened", ())))
        repeat = command_that_repeats(wanted, sides)
    except (AttributeError, KeyError, TypeError, ValueError, UsageError) as error:
        raise UnreadableRun(f"{file} is damaged: {error!r:.200}") from error
    base, new = (store.load(folder / name) for name in sides)
    count = len(common_values(base, new, range(wanted.first)))
    fresh = paired.fresh_pairs(count) if wanted.fresh is None else wanted.fresh
    if "screened" not in state or _lacks_pairs(base, new, screened, wanted.first + fresh):
        raise UnreadableRun(f"the comparison in {folder} was interrupted: `ssmperf ab --resume` ends it")
    found = conclude(base, new, wanted, screened, fresh, unsure=state.get("unsure", "fail"))
    return replace(follow_up_sides(found, sides, wanted.plugins), repeat=repeat)


def _lacks_pairs(base: Run, new: Run, ids: tuple[str, ...], rounds: int) -> bool:
    """Tell whether a case is to be measured in more rounds: it is ok in all that there are."""
    known = common_values(base, new, range(rounds))
    absent = [id_ for id_ in ids if id_ not in known]
    return any(
        all(record.status is Status.OK for run in (base, new) for record in run.rounds.get(id_, ()))
        for id_ in absent
    )


def _wanted(state: Mapping[str, Any]) -> Versions:
    return Versions(
        str(state["base"]),
        str(state["new"]),
        dict(state["arguments"]),
        tuple(map(str, state["plugins"])),
        tuple(map(str, state["cases"])),
        float(state["threshold"]),
        int(state["first"]),
        None if state["fresh"] is None else int(state["fresh"]),
    )


def _side(described: Mapping[str, Any]) -> Side:
    """Make a side of what `Side.to_json` gave."""
    names = {field.name for field in dataclasses.fields(Side)}
    fields = {name: value for name, value in described.items() if name in names}
    texts = ("text", "kind", "commit")
    wrong = [name for name in texts if not isinstance(fields.get(name), str | None)]
    if wrong:
        raise ValueError(f"its {wrong[0]} is no text")
    return Side(**{**fields, "plugins": tuple(fields.get("plugins", ()))})


def command_that_repeats(wanted: Versions, sides: Mapping[str, Side]) -> str:
    """Compose the command line that measures both versions again; a git ref is named by its commit."""
    words = ["ssmperf", "ab"]
    for name, side in sides.items():
        words += [f"--{name}", side.commit[:10] if side.kind == "git ref" and side.commit else side.text]
    given = {name: value for name, value in wanted.arguments.items() if value is not None}
    words += ["--suite", _joined(given.pop("suite"))]
    words += [*Choices.taken_from(given).words, *RunOptions.taken_from(given).words]
    for axis in chosen_axes().values():
        if (value := given.get(axis.argument, axis.argument_default)) != axis.argument_default:
            words += [axis.option, _joined(value)]
    for file in wanted.plugins:
        words += ["--plugin", file]
    if wanted.cases:
        words += ["--cases", _joined(wanted.cases)]
    if wanted.threshold != THRESHOLD:
        words += ["--threshold", f"{wanted.threshold:g}"]
    if wanted.fresh is not None:
        words += ["--pairs", f"{wanted.first}+{wanted.fresh}"]
    return shlex.join(words)


def _joined(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
