"""Names of gate regimes, distributions of log gates that models produce: docs/recurrences.md#gate-regimes.

Timing is nearly independent of gate values; validity is not. Every correctness test draws its gates from one
of these, and every benchmark names the one that it used. The distributions: `ssmperf.operands.samplers`.
"""

from __future__ import annotations

REGIMES = (
    "sigmoid", "gla", "hgrn_top", "mamba", "longhorn", "rglru", "s4d", "retnet", "phase", "reset", "ones",
)  # fmt: skip
