"""What is measured, and how it ended: cases with their axes, and records."""

from ssmperf.cases.axis import Axis
from ssmperf.cases.case import Case, axes, chosen_axes, split_source
from ssmperf.cases.record import Record, Status
from ssmperf.cases.shape import DIMENSIONS, Shape

__all__ = ["DIMENSIONS", "Axis", "Case", "Record", "Shape", "Status", "axes", "chosen_axes", "split_source"]
