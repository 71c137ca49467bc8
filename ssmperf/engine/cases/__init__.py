"""Cases (the points to measure) with their axes, and records (their outcomes)."""

from ssmperf.engine.cases.axis import Axis
from ssmperf.engine.cases.case import Case, axes, chosen_axes, split_source
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.cases.shape import DIMENSIONS, Shape

__all__ = ["DIMENSIONS", "Axis", "Case", "Record", "Shape", "Status", "axes", "chosen_axes", "split_source"]
