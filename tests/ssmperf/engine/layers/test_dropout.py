"""Dropout that follows from a number, and networks that start as a task says."""

from __future__ import annotations

import pytest
import torch

from ssmperf import Shape
from ssmperf.authoring import Network
from ssmperf.engine.layers.dropout import NumberedDropout, hashed

SIZES = Shape(B=1, T=1, H=2, K=8, V=16)


def test_a_share_of_the_numbers_is_zeroed_and_the_mean_stays() -> None:
    dropout = NumberedDropout(0.1)
    x = torch.ones(64, 64, 64)
    for number in (1, 2, 1000):
        dropout.number.fill_(number)
        y = dropout(x)
        assert float((y == 0).float().mean()) == pytest.approx(0.1, abs=0.003)
        assert float(y.mean()) == pytest.approx(1, abs=0.004) and set(y.unique().tolist()) == {
            0,
            float(y.max()),
        }
        for axis in range(3):  # no row, step or channel is spared
            others = tuple({0, 1, 2} - {axis})
            assert (y == 0).float().mean(others).sub(0.1).abs().max() < 0.03


def test_the_choice_follows_from_the_number_alone() -> None:
    dropout, x = NumberedDropout(0.5), torch.ones(4096)

    def zeros(number: int) -> torch.Tensor:
        dropout.number.fill_(number)
        return dropout(x) == 0

    assert torch.equal(zeros(3), zeros(3))
    for other in (4, 5, 103):
        assert float((zeros(3) == zeros(other)).float().mean()) == pytest.approx(0.5, abs=0.05)


def test_nothing_is_zeroed_outside_of_training() -> None:
    x = torch.ones(8)
    assert NumberedDropout(0.5).eval()(x) is x and NumberedDropout(0.0)(x) is x


def test_the_hash_is_one_to_one() -> None:
    assert len(hashed(torch.arange(1 << 16)).unique()) == 1 << 16


def test_weights_start_with_the_deviation_asked_for_and_biases_as_the_model_says() -> None:
    torch.manual_seed(0)
    network = Network("hgrn2", SIZES, layers=2, vocabulary=300, tied=True, std=0.02)
    own = Network("hgrn2", SIZES, layers=2, vocabulary=300)
    mixer = network.blocks[0].mixer
    assert network.head.weight is network.embedding.weight
    for weight in (network.embedding.weight, mixer.forget.weight, network.blocks[1].channels.up.weight):
        assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert float(network.blocks[0].output.weight.detach().std()) == pytest.approx(0.01, rel=0.1)
    theirs = float(own.blocks[0].mixer.forget.bias.detach().std())
    assert float(mixer.forget.bias.detach().std()) == pytest.approx(theirs, rel=0.5)
