"""Measure the undecided cases of a comparison again, in pairs of rounds of both versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssmperf.comparison.outcome import VERDICTS, Pair, RunComparison
from ssmperf.comparison.versions.procedure import Versions, compare_versions
from ssmperf.comparison.versions.sides import kind_of, shallow_words
from ssmperf.engine.cases.case import Case, chosen_axes
from ssmperf.engine.execute.run import Progress
from ssmperf.engine.runs.store import Run
from ssmperf.errors import UsageError

UNDECIDED = ("slower", "ambiguous")
MODEL_SOURCE = "model"


def remeasure(
    found: RunComparison,
    out: Path,
    *,
    base: str | None = None,
    new: str | None = None,
    plugins: Sequence[str] = (),
    progress: Progress | None = None,
) -> RunComparison:
    """Replace the verdicts `slower` and `ambiguous` by those of `ab`, restricted to these cases.

    A case that is no longer ok keeps its verdict. One that was ambiguous since environments differ is decided
    here, where both versions have one environment.

    out: the folder of the new measurements.
    base, new: the versions, as `ab` takes them; None means the commit that the run names.
    plugins: plug-in files for both versions.

    Raises:
        UsageError: a version is neither given nor named by its run, or the cases cannot be planned together.
    """
    undecided = [pair for pair in found.pairs if pair.verdict in UNDECIDED and pair.ratio is not None]
    if not undecided:
        return found
    wanted = Versions(
        base or commit_of(found.base, "base"),
        new or commit_of(found.new, "new"),
        arguments=arguments_for([pair.case for pair in undecided], found.new),
        plugins=tuple(plugins),
        cases=tuple(pair.case.id for pair in undecided),
        threshold=found.threshold,
    )
    fresh = {pair.case.id: pair for pair in compare_versions(wanted, out, progress=progress).pairs}
    order = list(VERDICTS)
    pairs = [_replaced(pair, fresh.get(pair.case.id)) for pair in found.pairs]
    pairs.sort(key=lambda pair: order.index(pair.verdict))
    what = "1 case was" if len(undecided) == 1 else f"{len(undecided)} cases were"
    note = f"{what} measured again in pairs of rounds, in {out}"
    return replace(found, pairs=tuple(pairs), notes=(*found.notes, note))


def _replaced(pair: Pair, fresh: Pair | None) -> Pair:
    return pair if fresh is None or pair.verdict not in UNDECIDED else fresh


def commit_of(run: Run, side: str) -> str:
    """Get the commit from which a run's cases were measured.

    Raises:
        UsageError: the run names none, its checkout had changes, or the commit is not in this repository.
    """
    advice = f"name the version behind it with --{side}-version"
    states = [
        environment.get("git") for environment in run.environments.values() if isinstance(environment, dict)
    ]
    commits = {state.get("commit") for state in states if isinstance(state, dict)}
    commit = next(iter(commits)) if len(commits) == 1 else None
    if run.meta.get("plugins"):
        raise UsageError(f"{run.path} was measured with a plug-in file: {advice}")
    if not isinstance(commit, str):
        raise UsageError(f"{run.path} does not say from which commit it is: {advice}")
    if any(state.get("dirty") for state in states if isinstance(state, dict)):
        raise UsageError(f"{run.path} is from a checkout with changes beyond {commit[:10]}: {advice}")
    try:
        kind_of(commit)
    except UsageError:
        raise UsageError(
            f"the commit {commit[:10]} of {run.path} is not in this repository: {advice}{shallow_words()}"
        ) from None
    return commit


def arguments_for(cases: Sequence[Case], run: Run) -> dict[str, Any]:
    """Make the arguments of `Request.of` whose plan has these cases, beside others.

    Raises:
        UsageError: they differ in something of which a run has only one.
    """
    sizes: dict[str, set[int]] = {}
    for case in cases:
        for letter, size in case.shape.items():
            sizes.setdefault(letter, set()).add(size)
    selection, sampling = run.meta.get("selection"), run.meta.get("sampling")
    arguments: dict[str, Any] = {
        "suite": _all(case.suite for case in cases),
        "models": _all(case.owner for case in cases),
        "backends": _all(case.backend for case in cases),
        "axis": [f"{letter}={','.join(map(str, sorted(found)))}" for letter, found in sizes.items()],
        "device": _only("device", [case.device for case in cases]),
    }
    if isinstance(selection, dict) and isinstance(selection.get("preset"), str):
        arguments["preset"] = selection["preset"]
    if isinstance(sampling, dict) and isinstance(sampling.get("max_time_s"), (int, float)):
        arguments["time"] = float(sampling["max_time_s"])
    for name, declared in chosen_axes().items():
        values = _all(getattr(case, name) for case in cases)
        if name == "operand_source":
            if values == [MODEL_SOURCE]:
                continue
            if MODEL_SOURCE in values:
                raise UsageError("cases of models and of bare recurrences cannot be measured again together")
        arguments[declared.argument] = values if declared.many else _only(declared.argument, values)
    return arguments


def _all(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))


def _only(name: str, values: Sequence[Any]) -> Any:
    found = _all(values)
    if len(found) != 1:
        raise UsageError(
            f"the undecided cases differ in {name} ({', '.join(map(str, found))}), of which a run has one: "
            "restrict the check"
        )
    return found[0]
