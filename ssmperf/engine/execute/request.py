"""Request: everything that a user asks of a run. The command line and `ssmperf.run` build the same one."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.axis import Axis
from ssmperf.engine.cases.calls.packing import read_lengths_file
from ssmperf.engine.cases.case import GATES, chosen_axes
from ssmperf.engine.machine import devices as devices_
from ssmperf.engine.measure.paired import FIRST_PAIRS
from ssmperf.engine.plan.learning import Learning
from ssmperf.engine.plan.run_options import RAY, Choices, Configurations, Names, RunOptions, names
from ssmperf.engine.plan.selection import NAMED, Selection
from ssmperf.engine.plan.sizes import parse_sizes
from ssmperf.engine.plan.workloads.phases import with_workloads
from ssmperf.engine.registry.presets import Preset
from ssmperf.engine.tune.files import CURATED, Tuning
from ssmperf.errors import UsageError

File = str | os.PathLike[str]
EVERY_SUITE = "all"
LONGEST_NAME = 80  # of the suites in a folder's name


def paths_of(files: File | Sequence[File]) -> tuple[str, ...]:
    """List the paths of one file, of several or of none."""
    given = [files] if isinstance(files, (str, os.PathLike)) else list(files or ())
    return tuple(str(file) for file in given)


@dataclass(frozen=True, slots=True)
class Request:
    """The cases to measure, the torch devices, the options, and the folder of the run.

    learning: how networks are trained, where it is not as the preset says.
    argv: the command line of the request; empty for a call from Python.
    """

    suites: tuple[str, ...]
    selection: Selection
    devices: tuple[str, ...]
    out: Path
    options: RunOptions = RunOptions()
    learning: Learning = Learning()
    tuning: Tuning = CURATED
    resume: bool = False
    argv: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        suite: Names | None,
        *,
        out: File | None = None,
        resume: bool = False,
        argv: Sequence[str] = (),
        planning: bool = False,
        **given: Any,
    ) -> Request:
        """Make a request from the arguments of `ssmperf.run`: options by their names, and axes of a case.

        planning: see `select`.

        Raises:
            UsageError: a name is unknown, a value is illegal, or a file or folder cannot be used.
        """
        options, learning = RunOptions.taken_from(given), Learning.taken_from(given)
        tuning = Tuning.of(Configurations.taken_from(given))
        suites = names(suite) or ()
        suites = tuple(registry.suites()) if suites == (EVERY_SUITE,) else suites
        elsewhere = planning or options.executor == RAY  # no GPU is needed here
        selection, devices = select(planning=elsewhere, **given)
        folder = run_folder(out, suites, resume=resume)
        return cls(suites, selection, devices, folder, options, learning, tuning, resume, tuple(argv))

    @property
    def scale(self) -> Preset:
        """The preset of the selection, with the request's own time, precision, samples and trainings."""
        preset, options = self.selection.scale, self.options
        longest = preset.max_time_s if options.time is None else options.time
        return replace(
            preset,
            min_time_s=min(preset.min_time_s, longest),
            max_time_s=longest,
            relative_width=preset.relative_width if options.precision is None else options.precision,
            min_samples=preset.min_samples if options.samples is None else options.samples,
            training=self.learning.applied(preset.training),
        )

    @property
    def judged_at(self) -> str:
        """At which lengths suites judge that rank nothing: at the T that is named if none gets another."""
        handed = (self.selection.handed_to(registry.suite(name).section) for name in self.suites)
        return NAMED if all(each == (self.selection,) for each in handed) else self.selection.judged_at

    @property
    def words(self) -> tuple[str, ...]:
        """The options that the command which repeats a case of this run must have."""
        preset = Choices(preset=self.selection.preset).words
        return (*preset, *self.options.words, *self.learning.words, *self.tuning.words)


