"""No cheat ends with a time that its honest twin does not reach, and none changes its neighbour."""

from __future__ import annotations

import pytest
import torch

from cheats import TABLE
from cheats.run import Outcome, run_cheats


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """Run the cheats of a CPU, several in each run."""
    cheats = [cheat for cheat in TABLE if cheat.device == "cpu"]
    return {outcome.cheat.name: outcome for outcome in run_cheats(cheats)}


@pytest.fixture(scope="module")
def outcomes_on_a_gpu() -> dict[str, Outcome]:
    cheats = [cheat for cheat in TABLE if cheat.device == "cuda"]
    return {outcome.cheat.name: outcome for outcome in run_cheats(cheats, timeout=120)}


@pytest.mark.slow
@pytest.mark.parametrize("name", [cheat.name for cheat in TABLE if cheat.device == "cpu"])
def test_a_cheat_gains_nothing(name: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[name].problems() == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", [cheat.name for cheat in TABLE if cheat.device == "cuda"])
def test_a_cheat_on_a_gpu_gains_nothing(name: str, outcomes_on_a_gpu: dict[str, Outcome]) -> None:
    assert outcomes_on_a_gpu[name].problems() == []


def test_every_cheat_is_in_the_table_once() -> None:
    names = [cheat.name for cheat in TABLE]
    assert len(set(names)) == len(names)
