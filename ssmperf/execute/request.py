"""Request: everything that a user asks of a run. The command line and `ssmperf.run` build the same one."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

from ssmperf import registry
from ssmperf.cases.axis import Axis
from ssmperf.cases.calls.packing import read_lengths_file
from ssmperf.cases.case import chosen_axes
from ssmperf.errors import UsageError
from ssmperf.machine import devices as devices_
from ssmperf.measure.paired import FIRST_PAIRS
from ssmperf.plan.learning import PRESETS_OWN, Learning, Rates, check_count
from ssmperf.plan.selection import NAMED, Selection
from ssmperf.plan.sizes import parse_sizes
from ssmperf.registry.presets import Preset
from ssmperf.trial.nonce import as_text, parse
from ssmperf.tune.files import CURATED, Tuning

Names = str | Sequence[str]
File = str | os.PathLike[str]
DEFAULT_TIMEOUT_S = 180.0
MOST_ROUNDS, MOST_SAMPLES = 1000, 4000
EVERY_SUITE = "all"
LONGEST_NAME = 80  # of the suites in a folder's name


@dataclass(frozen=True, slots=True)
class Request:
    """The cases to measure, the torch devices, the settings, and the folder of the run.

    argv: the command line of the request; empty for a call from Python.
    nonce: the secret on which all values depend; None for that of the run to resume, or a fresh one.
    rounds: how often all cases are measured, each time by fresh processes in another order; None for the
        number of the run to resume, or 1.
    time_s, precision, samples: longest time for sampling a case in a round, the share of the median within
        which its interval must be to stop earlier, and the least number of samples; None means the preset's.
    learning: how networks are trained, where it is not as the preset says.

    Raises:
        UsageError: a number is out of its range.
    """

    suites: tuple[str, ...]
    selection: Selection
    devices: tuple[str, ...]
    out: Path
    timeout_s: float = DEFAULT_TIMEOUT_S
    tag: str | None = None
    resume: bool = False
    argv: tuple[str, ...] = ()
    tuning: Tuning = CURATED
    nonce: int | None = None
    rounds: int | None = None
    time_s: float | None = None
    precision: float | None = None
    samples: int | None = None
    learning: Learning = PRESETS_OWN

    def __post_init__(self) -> None:
        _check_seconds("the timeout", self.timeout_s)
        check_count("--rounds", self.rounds, MOST_ROUNDS)
        if self.time_s is not None:
            _check_seconds("--time", self.time_s)
        check_count("--samples", self.samples, MOST_SAMPLES)
        if not isinstance(self.tag, str | None):
            raise UsageError(f"--tag must be a text, got {self.tag!r}")

    @classmethod
    def of(
        cls,
        suite: Names | None,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        out: File | None = None,
        tag: str | None = None,
        resume: bool = False,
        autotune: bool = False,
        configurations: File | None = None,
        write_configurations: File | None = None,
        nonce: str | None = None,
        rounds: int | None = None,
        time: float | None = None,
        precision: float | str | None = None,
        samples: int | None = None,
        updates: int | None = None,
        seeds: int | None = None,
        rates: Rates | None = None,
        layers: int | None = None,
        corpus: File | None = None,
        test_backend: str | None = None,
        side_by_side: int | None = None,
        argv: Sequence[str] = (),
        **choices: Any,
    ) -> Request:
        """Make a request from the arguments of `ssmperf.run`; `choices` are those of `select`.

        Raises:
            UsageError: a name is unknown, a value is illegal, or a file or folder cannot be used.
        """
        tuning = Tuning.of(autotune, configurations, write_configurations)
        learning = Learning.of(
            updates=updates,
            seeds=seeds,
            rates=rates,
            layers=layers,
            corpus=corpus,
            test_backend=test_backend,
            side_by_side=side_by_side,
        )
        suites = names(suite) or ()
        suites = tuple(registry.suites()) if suites == (EVERY_SUITE,) else suites
        selection, devices = select(**choices)
        folder = run_folder(out, suites, resume=resume)
        secret = None if nonce is None else parse(nonce)
        return cls(
            suites,
            selection,
            devices,
            folder,
            timeout,
            tag,
            resume,
            tuple(argv),
            tuning,
            secret,
            rounds,
            time,
            None if precision is None else parse_share(precision, "--precision"),
            samples,
            learning,
        )

    @property
    def scale(self) -> Preset:
        """The preset of the selection, with the request's own time, precision, samples and trainings."""
        preset = self.selection.scale
        longest = preset.max_time_s if self.time_s is None else self.time_s
        return replace(
            preset,
            min_time_s=min(preset.min_time_s, longest),
            max_time_s=longest,
            relative_width=preset.relative_width if self.precision is None else self.precision,
            min_samples=preset.min_samples if self.samples is None else self.samples,
            training=self.learning.applied(preset.training),
        )

    @property
    def judged_at(self) -> str:
        """At which lengths suites judge that rank nothing: at the T that is named if none gets another."""
        handed = (self.selection.handed_to(registry.suite(name).section) for name in self.suites)
        return NAMED if all(each == (self.selection,) for each in handed) else self.selection.judged_at

    @property
    def options(self) -> tuple[str, ...]:
        """The options of this run that a command must have to repeat one of its cases."""
        words = ["--preset", self.selection.preset] if self.selection.preset else []
        words += ["--timeout", f"{self.timeout_s:g}"] if self.timeout_s != DEFAULT_TIMEOUT_S else []
        words += [] if self.time_s is None else ["--time", f"{self.time_s:g}"]
        words += [] if self.precision is None else ["--precision", f"{self.precision:g}"]
        words += [] if self.samples is None else ["--samples", str(self.samples)]
        words += [] if self.nonce is None else ["--nonce", as_text(self.nonce)]
        return (*words, *self.learning.options, *self.tuning.options)


