"""What the tests of suites share: a quicker start of trainings that run side by side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.quick_processes import forked_by


@pytest.fixture(scope="session", autouse=True)
def forked_trainings() -> Iterator[None]:
    """Fork the process of a training instead of letting it import torch."""
    with forked_by("ssmperf.learn.trials"):
        yield
