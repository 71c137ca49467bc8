"""Questions to the judge: those that a worker asks, and what the driver lets it ask about a case."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ssmperf.engine.cases.case import Case
from ssmperf.engine.operands import variation
from ssmperf.engine.operands.variation import CallSecret


class ForeignQuestion(Exception):
    """A worker has asked about another case than the driver has handed to it."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the answer of a case's backend to a draw of its values, or to a variation of two.

    number: of the draw; of the second one of a variation, whose first is `number` - 1.
    bound: the error bound that the backend declares for these values.
    equivalent: whether the backend computes the recurrence, and not a function of its own definition.
    drawn: the variation; None for the draw itself.
    ends: ends of the pieces of the sequence for which to measure the error, if any.
    distance: whether to measure how far the output is from the recurrence's, for another function.
    counts: whether the verdict decides about the case. Only that on a candidate of a search may not.
    """

    case: Case
    number: int
    with_state: bool = False
    gradients: bool = False
    bound: float | None = None
    equivalent: bool = True
    drawn: CallSecret | None = None
    ends: tuple[int, ...] = ()
    distance: bool = False
    counts: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        drawn = None if self.drawn is None else variation.as_json(self.drawn)
        return {**fields, "case": self.case.to_json(), "drawn": drawn, "ends": list(self.ends)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Question:
        """Read the result of `to_json`."""
        drawn = None if data["drawn"] is None else variation.from_json(data["drawn"])
        case = Case.from_json(data["case"])
        return cls(**{**data, "case": case, "drawn": drawn, "ends": tuple(data["ends"])})


@dataclass(frozen=True, slots=True)
class CaseFacts:
    """The case that a worker runs, as the driver knows it. A worker's own words about it do not count.

    equivalent: whether the backend computes the recurrence. bounded: whether it declares an error bound.
    searches: whether configurations are searched; only then may a verdict not count.
    sizes: the sizes that the suite varies, at which a worker may ask too.
    """

    case: Case
    equivalent: bool = True
    bounded: bool = False
    searches: bool = False
    sizes: tuple[str, ...] = ()

    def checked(self, question: Question) -> Question:
        """Put the driver's facts into a question.

        Raises:
            ForeignQuestion: it is about another case.
        """
        varied = {name: question.case.shape[name] for name in self.sizes if name in self.case.shape}
        case = dataclasses.replace(self.case, shape=self.case.shape.with_(**varied))
        if question.case != case:
            raise ForeignQuestion("its worker asked the judge about another case")
        return dataclasses.replace(
            question,
            equivalent=self.equivalent,
            bound=question.bound if self.bounded else None,
            counts=question.counts or not self.searches,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {**fields, "case": self.case.to_json(), "sizes": list(self.sizes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseFacts:
        """Read the result of `to_json`."""
        return cls(**{**data, "case": Case.from_json(data["case"]), "sizes": tuple(data["sizes"])})
