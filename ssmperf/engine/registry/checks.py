"""Checks beside the oracle: answers in closed form, identities between models, and claims of papers.

Closed forms and identities are data for the correctness suite, which judges every backend by them. Claims are
what `ssmperf reproduce` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ssmperf.papers.reproduction.agreement import Finding
    from ssmperf.papers.reproduction.setting import ClaimSetting

# operands, output, final state (None if it is not known), all in float64
Answer = tuple[Mapping[str, Any], Any, Any]
# (recurrence, **operands) -> output, final state
Compute = Callable[..., tuple[Any, Any]]
# label, left side, right side
Comparison = tuple[str, Any, Any]


@dataclass(frozen=True, eq=False, slots=True)
class Analytic:
    """Operands of a recurrence whose answer is known in closed form."""

    name: str
    of: str
    function: Callable[[], Answer]
    source: str


@dataclass(frozen=True, eq=False, slots=True)
class Identity:
    """Two computations that must give the same result. subjects: the models that the identity is about."""

    name: str
    of: str
    subjects: tuple[str, ...]
    function: Callable[[Compute], Iterable[Comparison]]
    source: str


class Work(Protocol):
    """How a claim is measured and judged.

    A piece is a part that is measured and kept on its own, such as one seed of one model: a claim goes on
    after an interruption with the first piece that has no result.
    """

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        """Name the pieces, in the order in which they run. Letters, digits, `.`, `_` and `-`."""
        ...

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        """Measure one piece and return its numbers, as JSON."""
        ...

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        """Judge the numbers of the pieces that were measured, by piece. Some pieces may be missing."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Claim:
    """A claim of a paper. The fields are described with the arguments of the decorator `claim`."""

    name: str
    paper: str
    place: str
    statement: str
    printed: str
    runs: str
    scaled: str
    rule: str
    device: str
    budget_s: float
    budget_of: str
    has_smoke: bool
    version: int
    changed: str
    doubts: str
    work: Work

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object of everything but the work."""
        return {
            "id": self.name,
            "paper": self.paper,
            "place": self.place,
            "statement": self.statement,
            "printed": self.printed,
            "runs": self.runs,
            "scaled": self.scaled,
            "rule": self.rule,
            "device": self.device,
            "budget_s": self.budget_s,
            "budget_of": self.budget_of,
            "has_smoke": self.has_smoke,
            "doubts": self.doubts,
        }
