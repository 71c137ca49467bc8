"""Cases (the points to measure) with their axes, and records (their outcomes)."""

from ssmperf.cases.axis import Axis
from ssmperf.cases.case import Case, axes, chosen_axes, split_source
from ssmperf.cases.record import Record, Status
from ssmperf.cases.shape import DIMENSIONS, Shape

__all__ = ["DIMENSIONS", "Axis", "Case", "Record", "Shape", "Status", "axes", "chosen_axes", "split_source"]
