"""Parameter counts of networks, as numbers of a piece and as findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssmperf import Shape
from ssmperf.suitekit import Agreement, Estimate, Finding, agree_on_number, count_parameters

COUNTS = "counts"  # the only piece
NOT_STATED = "the paper does not state the sizes of this layer, and no choice tried here gives its count"


def count(model: str, sizes: Mapping[str, int], **network: Any) -> int:
    """Count the parameters of a network around a model of the given sizes; `network` as for `Network`."""
    return count_parameters(model, Shape(B=1, T=1, **sizes), **network)


def of_count(
    what: str, printed: str, counted: Any, *, stated: bool = True, decides: bool = True, note: str = ""
) -> Finding:
    """Compare a count with a number printed in millions.

    counted: the count; anything but a number means that it is missing.
    stated: whether the paper states all sizes. Where it does not, another count decides nothing.
    """
    known = isinstance(counted, (int, float)) and not isinstance(counted, bool)
    ours = Estimate.exact(counted / 1e6, "M") if known else None
    judged = agree_on_number(printed, ours)
    if judged[0] is Agreement.DISAGREES and not stated:
        judged = Agreement.CANNOT_TELL, NOT_STATED
    return Finding(what, f"{printed} M", {"parameters": ours}, judged, decides, note)