def select(*, planning: bool = False, **given: Any) -> tuple[Selection, tuple[str, ...]]:
    """Make a selection from the arguments of `ssmperf.run`, and list the torch devices to run it on.

    planning: whether a GPU may be named that is not here, since nothing will run on it.
    given: `Choices`, and values by the keyword of an axis of `Case`; names for one that takes many values.

    Raises:
        UsageError: a name is unknown, a value is illegal, or there is no such device.
    """
    chosen = Choices.taken_from(given)
    type_, found = devices_.resolve(chosen.device, chosen.devices, planning=planning)
    fields = {declared.argument: declared for declared in chosen_axes().values()}
    unknown = [keyword for keyword in given if keyword not in fields]
    if unknown:
        raise TypeError(f"unexpected keyword argument {unknown[0]!r} (axes: {', '.join(fields)})")
    if chosen.gates is not None:
        if given.get("regime") is not None:
            raise UsageError("--gates and --regime both choose the log gates: leave out one")
        given["regime"] = [GATES[name] for name in chosen.gates]
    sizes, others = _parted(chosen.axis, fields)
    for keyword, text in others.items():
        if given.get(keyword, fields[keyword].argument_default) != fields[keyword].argument_default:
            raise UsageError(f"{fields[keyword].label} is given by --axis and by {fields[keyword].option}")
        given[keyword] = text
    if "packing" in given:
        given["packing"] = read_lengths_file(given["packing"])
    values = {
        fields[keyword].name: _values(fields[keyword], value) if fields[keyword].many else value
        for keyword, value in given.items()
        if value is not None
    }
    selection = Selection(
        device=devices_.describe(type_, found, planning=planning),
        models=chosen.models,
        backends=chosen.backends,
        preset=chosen.preset,
        sizes=parse_sizes(sizes, chosen.models or ()),
        choices=values,
        peers=chosen.peers,
        judged_at=chosen.judged_at,
    )
    if chosen.workload is not None:
        selection = with_workloads(selection, chosen.workload)
    return selection, tuple(found)


def _parted(texts: Iterable[Any], fields: Collection[str]) -> tuple[list[Any], dict[str, str]]:
    """Part texts such as `T=64` and `packing=1300,547` into sizes, and other axes' values by keyword."""
    others = {}
    sizes = []
    for text in texts:
        name, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
        if equals and name in fields:
            others[name] = value
        else:
            sizes.append(text)
    return sizes, others


def _values(declared: Axis, value: Any) -> tuple[str, ...] | None:
    """Read the values of an axis that takes many: names, or what the axis reads as one, or several of these.

    Raises:
        UsageError: there is no value in it.
    """
    parts = value.split(",") if isinstance(value, str) else value
    parts = list(parts) if isinstance(parts, Iterable) else [parts]
    return names([declared.read(part.strip() if isinstance(part, str) else part) for part in parts])


def parse_pairs(text: str | None) -> tuple[int, int | None]:
    """Read the numbers of pairs of the two stages, such as `5+7`; None means the usual ones.

    Raises:
        UsageError: it is something else.
    """
    if text is None:
        return FIRST_PAIRS, None
    first, plus, fresh = text.partition("+")
    if not (plus and first.strip().isdecimal() and fresh.strip().isdecimal()):
        raise UsageError(f"--pairs must look like 5+7, got {text!r}")
    return int(first), int(fresh)


def run_folder(out: File | None, suites: Sequence[str], *, resume: bool = False) -> Path:
    """Choose the folder of a run: `out`, or a new one under `runs/` named after the time and the suites.

    Raises:
        UsageError: the run to resume is not named.
    """
    if out is not None:
        return Path(out)
    if resume:
        raise UsageError("--resume needs --out, the folder of the run to continue")
    named = re.sub(r"[^\w-]", "_", "-".join(suites))[:LONGEST_NAME]  # some may turn out to be no suites
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{named}"
    candidates = [base, *(base.with_name(f"{base.name}-{number}") for number in range(2, 100))]
    return next(path for path in candidates if not path.exists())
