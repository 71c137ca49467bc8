"""The options of a run, each declared once. Those of trainings stand in `ssmperf.engine.plan.learning`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from ssmperf.engine.cases.case import GATES
from ssmperf.engine.plan import nonce as nonces
from ssmperf.engine.plan.learning import Learning
from ssmperf.engine.plan.option import Options, count, option
from ssmperf.engine.plan.selection import JUDGED_AT, NAMED
from ssmperf.errors import UnknownName, UsageError

Names = str | Sequence[str]
AxisSizes = Names | Mapping[str, Any]  # T=64,256 or {"T": [64, 256]}
DEFAULT_TIMEOUT_S = 180.0
MOST_ROUNDS, MOST_SAMPLES = 1000, 4000
EXECUTORS = LOCAL, RAY = "local", "ray"
SHARD = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})")


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


def _share(option: str, value: float | str) -> float:
    """Read a share between 0 and 1, such as `1%` or `0.01`."""
    text = str(value).strip()
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise UsageError(f"{option} must look like 1% or 0.01 and lie between 0 and 1, got {value!r}")
    return share


def _seconds(option: str, value: Any) -> Any:
    """Check a number of seconds that somebody can wait."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageError(f"{option} must be a number of seconds, got {value!r}")
    if not (math.isfinite(value) and float(value) > 0):
        raise UsageError(f"{option} must be above 0 seconds and finite, got {value}")
    return value


