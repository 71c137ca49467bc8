"""The result of a session: its distinct faults, refusals by reason, and totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssmperf.authors.fuzzing.faults import FuzzFault
from ssmperf.authors.fuzzing.session import Tally

MOST_REASONS = 12  # of refusals, in the text


@dataclass(frozen=True, repr=False)
class FuzzResult:
    """The report of `ssmperf.fuzz`, which is true if no fault was found.

    path: the run's folder; None if the examples were judged in the calling process.
    left_out: why backends that were named were not fuzzed.
    """

    path: Path | None
    seed: int
    faults: Sequence[FuzzFault]
    tally: Tally
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return not self.faults

    def __repr__(self) -> str:
        """Give one line that begins with the first fault, for the message of an assertion."""
        first = f"{self.faults[0]}; {self.faults[0].command}; " if self.faults else ""
        return f"<fuzz: {first}{self.tally}; seed {self.seed}>"

    def __str__(self) -> str:
        lines = [line for fault in self.faults for line in (str(fault), f"    {fault.command}")]
        lines += [f"left out: {name} {problem}" for name, problem in self.left_out.items()]
        refused = self.tally.refused.most_common()
        lines += [f"refused {count:,}: {reason}" for reason, count in refused[:MOST_REASONS]]
        if len(refused) > MOST_REASONS:
            rest = sum(count for _, count in refused[MOST_REASONS:])
            lines.append(f"refused {rest:,}: {len(refused) - MOST_REASONS} other reasons")
        end = f"; {self.path}" if self.path else ""
        return "\n".join([*lines, f"{self.tally}; seed {self.seed}{end}"])

    def to_json(self) -> dict[str, Any]:
        """Give a JSON object."""
        return {
            "run": None if self.path is None else str(self.path),
            "seed": self.seed,
            "examples": self.tally.examples,
            "classes": self.tally.classes,
            "right": self.tally.right,
            "near_tolerance": self.tally.near,
            "out_of_memory": self.tally.out_of_memory,
            "refused": dict(self.tally.refused),
            "left_out": dict(self.left_out),
            "faults": [fault.to_json() for fault in self.faults],
        }
