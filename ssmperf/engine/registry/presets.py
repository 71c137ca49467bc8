"""Presets: one table with the meaning of `smoke`, `standard` and `long`.

The other sizes stand with each recurrence (`impls/<recurrence>/__init__.py`) or model, and so does a T that
differs from the preset's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ssmperf.engine.cases.shape import Shape
from ssmperf.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Training:
    """How networks are trained, and how large those are of which single training steps are timed.

    length, batch: T and B of the training. width: of the residual stream, where sizes are not chosen.
    layers: number of blocks. updates: the most updates of a training.
    seeds: number of trainings whose results are averaged.
    rates: learning rates, of which the best is taken.
    models, tasks: how many are trained unless some are named; None means all.
    corpus, test_backend, side_by_side: see `ssmperf.engine.plan.learning.Learning`. None for the last means
        one training at a time on a CPU, and a few on a GPU.
    step_length, step_batch, step_width, step_layers: T, B, width and number of blocks of a timed step.
    """

    length: int
    batch: int
    width: int
    updates: int
    seeds: int
    rates: tuple[float, ...]
    models: int | None
    tasks: int | None
    layers: int = 2
    corpus: str | None = None
    test_backend: str | None = None
    side_by_side: int | None = None
    step_length: int = 128
    step_batch: int = 2
    step_width: int = 32
    step_layers: int = 2

    def to_json(self) -> dict[str, Any]:
        """Give a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Training:
        """Undo `to_json`."""
        return cls(**{**data, "rates": tuple(data["rates"])})


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
    training: how networks are trained.
    """

    lengths: tuple[int, ...]
    min_time_s: float
    max_time_s: float
    threads: int | None
    thinned: bool
    training: Training
    growth: int | None
    relative_width: float = 0.01
    min_samples: int = 5

    def to_json(self) -> dict[str, Any]:
        """Give a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Preset:
        """Undo `to_json`."""
        training = Training.from_json(data["training"])
        return cls(**{**data, "lengths": tuple(data["lengths"]), "training": training})

    def shapes(self, sizes: Sequence[Mapping[str, int]]) -> tuple[Shape, ...]:
        """Turn sizes into shapes; sizes without a T stand for one shape per length of the preset."""
        return tuple(
            Shape({**each, "T": each.get("T", T)})
            for each in sizes
            for T in (self.lengths if "T" not in each else (0,))
        )


PRESETS = {
    # one thread: these shapes are too small to split, and threads that wait for each other add noise
    "smoke": Preset(
        (64, 128, 256),
        0.01,
        0.1,
        1,
        thinned=True,
        training=Training(32, 32, 32, updates=100, seeds=2, rates=(5e-3,), models=5, tasks=2),
        growth=2,
    ),
    "standard": Preset(
        (2048,),
        0.05,
        0.2,
        threads=None,
        thinned=False,
        training=Training(
            64,
            256,
            64,
            updates=1500,
            seeds=3,
            rates=(2e-3, 5e-3),
            models=5,
            tasks=2,
            step_length=2048,
            step_batch=8,
            step_width=768,
            step_layers=12,
        ),
        growth=4,
    ),
    "long": Preset(
        (65536,),
        0.05,
        1.0,
        threads=None,
        thinned=False,
        training=Training(
            256,
            128,
            64,
            updates=8000,
            seeds=3,
            rates=(5e-4, 1e-3, 5e-3, 1e-2),
            models=None,
            tasks=None,
            step_length=16384,
            step_batch=1,
            step_width=768,
            step_layers=12,
        ),
        growth=None,
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
