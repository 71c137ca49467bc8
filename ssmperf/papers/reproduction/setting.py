"""The setting of a claim's piece: where to run, how large, with how many seeds, and its folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ssmperf.errors import UnknownName, UsageError

PRESETS = (
    "smoke",
    "standard",
)  # of claims; the paper's size, or the largest that the budget allows, is standard
MOST_SEEDS = 100
UNFINISHED = "unfinished"


def _silent(text: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class ClaimSetting:
    """Where and how the pieces of a claim run.

    device: a torch device, such as "cpu" or "cuda:0".
    preset: "standard", or "smoke" for tiny sizes that only try the code.
    seeds: number of seeds of the trainings; None means the claim's own.
    corpus: a text file, or a folder of them, for trainings on text; None means the standard library.
    folder: of the piece, for runs that it keeps. It may hold those of an interrupted one.
    budget_s: how long the piece should take: the claim's budget where each piece has it, or else all of it.
    on_progress: takes a line about how far the piece is.

    Raises:
        UsageError: an unknown preset, or a number of seeds out of its range.
    """

    device: str = "cpu"
    preset: str = "standard"
    seeds: int | None = None
    corpus: str | None = None
    folder: Path = Path()
    budget_s: float = float("inf")
    on_progress: Callable[[str], None] = field(default=_silent)

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise UnknownName("preset of claims", self.preset, PRESETS)
        if self.seeds is not None and not 1 <= self.seeds <= MOST_SEEDS:
            raise UsageError(f"the number of seeds must lie between 1 and {MOST_SEEDS}, got {self.seeds}")

    @property
    def smoke(self) -> bool:
        """Whether sizes are tiny."""
        return self.preset == "smoke"

    @property
    def unfinished(self) -> Path:
        """The folder for checkpoints, which goes once the piece's numbers are kept."""
        return self.folder / UNFINISHED

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")
