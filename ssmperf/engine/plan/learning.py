"""Options of a run's trainings that override the preset.

Seeds, updates and learning rates are choices of the run, as its sampling time is, and no fields of a case:
one case has all its trainings, so that its record can give intervals and a verdict.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.plan.option import Options, count, option
from ssmperf.engine.registry.presets import Training
from ssmperf.errors import UsageError

META = "learning"  # key in run.json
MOST_UPDATES, MOST_SEEDS, MOST_RATES, MOST_LAYERS, MOST_AT_ONCE = 10**8, 1000, 100, 1000, 64
Rates = str | float | Sequence[float]


def _rates(option: str, rates: Rates) -> tuple[float, ...]:
    """Read learning rates: numbers, or a text of numbers separated by commas, in ascending order."""
    parts: Sequence[Any] = rates.split(",") if isinstance(rates, str) else [rates]
    if isinstance(rates, Sequence) and not isinstance(rates, str):
        parts = rates
    try:
        found = tuple(sorted({float(part) for part in parts}))
    except (TypeError, ValueError):
        raise UsageError(f"{option} takes numbers separated by commas, got {rates!r}") from None
    for rate in found:
        if not (math.isfinite(rate) and rate > 0):
            raise UsageError(f"a learning rate must be above 0 and finite, got {rate:g}")
    if not 1 <= len(found) <= MOST_RATES:
        raise UsageError(f"{option} takes 1 to {MOST_RATES} learning rates, got {len(found)}")
    return found


def _backend(option: str, name: str) -> str:
    registry.check_backend_names((name,))
    return name


@dataclass(frozen=True, slots=True)
class Learning(Options):
    """The user's choices about trainings; None means the preset's.

    side_by_side: nothing depends on it but time and memory. corpus_sha256: the hash of the corpus's contents.

    Raises:
        UsageError: a number is out of its range, or the corpus cannot be read.
        UnknownName: there is no such backend.
    """

    PANEL = "Trainings"

    updates: int | None = option(
        None,
        help="Most updates of a training. Default: the preset's.",
        type=int,
        read=count(MOST_UPDATES),
    )
    seeds: int | None = option(
        None,
        help="Trainings whose results are averaged, each with a seed.",
        type=int,
        read=count(MOST_SEEDS),
    )
    rates: tuple[float, ...] | None = option(
        None,
        help="Learning rates to choose from: 0.001,0.005.",
        type=str,
        metavar="LIST",
        read=_rates,
        write=lambda rates: ",".join(map(repr, rates)),
    )
    layers: int | None = option(
        None, help="Blocks of a trained network. Default: 2.", type=int, read=count(MOST_LAYERS)
    )
    corpus: str | None = option(
        None,
        help="Text to learn, a file or a folder. Default: the standard library's sources.",
        type=Path,
        metavar="FILE",
        read=lambda _, path: str(Path(path).resolve()),
    )
    test_backend: str | None = option(
        None,
        help="Backend that tests trained networks. Default: the one that trained them.",
        type=str,
        read=_backend,
    )
    side_by_side: int | None = option(
        None,
        help="Trainings at the same time on a device. Default: 1 on a CPU, 4 on a GPU.",
        type=int,
        read=count(MOST_AT_ONCE),
        stored=False,
    )
    corpus_sha256: str | None = None

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if self.corpus is not None and self.corpus_sha256 is None:
            object.__setattr__(self, "corpus_sha256", fingerprint(Path(self.corpus)))

    def applied(self, training: Training) -> Training:
        """Return the preset's training with these choices."""
        names = {field.name for field in fields(training)}
        chosen = {name: getattr(self, name) for name in self.declared() if name in names}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        if self.layers is not None:
            chosen["step_layers"] = self.layers
        return replace(training, **chosen)

    def to_json(self) -> dict[str, Any]:
        """Give the facts that a resumed run must share: all choices on which its numbers depend."""
        hashed = {} if self.corpus_sha256 is None else {"corpus_sha256": self.corpus_sha256}
        return {**Options.to_json(self), **hashed}


def fingerprint(corpus: Path) -> str:
    """Hash the contents of a text file, or of all files in a folder with their names.

    Raises:
        UsageError: it cannot be read, or is empty.
    """
    found = hashlib.sha256()
    try:
        files = sorted(path for path in corpus.rglob("*") if path.is_file()) if corpus.is_dir() else [corpus]
        size = 0
        for file in files:
            content = file.read_bytes()
            size += len(content)
            found.update(f"{file.relative_to(corpus)}\0{len(content)}\0".encode(errors="surrogateescape"))
            found.update(content)
    except OSError as error:
        raise UsageError(f"--corpus: cannot read {corpus}: {error.strerror or error}") from error
    if not size:
        raise UsageError(f"--corpus: {corpus} holds no text")
    return found.hexdigest()


def resumed(wanted: Learning, meta: Mapping[str, Any], where: str) -> Learning:
    """Get the choices with which a run goes on: its own.

    Raises:
        UsageError: others are wanted, its own cannot be read, or its corpus has changed.
    """
    if not meta:
        return wanted
    given = meta.get(META) or {}
    try:
        own = Learning(**given)
    except (AttributeError, TypeError, ValueError, UsageError) as error:
        raise UsageError(f"the run in {where} is damaged: its {META} cannot be read") from error
    if wanted.to_json() not in ({}, own.to_json()):
        began = " ".join(own.words) or "no option about trainings"
        raise UsageError(f"the run in {where} was begun with {began}: pass the same, or leave them out")
    if own.corpus is not None and fingerprint(Path(own.corpus)) != own.corpus_sha256:
        raise UsageError(f"{own.corpus} has changed since the run in {where} was begun")
    return replace(own, side_by_side=wanted.side_by_side)