def select(
    *,
    device: str = "auto",
    devices: Sequence[int] | None = None,
    models: Names | None = None,
    backends: Names | None = None,
    preset: str | None = None,
    axis: Names = (),
    peers: bool = False,
    judged_at: str = NAMED,
    planning: bool = False,
    **choices: Any,
) -> tuple[Selection, tuple[str, ...]]:
    """Make a selection from the arguments of `ssmperf.run`, and list the torch devices to run it on.

    planning: whether a GPU may be named that is not here, since nothing will run on it.
    choices: values by the keyword of an axis of `Case`; names for an axis that takes many values.

    Raises:
        UsageError: a name is unknown, a value is illegal, or there is no such device.
    """
    if devices is not None and not isinstance(devices, Iterable):
        devices = (devices,)
    indices = tuple(devices) if devices is not None else None
    type_, found = devices_.resolve(device, indices, planning=planning)
    fields = {declared.argument: declared for declared in chosen_axes().values()}
    unknown = [keyword for keyword in choices if keyword not in fields]
    if unknown:
        raise TypeError(f"unexpected keyword argument {unknown[0]!r} (axes: {', '.join(fields)})")
    sizes, others = _parted([axis] if isinstance(axis, str) else axis or (), fields)
    for keyword, text in others.items():
        if choices.get(keyword, fields[keyword].argument_default) != fields[keyword].argument_default:
            raise UsageError(f"{fields[keyword].label} is given by --axis and by {fields[keyword].option}")
        choices[keyword] = text
    if "packing" in choices:
        choices["packing"] = read_lengths_file(choices["packing"])
    values = {
        fields[keyword].name: _values(fields[keyword], value) if fields[keyword].many else value
        for keyword, value in choices.items()
        if value is not None
    }
    selection = Selection(
        device=devices_.describe(type_, found, planning=planning),
        models=(chosen := names(models)),
        backends=names(backends),
        preset=preset,
        sizes=parse_sizes(sizes, chosen or ()),
        choices=values,
        peers=peers,
        judged_at=judged_at,
    )
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


def names(value: Names | None) -> tuple[str, ...] | None:
    """Read a name, comma-separated names or a sequence of names as a tuple without repetitions.

    Raises:
        UsageError: there is no name in it.
    """
    if value is None:
        return None
    parts = value.split(",") if isinstance(value, str) else value
    if not (isinstance(parts, Iterable) and all(isinstance(part, str) for part in parts)):
        raise UsageError(f"expected names, got {value!r:.200}")
    found = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not found:
        raise UsageError(f"expected names separated by commas, got {value!r}")
    return found


def _check_seconds(option: str, value: Any) -> None:
    """Raise UsageError for anything but a number of seconds that somebody can wait."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageError(f"{option} must be a number of seconds, got {value!r}")
    if not (math.isfinite(value) and float(value) > 0):
        raise UsageError(f"{option} must be above 0 seconds and finite, got {value}")


def parse_share(value: float | str, option: str) -> float:
    """Read a share such as `1%` or `0.01`.

    Raises:
        UsageError: it is no number or percentage, or not between 0 and 1.
    """
    text = str(value).strip()
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise UsageError(f"{option} must look like 1% or 0.01 and lie between 0 and 1, got {value!r}")
    return share


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
