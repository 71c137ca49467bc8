"""Presets: one table with the meaning of `smoke`, `standard` and `long`.

The other sizes stand with each recurrence (`impls/<recurrence>/__init__.py`) or model, and so does a T that
differs from the preset's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ssmperf.cases.shape import Shape
from ssmperf.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Preset:
    """How large the cases of a run are, and how long each is measured.

    lengths: the values of T for shapes that are declared without T.
    min_time_s, max_time_s: least and longest time for sampling a case, in each round.
    relative_width: sampling stops when the interval of the median is within ± this share of it.
    min_samples: least number of fresh samples, even if they take longer than the longest time.
    threads: number of threads of a worker on a CPU; None means torch's default.
    thinned: whether suites that do not ask about growth with T take one shape of several.
    growth: factor between the lengths of a curve of times, at a constant number of tokens; None for no curve.
    train_length: the T at which a network is trained.
    trained_models: number of models to train unless models are named; None means all.
    """

    lengths: tuple[int, ...]
    min_time_s: float
    max_time_s: float
    threads: int | None
    thinned: bool
    train_length: int
    trained_models: int | None
    growth: int | None
    relative_width: float = 0.01
    min_samples: int = 5

    def shapes(self, sizes: Sequence[Mapping[str, int]]) -> tuple[Shape, ...]:
        """Turn sizes into shapes; sizes without a T stand for one shape per length of the preset."""
        return tuple(
            Shape({**each, "T": each.get("T", T)})
            for each in sizes
            for T in (self.lengths if "T" not in each else (0,))
        )


PRESETS = {
    # one thread: these shapes are too small to split, and threads that wait for each other add noise
    "smoke": Preset((64, 128, 256), 0.01, 0.1, 1, thinned=True, train_length=32, trained_models=5, growth=2),
    "standard": Preset(
        (2048,), 0.05, 0.2, threads=None, thinned=False, train_length=256, trained_models=None, growth=4
    ),
    "long": Preset(
        (65536,), 0.05, 1.0, threads=None, thinned=False, train_length=1024, trained_models=None, growth=None
    ),
}
ON_CPU, ON_GPU = "smoke", "standard"  # the default presets


def preset(name: str) -> Preset:
    """Look up a preset. Raises UnknownName."""
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    return PRESETS[name]


def shapes_of(presets: Mapping[str, Sequence[Mapping[str, int]]]) -> dict[str, tuple[Shape, ...]]:
    """Turn the sizes that a recurrence or model declares into shapes, by preset. Raises UnknownName."""
    return {name: preset(name).shapes(sizes) for name, sizes in presets.items()}
