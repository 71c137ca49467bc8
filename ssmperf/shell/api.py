"""The Python interface: run, load, compare, check, ab, bisect, history, best, models, backends."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssmperf.comparison import attempts, comparison
from ssmperf.comparison.comparison import THRESHOLD, parse_threshold
from ssmperf.comparison.outcome import RunComparison
from ssmperf.comparison.trends.history import History, trace
from ssmperf.comparison.versions.follow_up import follow_up
from ssmperf.comparison.versions.procedure import Versions, compare_versions
from ssmperf.comparison.versions.remeasure import remeasure as remeasured
from ssmperf.comparison.versions.search.bisected import Bisected
from ssmperf.comparison.versions.search.bisection import OnJudged, OnStep
from ssmperf.comparison.versions.search.bisection import bisect as bisected
from ssmperf.engine import registry
from ssmperf.engine.cases.case import chosen_axes
from ssmperf.engine.execute.request import File, Request, paths_of, run_folder
from ssmperf.engine.execute.run import Progress, execute
from ssmperf.engine.machine import calibration as calibrations
from ssmperf.engine.plan.run_options import GROUPS, AxisSizes, Names, names
from ssmperf.engine.registry.declarations import Backend, ModelEntry
from ssmperf.engine.runs import folders
from ssmperf.engine.runs.folders import load_all
from ssmperf.engine.runs.question import Best, BestQuestion
from ssmperf.engine.runs.scope import Restriction
from ssmperf.engine.runs.store import Run, some
from ssmperf.shell.notebook import cell_progress


def run(
    suite: Names = "throughput",
    *,
    plugin: File | Sequence[File] = (),
    out: File | None = None,
    resume: bool = False,
    **options: Any,
) -> Run:
    """Measure a selection of cases and return the run. Arguments are named as on the command line.

    A notebook shows a progress bar meanwhile.

    Args:
        suite: "all", a name, names separated by commas, or a sequence.
        plugin: Python files that register backends, models or suites. Their code is run.
            Workers load these files and all plug-in files that this process has loaded before.
        out: the run's folder; None makes a new one under `runs/`. resume: continue the run in that folder.
        options: options and axes as on the command line. Where it takes several values separated by commas,
            a sequence does as well; axis={"T": [64, 256]} is axis="T=64,256". None means the default of the
            suite, the preset or the machine.
            {options}

    Raises:
        UsageError: a name is unknown, the selection is empty, or the folder cannot be used.
    """
    for file in paths_of(plugin):
        registry.load_plugin_apart(file)
    return execute(Request.of(suite, out=out, resume=resume, **options), cell_progress())


def _show_options(function: Any) -> None:
    """Replace `**options` in a function's signature by those of a run and the axes of a case.

    The docstring gets the help of each.
    """
    signature = inspect.signature(function)
    kept = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    declared = {
        each.name: (each.default, each.help) for group in GROUPS for each in group.declared().values()
    }
    declared |= {each.argument: (each.argument_default, each.help or "") for each in chosen_axes().values()}
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, (default, _) in declared.items()
    ]
    function.__signature__ = signature.replace(parameters=[*kept, *shown])
    lines = (f"{name}: {text}" for name, (_, text) in declared.items())
    function.__doc__ = (function.__doc__ or "").replace("{options}", "\n            ".join(lines))


_show_options(run)


def load(path: File, *, force: bool = False) -> Run:
    """Read a run folder, or a folder with the shards of one run. Raises UnreadableRun.

    force: whether shards that were measured on different devices are read as one run.
    """
    return folders.load_run(Path(path), force=force)


def compare(
    base: Run | File,
    new: Run | File,
    *,
    threshold: str | float = THRESHOLD,
    models: Names | None = None,
    backends: Names | None = None,
    suite: Names | None = None,
    force: bool = False,
    unsure: str = "fail",
    calibration: File | None = None,
) -> RunComparison:
    """Compare two runs, with one verdict per case.

    Args:
        base: the run to compare with, or its folder. new: the other run.
        threshold: largest relative change that counts as the same, such as "5%" or 0.05.
        models, backends, suite: names to compare, of both runs. None means all.
        force: compare times even if the device, the driver or versions differ.
        unsure: "pass" if a comparison that finds nothing but ambiguous cases is fine, else "fail".
        calibration: file with the noise of the machine. None takes that of the runs' environments, or else
            the calibration of their device that is stored on this machine.

    Returns:
        A comparison with `.ok`, `.exit_code`, `.slower` and `.pairs` (lists of pairs), `.counts`, `.frame()`.

    Raises:
        UnreadableRun: a folder holds no run, or the calibration is damaged.
        UsageError: the threshold is illegal, or neither run has a case of a name.
    """
    runs = [each if isinstance(each, Run) else load(each) for each in (base, new)]
    found = comparison.compare_runs(
        *runs,
        threshold=threshold,
        force=force,
        unsure=unsure,
        restriction=Restriction(names(models), names(backends), names(suite)),
        calibration=None if calibration is None else calibrations.read(Path(calibration)),
        local=calibrations.load_for,
    )
    return follow_up(found)


def check(
    run: Run | File,
    *,
    baseline: Run | File,
    remeasure: bool = False,
    base_version: str | None = None,
    new_version: str | None = None,
    plugin: File | Sequence[File] = (),
    out: File | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> RunComparison:
    """Compare a run with a baseline, as `ssmperf check` does, and count the attempt in the run's folder.

    Args:
        run, baseline: the runs, or their folders. options: the keywords of `ssmperf.compare`.
        remeasure: measure slower and ambiguous cases again, as `ssmperf.ab` does, and take those verdicts.
        base_version, new_version: the versions to measure; None means the commit that the run names.
        plugin: plug-in files for both versions. out: the folder of new measurements; None makes a new
            one under `runs/`. progress: receives the progress of measuring again.

    Raises:
        UnreadableRun, UsageError: as `ssmperf.compare` and `ssmperf.ab`, or a run names no version.
    """
    found = compare(baseline, run, **options)
    if remeasure:
        found = remeasured(
            found,
            run_folder(out, ("check",)),
            base=base_version,
            new=new_version,
            plugins=paths_of(plugin),
            progress=progress or cell_progress(),
        )
    if remeasure or base_version or new_version:
        found = follow_up(found, base_version, new_version, paths_of(plugin) or None)
    return attempts.count(found)


def ab(
    base: str,
    new: str,
    *,
    suite: Names = "throughput",
    plugin: File | Sequence[File] = (),
    cases: Names = (),
    pairs: str | None = None,
    threshold: str | float = THRESHOLD,
    unsure: str = "fail",
    out: File | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    **choices: Any,
) -> RunComparison:
    """Measure two versions in turn, in fresh processes, and return one verdict per case.

    Args:
        base, new: a git ref, a folder with a pyproject.toml or of a checkout, a wheel, a plug-in file, or an
            environment.
        suite, choices: cases to measure, by the keywords of `ssmperf.run`.
        plugin: plug-in files for both versions; with git refs, paths in their trees. Their code is run.
        cases: ids of cases to which the comparison is restricted, or how they begin.
        pairs: pairs of rounds of all cases, and fresh ones of those that stand out, such as "5+7", which is
            the default (10 fresh ones above 100 cases).
        threshold: largest relative change that counts as the same, such as "5%" or 0.05.
        unsure: "pass" if a comparison that finds nothing but ambiguous cases is fine, else "fail".
        out: the comparison's folder, with both runs; None makes a new one under `runs/`.
        resume: continue the comparison in that folder.
        progress: receives the progress.

    Raises:
        UsageError: a version cannot be installed or refuses the request, or a value is illegal.
        WorkerFailed: a version's process ended.
    """
    folder = Path(out) if out is not None else run_folder(None, ("ab",), resume=resume)
    wanted = Versions.of(base, new, suite, choices, paths_of(plugin), cases, pairs, threshold)
    shown = progress or cell_progress()
    return compare_versions(wanted, folder, resume=resume, unsure=unsure, progress=shown)


def bisect(
    good: str,
    bad: str,
    *,
    case: Names,
    suite: Names | None = None,
    plugin: File | Sequence[File] = (),
    pairs: str | None = None,
    threshold: str | float = THRESHOLD,
    out: File | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    on_step: OnStep | None = None,
    on_judged: OnJudged | None = None,
    **choices: Any,
) -> Bisected:
    """Find the commit that made a case slower, or wrong, by `git bisect`.

    Args:
        good, bad: git refs of the repository in the current folder; `good` is an ancestor of `bad`.
        case: id of the case, or how it begins. Of several, one that became wrong is followed, or else the
            one that slowed down most.
        suite, choices: as for `ssmperf.ab`. None is `throughput`, and `correctness` if an id is named.
        pairs: those of the ends. Each commit takes as many as the second number says, or up to four times.
        threshold: the least slow-down between the ends.
        plugin: plug-in files; those that `bad` has in its tree are taken from the tree of each candidate.
        out: the search's folder; None makes a new one under `runs/`. resume: continue the search in it.
        progress: receives that of each comparison. on_step, on_judged: called with each candidate.

    Returns:
        `.named`, the first slow or wrong commit, if it is shown to be one, and `.conclusion`: see `Bisected`.

    Raises:
        UsageError: a ref is no commit, `bad` is not slower than `good`, nor wrong, or the request is wrong.
        SsmperfError: `bad` cannot be compared with `good`.
    """
    folder = Path(out) if out is not None else run_folder(None, ("bisect",), resume=resume)
    if suite is None:
        suite = ("throughput", "correctness") if case else "throughput"
    wanted = Versions.of(good, bad, suite, choices, paths_of(plugin), case, pairs, threshold)
    shown = progress or cell_progress()
    return bisected(wanted, folder, resume=resume, progress=shown, on_step=on_step, on_judged=on_judged)


def history(
    runs: File | Sequence[File] = "runs",
    *,
    threshold: str | float = THRESHOLD,
    baseline: File | None = None,
    models: Names | None = None,
    backends: Names | None = None,
    suite: Names | None = None,
    alarm: str = "show",
) -> History:
    """Follow each case over many runs: find the runs at which it stepped, and whether it creeps.

    Args:
        runs: run folders and files of pytest-benchmark, or folders with these in them.
        threshold: the change that matters, such as "5%" or 0.05. Smaller steps are left out.
        baseline: the run from which on the cumulative alarm counts, as a folder or a tag. None means each
            case's first run after its last step, or its first run of all.
        models, backends, suite: names to follow. None means all.
        alarm: "fail" if `.exit_code` shall be 1 where a case stands behind a fresh slow-down, or its
            cumulative alarm is raised; else "show".

    Returns:
        A history with `.cases`, `.steps`, `.behind`, `.ok`, `.exit_code`, `.frame()`; `.could_have_found`, a
        sentence about the least steps; and `.left_out`: runs and parts of runs that are not used, such as
        damaged ones, with the reason.

    Raises:
        UnreadableRun: a run that is named cannot be read, or there is none.
        UsageError: the threshold is illegal, the baseline is none of the runs, or no case has a name.
    """
    given = [runs] if isinstance(runs, (str, os.PathLike)) else list(runs)
    return trace(
        [Path(each) for each in given],
        threshold=parse_threshold(threshold),
        restriction=Restriction(names(models), names(backends), names(suite)),
        baseline=None if baseline is None else Path(baseline),
        alarm=alarm,
    )


def best(
    runs: Run | File | Sequence[Run | File],
    *,
    models: Names | None = None,
    axis: AxisSizes = (),
    dtype: Names | None = None,
    pass_: Names | None = None,
    workload: Names | None = None,
    **sizes: Any,
) -> Best:
    """Name the fastest backend of each comparison: the objects that `ssmperf best --json` prints.

    The list's text is sentences, in a notebook, too; the memory at sizes of T is in the text alone. runs:
    runs, their folders, or folders with runs; a warning says which of these cannot be read. models, dtype,
    pass_: names; None means all. The pass `training` is forward and backward together. axis, sizes: sizes of
    dimensions, as axis="T=1024,4096", axis={"T": [1024, 4096]} or T=4096. workload: names of workloads, as
    NAME[:PHASE]; the objects are then answers: a form of a phase each, with the comparison as `contest`,
    `peak_bytes` and `limit_fraction` of the fastest backend, and `right_to` by a stability run among those
    given.

    A comparison is of one model, shape, dtype and pass in one run and environment. A backend competes there
    only if it is wrong in no pass of that place, and not in the correctness suite for that model and dtype.
    One that is approximate by declaration, computes another function, or is faster than the machine can be,
    is listed beside the others and never first; backends whose intervals overlap the winner's share the first
    place. A native call's `prepare` and `finish` are part of its value where they take longer than four
    copies of operands and results. If forward and backward have different winners, another object names the
    winner by their sum.

    fastest: the backends that share the first place, the least median first; empty if none competes.
        `backend`, `value` and `speedup` are those of its first, and `tied` says whether there are several.
    competitors, beside: backend, value, low, high, speedup and mark of each, in order; `note` says why the
        value is not the time as measured, or cannot win.
    excluded: backend, status and reason of those that do not compete.
    winners: the winners of each pass, in the object about the sum of forward and backward; else null.
    date, commit, older: when and of which code it was measured; whether a newer run has the comparison, too.
    refuted: the date of a newer run in which one of the fastest backends is wrong there; else empty.
    """
    given = [runs] if isinstance(runs, (Run, str, os.PathLike)) else list(runs)
    paths = [Path(each) for each in given if isinstance(each, (str, os.PathLike))]
    found = [each for each in given if not isinstance(each, (str, os.PathLike))]
    loaded, left_out = load_all(paths) if paths else ([], [])
    if left_out:
        warnings.warn(f"left out: {some(left_out)}", stacklevel=2)
    found += loaded
    question = BestQuestion.of(
        found, models=models, axis=axis, dtype=dtype, pass_=pass_, workload=workload, **sizes
    )
    return Best(question)


def models() -> list[ModelEntry]:
    """List all registered models in alphabetical order."""
    return list(registry.models().values())


def backends(model_or_recurrence: str) -> list[Backend]:
    """List the backends of a model or recurrence that this machine can import, in alphabetical order.

    Raises:
        UnknownName: the name is neither a model nor a recurrence.
    """
    return registry.backends(model_or_recurrence)
