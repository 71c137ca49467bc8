"""The Python interface: run, load, compute, models, backends."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssmperf import registry
from ssmperf.cases.case import chosen_axes
from ssmperf.errors import UsageError
from ssmperf.execute.request import DEFAULT_TIMEOUT_S, File, Names, Request, keyword_default
from ssmperf.execute.run import execute
from ssmperf.registry.declarations import Backend, ModelEntry
from ssmperf.runs import store
from ssmperf.runs.store import RUN_FILE, Run


def run(
    suite: Names = "throughput",
    *,
    models: Names | None = None,
    backends: Names | None = None,
    preset: str | None = None,
    axis: Names = (),
    device: str = "auto",
    devices: Sequence[int] | None = None,
    plugin: File | Sequence[File] = (),
    timeout: float = DEFAULT_TIMEOUT_S,
    out: File | None = None,
    tag: str | None = None,
    resume: bool = False,
    autotune: bool = False,
    configurations: File | None = None,
    write_configurations: File | None = None,
    **axes: Any,
) -> Run:
    """Measure a selection of cases and return the run. Arguments are named as on the command line.

    Args:
        suite, models, backends: a name, names separated by commas, or a sequence of names; None is all.
        preset: smoke, standard or long; by default smoke on the CPU and standard on a GPU.
        axis: sizes of dimensions, such as "T=64:1024:x2" or ["T=64,128", "B=1"].
        device: "auto", "cpu", "cuda" or "cuda:N". devices: several CUDA indices, one worker each.
        plugin: Python files whose backends, models or suites take part. Their code is run.
            Workers load these and all files that this process has loaded so.
        timeout: longest that one case may take, in seconds.
        out: the run's folder; a new one under `runs/` if None. resume: continue that folder.
        autotune: time cases with the configurations that a search finds, and not with curated ones.
        configurations: file of those to use. write_configurations: file for what the search finds.
        axes: the other properties of a case, as `help(ssmperf.run)` lists them; None is the suite's default.
            {axes}

    Raises:
        UsageError: an unknown name, an empty selection, an unusable folder.
    """
    for file in [plugin] if isinstance(plugin, (str, os.PathLike)) else list(plugin):
        registry.load_plugin(file)
    request = Request.of(
        suite,
        models=models,
        backends=backends,
        preset=preset,
        axis=axis,
        device=device,
        devices=devices,
        timeout=timeout,
        out=out,
        tag=tag,
        resume=resume,
        autotune=autotune,
        configurations=configurations,
        write_configurations=write_configurations,
        **axes,
    )
    return execute(request)


def _show_axes(function: Any) -> None:
    """Let a function that takes `**axes` show the axes of a case in its signature and docstring."""
    signature = inspect.signature(function)
    kept = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    keyword = inspect.Parameter.KEYWORD_ONLY
    shown = [
        inspect.Parameter(declared.argument, keyword, default=keyword_default(declared))
        for declared in chosen_axes().values()
    ]
    function.__signature__ = signature.replace(parameters=[*kept, *shown])
    lines = (f"{declared.argument}: {declared.help}" for declared in chosen_axes().values())
    function.__doc__ = (function.__doc__ or "").replace("{axes}", "\n            ".join(lines))


_show_axes(run)


def load(path: File) -> Run:
    """Read a run folder. Raises UnreadableRun."""
    return store.load(path)


def run_folders(parent: File = "runs") -> list[Path]:
    """List the run folders in a folder, oldest first.

    Raises:
        UsageError: there is none.
    """
    found = sorted(file.parent for file in Path(parent).glob(f"*/{RUN_FILE}"))
    if not found:
        raise UsageError(f"no run folder in {parent}/: name one, or make one with `ssmperf run`")
    return found


def models() -> list[ModelEntry]:
    """All registered models, in alphabetical order."""
    return list(registry.models().values())


def backends(model_or_recurrence: str) -> list[Backend]:
    """All backends of a model or recurrence that this machine can import, by name.

    Raises:
        UnknownName: neither a model nor a recurrence.
    """
    return registry.backends(model_or_recurrence)
