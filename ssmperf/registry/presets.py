"""Presets: what `smoke`, `standard` and `long` mean, in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ssmperf.cases.shape import Shape
from ssmperf.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Preset:
    """How large the cases of a run are, and how long each is measured.

    lengths: the T of each shape of a recurrence or model that gives none of its own for this preset.
    min_time_s, max_time_s: least and longest time that a case is sampled.
    threads: of a worker on a CPU, None for torch's default.
    thinned: whether suites that ask another question than growth with T take one shape of several.
    train_length: T that a network is trained at.
    trained_models: how many models are trained unless they are named, None for all.
    """

    lengths: tuple[int, ...]
    min_time_s: float
    max_time_s: float
    threads: int | None
    thinned: bool
    train_length: int
    trained_models: int | None

    def shapes(self, sizes: Sequence[Mapping[str, int]]) -> tuple[Shape, ...]:
        """Turn sizes into shapes; sizes without a T stand for one shape per length of the preset."""
        return tuple(
            Shape({**each, "T": each.get("T", T)})
            for each in sizes
            for T in (self.lengths if "T" not in each else (0,))
        )


PRESETS = {
    # CPU threads that wait for each other show any neighbour, and these shapes are too small to share
    "smoke": Preset((64, 128, 256), 0.01, 0.1, 1, thinned=True, train_length=32, trained_models=4),
    "standard": Preset(
        (2048,), 0.05, 0.2, threads=None, thinned=False, train_length=256, trained_models=None
    ),
    "long": Preset((65536,), 0.05, 1.0, threads=None, thinned=False, train_length=1024, trained_models=None),
}
ON_CPU, ON_GPU = "smoke", "standard"  # the default of each


def preset(name: str) -> Preset:
    """Look up a preset. Raises UnknownName."""
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    return PRESETS[name]


def shapes_of(presets: Mapping[str, Sequence[Mapping[str, int]]]) -> dict[str, tuple[Shape, ...]]:
    """The shapes by preset that a recurrence or model declares as sizes. Raises UnknownName."""
    return {name: preset(name).shapes(sizes) for name, sizes in presets.items()}
