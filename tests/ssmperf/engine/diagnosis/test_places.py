"""Places of errors: a pattern is more than the edge of the tolerance."""

from __future__ import annotations

import torch
from support.results.diagnosed import Setting


def test_the_edge_of_the_tolerance_is_no_pattern() -> None:
    """Every ninth step is above the tolerance, and the others are not far below it."""
    setting = Setting(0, T=100)
    exact = setting.reference.exact.output
    limit = setting.verdict(setting.right()).tolerances["output"] * float(exact.abs().max())
    noise = torch.full_like(exact, 0.9 * limit)
    noise[:, 8::9] = 0.01 * limit
    noise[:, ::9] = 4 * limit
    found = setting.found({**setting.right(), "output": (exact + noise).float()})
    assert found["text"] == "it is wrong at 12 of 100 steps, where the error passes the tolerance"
    assert found["steps"]["period"] is None and found["parts"] == {}
