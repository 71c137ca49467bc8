"""Names of gate regimes, distributions of log gates that models produce: docs/recurrences.md#gate-regimes.

Timing hardly depends on gate values, but validity does. Every correctness test draws its gates from one of
these regimes, and every benchmark names the one that it used. The distributions themselves are in
`ssmperf.operands.samplers`.
"""

from __future__ import annotations

REGIMES = (
    "sigmoid", "gla", "hgrn_top", "mamba", "longhorn", "rglru", "s4d", "retnet", "phase", "reset", "small",
    "ones",
)  # fmt: skip

MODEL = "model"  # the source of a model's own operands
# begins the source of a model's own operands with another decay: decay/0, decay/10, decay/reset
DECAY = "decay"
RESET = "reset"


def decay_of(source: str) -> str | None:
    """Name the change of a source DECAY/CHANGE, such as `0.1` or `reset`; None for any other source."""
    kind, _, change = source.partition("/")
    return change if kind == DECAY and change else None
