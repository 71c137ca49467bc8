"""Options of a run's trainings that override the preset."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from ssmperf import registry
from ssmperf.errors import UsageError
from ssmperf.registry.presets import Training

META = "learning"  # key in run.json
MOST_UPDATES, MOST_SEEDS, MOST_RATES, MOST_LAYERS, MOST_AT_ONCE = 10**8, 1000, 100, 1000, 64
Rates = str | float | Sequence[float]


def check_count(option: str, value: Any, most: int) -> None:
    """Raise UsageError for a value that is neither None nor a whole number from 1 to `most`."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UsageError(f"{option} must be a whole number, got {value!r}")
    if not 1 <= int(value) <= most:
        raise UsageError(f"{option} must lie between 1 and {most}, got {value}")


@dataclass(frozen=True, slots=True)
class Learning:
    """The user's choices about trainings; None means the preset's.

    updates: the most updates of a training. seeds: number of trainings whose results are averaged.
    rates: learning rates to choose from. layers: number of blocks.
    corpus: text file, or folder of text files, for tasks on text. corpus_sha256: the hash of its contents.
    test_backend: computes the trained networks when they are tested; None means the one that trained them.
    side_by_side: number of trainings at the same time on a device. Nothing depends on it but time and memory.

    Raises:
        UsageError: a number is out of its range.
        UnknownName: there is no such backend.
    """

    updates: int | None = None
    seeds: int | None = None
    rates: tuple[float, ...] | None = None
    layers: int | None = None
    corpus: str | None = None
    corpus_sha256: str | None = None
    test_backend: str | None = None
    side_by_side: int | None = None

    def __post_init__(self) -> None:
        for option, value, most in (
            ("--updates", self.updates, MOST_UPDATES),
            ("--seeds", self.seeds, MOST_SEEDS),
            ("--layers", self.layers, MOST_LAYERS),
            ("--side-by-side", self.side_by_side, MOST_AT_ONCE),
        ):
            check_count(option, value, most)
        for rate in self.rates or ():
            if not (math.isfinite(rate) and rate > 0):
                raise UsageError(f"a learning rate must be above 0 and finite, got {rate:g}")
        if self.rates is not None and not 1 <= len(self.rates) <= MOST_RATES:
            raise UsageError(f"--rates takes 1 to {MOST_RATES} learning rates, got {len(self.rates)}")

    @classmethod
    def of(
        cls,
        *,
        updates: int | None = None,
        seeds: int | None = None,
        rates: Rates | None = None,
        layers: int | None = None,
        corpus: str | os.PathLike[str] | None = None,
        test_backend: str | None = None,
        side_by_side: int | None = None,
    ) -> Learning:
        """Read the options.

        Raises:
            UsageError: a number is illegal, or the corpus cannot be read.
            UnknownName: there is no such backend.
        """
        if test_backend is not None:
            registry.check_backend_names((test_backend,))
        path = None if corpus is None else Path(corpus).resolve()
        return cls(
            updates,
            seeds,
            None if rates is None else parse_rates(rates),
            layers,
            None if path is None else str(path),
            None if path is None else fingerprint(path),
            test_backend,
            side_by_side,
        )

    def applied(self, training: Training) -> Training:
        """Return the preset's training with these choices."""
        names = {field.name for field in fields(training)}
        chosen = {name: value for name, value in self._given().items() if name in names}
        if self.layers is not None:
            chosen["step_layers"] = self.layers
        return replace(training, **chosen)

    def to_json(self) -> dict[str, Any]:
        """Give the facts that a resumed run must share: all choices on which its numbers depend."""
        return {name: value for name, value in self._given().items() if name != "side_by_side"}

    @property
    def options(self) -> tuple[str, ...]:
        """The options for a command that repeats a case."""
        words: list[str] = []
        words += [] if self.updates is None else ["--updates", str(self.updates)]
        words += [] if self.seeds is None else ["--seeds", str(self.seeds)]
        words += [] if self.rates is None else ["--rates", ",".join(map(repr, self.rates))]
        words += [] if self.layers is None else ["--layers", str(self.layers)]
        words += [] if self.corpus is None else ["--corpus", self.corpus]
        words += [] if self.test_backend is None else ["--test-backend", self.test_backend]
        words += [] if self.side_by_side is None else ["--side-by-side", str(self.side_by_side)]
        return tuple(words)

    def _given(self) -> dict[str, Any]:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in given.items() if value is not None}


PRESETS_OWN = Learning()


def parse_rates(rates: Rates) -> tuple[float, ...]:
    """Read learning rates: numbers, or a text of numbers separated by commas, in ascending order.

    Raises:
        UsageError: one is no number.
    """
    parts: Sequence[Any] = rates.split(",") if isinstance(rates, str) else [rates]
    if isinstance(rates, Sequence) and not isinstance(rates, str):
        parts = rates
    try:
        return tuple(sorted({float(part) for part in parts}))
    except (TypeError, ValueError):
        raise UsageError(f"--rates takes numbers separated by commas, got {rates!r}") from None


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
        rates = given.get("rates")
        own = Learning(**{**given, "rates": None if rates is None else tuple(map(float, rates))})
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"the run in {where} is damaged: its {META} cannot be read") from error
    if wanted.to_json() not in ({}, own.to_json()):
        began = " ".join(own.options) or "no option about trainings"
        raise UsageError(f"the run in {where} was begun with {began}: pass the same, or leave them out")
    if own.corpus is not None and fingerprint(Path(own.corpus)) != own.corpus_sha256:
        raise UsageError(f"{own.corpus} has changed since the run in {where} was begun")
    return replace(own, side_by_side=wanted.side_by_side)
