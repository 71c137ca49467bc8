"""The cases of a run: selections, sizes, and the plan with its refusals."""

from ssmperf.engine.plan.command import command_that_repeats
from ssmperf.engine.plan.plan import (
    Plan,
    Planned,
    PlannedSubject,
    bare_subjects,
    check_sizes,
    make_plan,
    product,
    subjects,
)
from ssmperf.engine.plan.refusal import BYTES_PER_SECOND, SECONDS_PER_LAUNCH, predicted_call_s, refusal
from ssmperf.engine.plan.selection import Device, Selection, is_regime
from ssmperf.engine.plan.sizes import parse_sizes

__all__ = [
    "BYTES_PER_SECOND",
    "SECONDS_PER_LAUNCH",
    "Device",
    "Plan",
    "Planned",
    "PlannedSubject",
    "Selection",
    "bare_subjects",
    "check_sizes",
    "command_that_repeats",
    "is_regime",
    "make_plan",
    "parse_sizes",
    "predicted_call_s",
    "product",
    "refusal",
    "subjects",
]
