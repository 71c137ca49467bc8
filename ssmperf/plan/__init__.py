"""The cases of a run: selections, sizes, and the plan with its refusals."""

from ssmperf.plan.axes import parse_axes
from ssmperf.plan.command import repeating
from ssmperf.plan.plan import Plan, Planned, Subject, bare_subjects, make_plan, product, subjects
from ssmperf.plan.refusal import BYTES_PER_SECOND, SECONDS_PER_LAUNCH, refusal
from ssmperf.plan.selection import Device, Selection, is_regime

__all__ = [
    "BYTES_PER_SECOND",
    "SECONDS_PER_LAUNCH",
    "Device",
    "Plan",
    "Planned",
    "Selection",
    "Subject",
    "bare_subjects",
    "is_regime",
    "make_plan",
    "parse_axes",
    "product",
    "refusal",
    "repeating",
    "subjects",
]
