"""A part of each recurrence's space, for one of its torch backends: no fault, and no false alarm."""

from __future__ import annotations

import random

import pytest

import ssmperf
from ssmperf.suitekit import registry

TORCH = {
    "blelloch",
    "chunkwise",
    "hillis_steele",
    "overlap_add",
    "sequential",
    "torch_rnn",
    "torch_scan",
    "torch_sdpa",
}
EXAMPLES = 100


@pytest.mark.parametrize("recurrence", registry.recurrences())
def test_a_backend_is_right_at_random_configurations(recurrence: str, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    seed = random.Random(recurrence).randrange(1 << 32)  # ci/proofs alarms draws another each time
    name = random.Random(seed).choice(sorted(TORCH & set(registry.backend_names(recurrence))))
    function = registry.backend(recurrence, name).function
    found = ssmperf.fuzz(recurrence, function, examples=EXAMPLES, seed=seed, device="cpu")
    assert found, f"{recurrence}/{name}: {found}"
    assert sum(found.tally.refused.values()) <= EXAMPLES // 20
