"""Parameter counts of networks, as numbers of a piece and as findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssmperf import Shape
from ssmperf.suitekit import Estimate, Finding, agree_on_number, count_parameters

COUNTS = "counts"  # the only piece


def count(model: str, sizes: Mapping[str, int], **network: Any) -> int:
    """Count the parameters of a network around a model of the given sizes; `network` as for `Network`."""
    return count_parameters(model, Shape(B=1, T=1, **sizes), **network)


def of_count(what: str, printed: str, counted: Any, *, decides: bool = True, note: str = "") -> Finding:
    """Compare a count with a number printed in millions.

    counted: the count; anything but a number means that it is missing.
    """
    known = isinstance(counted, (int, float)) and not isinstance(counted, bool)
    ours = Estimate.exact(counted / 1e6, "M") if known else None
    return Finding(what, f"{printed} M", {"parameters": ours}, agree_on_number(printed, ours), decides, note)