def _text(option: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{option} must be a text, got {value!r}")
    return value


def _shard(option: str, value: Any) -> str:
    """Check a part of a plan, such as 2/4."""
    found = SHARD.fullmatch(_text(option, value).strip())
    if found is None or not int(found[1]) <= int(found[2]):
        raise UsageError(f"{option} takes I/N with 1 ≤ I ≤ N, such as 2/4, got {value!r:.40}")
    return found[0]


def _executor(option: str, value: Any) -> str:
    if value not in EXECUTORS:
        raise UnknownName("executor", value, EXECUTORS)
    return str(value)


def _indices(option: str, value: Any) -> tuple[int, ...]:
    """Read indices of CUDA devices: `0,1`, a number, or several."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
            raise UsageError(f"{option} takes CUDA indices such as 0,1,2, got {value!r}")
        return tuple(dict.fromkeys(map(int, parts)))
    return tuple(value) if isinstance(value, Iterable) else (value,)


def size_texts(option: str, value: Any) -> tuple[Any, ...]:
    """Read sizes of dimensions, such as "T=64,256", several such texts, or {"T": [64, 256]}, as texts."""
    if isinstance(value, Mapping):
        return tuple(f"{name}={_joined(sizes)}" for name, sizes in value.items())
    if not isinstance(value, Iterable):
        raise UsageError(f"{option} takes sizes such as T=64 or T=1024:65536:x2, got {value!r}")
    return (value,) if isinstance(value, str) else tuple(value)


def _joined(sizes: Any) -> str:
    """Write a size, or several, as the command line does."""
    several = isinstance(sizes, Iterable) and not isinstance(sizes, str)
    return ",".join(map(str, sizes)) if several else str(sizes)


def _answer(option: str, value: Any) -> Any:
    if value not in JUDGED_AT:
        raise UnknownName(f"answer to {option}", value, JUDGED_AT)
    return value


def _names(option: str, value: Any) -> Any:
    return names(value)


def _gates(option: str, value: Any) -> Any:
    found = names(value)
    for name in found or ():
        if name not in GATES:
            raise UnknownName("kind of gates", name, GATES)
    return found


def _path(option: str, value: Any) -> Path:
    return Path(value)


@dataclass(frozen=True, slots=True)
class Choices(Options):
    """Choices that decide which cases a run has. `run.json` has them as `selection`."""

    models: tuple[str, ...] | None = option(
        None,
        help="Models, separated by commas, with options as pese_lr:n=8. Default: all.",
        type=str,
        read=_names,
        write=",".join,
        compared=True,
    )
    workload: tuple[str, ...] | None = option(
        None,
        help="Layers in use, or a model's config.json: NAME[:train|prefill|decode][@tp8], or all.",
        type=str,
        metavar="NAME",
        read=_names,
        write=",".join,
        compared=True,
    )
    gates: tuple[str, ...] | None = option(
        None,
        help="Log gates: start (the model's own), steep, slow, none or reset.",
        type=str,
        read=_gates,
        write=",".join,
        compared=True,
    )
    backends: tuple[str, ...] | None = option(
        None,
        help="Backends, separated by commas. Default: all.",
        type=str,
        read=_names,
        write=",".join,
        compared=True,
    )
    preset: str | None = option(
        None,
        help="smoke, standard or long. Default: smoke on the CPU, standard on a GPU.",
        type=str,
        compared=True,
    )
    axis: tuple[Any, ...] = option(
        (),
        help="A dimension's sizes: T=1024:65536:x2, B=1,2,4. May be repeated.",
        type=list,
        read=size_texts,
        compared=True,
    )
    device: str = option("auto", help="auto, cpu, cuda or cuda:N.", type=str, compared=True)
    devices: tuple[int, ...] | None = option(
        None, help="CUDA indices, one worker per device: 0,1,2,3.", type=str, read=_indices
    )
    peers: bool = option(
        False, help="Measure other people's kernels, too. Naming one does as well.", type=bool
    )
    judged_at: str = option(
        NAMED,
        help="Where --axis names T, suites that rank nothing judge at the T that is named, at their own, or "
        "at both: named, own, both.",
        type=str,
        metavar="ANSWER",
        read=_answer,
    )


@dataclass(frozen=True, slots=True)
class RunOptions(Options):
    """How the cases of a run are measured. None means the preset's.

    timeout, time: seconds. precision: a share of the median.
    nonce: the secret on which all values depend; None for that of the run to resume, or a fresh one.
    rounds: None for the number of the run to resume, or 1.
    """

    timeout: float = option(
        DEFAULT_TIMEOUT_S,
        help="Longest time that one case may take, in seconds.",
        type=float,
        read=_seconds,
        write="{:g}".format,
        compared=True,
    )
    rounds: int | None = option(
        None,
        help="Measure all cases so often, each time in fresh processes and another order. Default: 1.",
        type=int,
        read=count(MOST_ROUNDS),
        repeated=False,
        stored=False,
    )
    time: float | None = option(
        None,
        help="Longest time for sampling a case in a round, in seconds. Default: the preset's.",
        type=float,
        read=_seconds,
        write="{:g}".format,
        compared=True,
    )
    precision: float | None = option(
        None,
        help="Stop sampling when the median's interval is within ± this share. Default: 1%.",
        type=str,
        read=_share,
        write="{:g}".format,
        compared=True,
    )
    samples: int | None = option(
        None,
        help="Take at least so many samples of a case in a round.",
        type=int,
        read=count(MOST_SAMPLES),
        compared=True,
    )
    tag: str | None = option(
        None,
        help="A name for the run, shown in reports.",
        type=str,
        read=_text,
        repeated=False,
        stored=False,
    )
    shard: str | None = option(
        None,
        help="Run part i of n of the plan, such as 2/4; the parts are disjoint and take about equally long.",
        type=str,
        metavar="I/N",
        read=_shard,
        repeated=False,
        stored=False,
    )
    executor: str = option(
        LOCAL,
        help="local, or ray: on the devices of a running Ray cluster.",
        type=str,
        read=_executor,
        repeated=False,
        stored=False,
    )
    address: str | None = option(
        None,
        help="With --executor ray: the cluster's address, as Ray's. Default: the one that Ray finds.",
        type=str,
        read=_text,
        repeated=False,
        stored=False,
    )
    mixed_devices: bool = option(
        False,
        help="With --executor ray: use devices of several types in one run.",
        type=bool,
        read=lambda _, x: bool(x),
        repeated=False,
        stored=False,
    )
    nonce: int | None = option(
        None,
        help="Secret on which all values depend, to repeat a run's case.",
        type=str,
        metavar="HEX",
        read=lambda option, value: value if isinstance(value, int) else nonces.parse(value),
        write=nonces.as_text,
        stored=False,
    )


@dataclass(frozen=True, slots=True)
class Configurations(Options):
    """Where the configurations of kernels come from. `run.json` has them as `tuning`."""

    PANEL = "Configurations of kernels"

    autotune: bool = option(
        False,
        help="Search for kernels' configurations before timing a case.",
        type=bool,
        read=lambda _, x: bool(x),
    )
    configurations: Path | None = option(
        None,
        help="Kernels' configurations to use.",
        type=Path,
        metavar="FILE",
        read=lambda _, value: Path(value).resolve(),
    )
    write_configurations: Path | None = option(
        None,
        help="File for the configurations that --autotune finds.",
        type=Path,
        metavar="FILE",
        read=_path,
        repeated=False,
    )


GROUPS: tuple[type[Options], ...] = (Choices, RunOptions, Learning, Configurations)
