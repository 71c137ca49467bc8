"""Names of gate regimes, distributions of log gates that models produce: docs/recurrences.md#gate-regimes.

Timing hardly depends on gate values, but validity does. Every correctness test draws its gates from one of
these regimes, and every benchmark names the one that it used. The distributions themselves are in
`ssmperf.engine.operands.samplers`.
"""

from __future__ import annotations

REGIMES = (
    "sigmoid", "gla", "hgrn_top", "mamba", "longhorn", "rglru", "s4d", "retnet", "phase", "reset", "small",
    "ones",
)  # fmt: skip
