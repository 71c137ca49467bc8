"""Log gates that a layer has in use: steep, slow, none and reset, where its formula can give them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ssmperf import Case, Shape, Unsupported
from ssmperf.engine.operands.build import build_operands
from ssmperf.suitekit import registry

BOUNDED = "kda:lower_bound=-5.0"
HEADS = Shape(B=1, T=64, H=8, K=16, V=16)


def gates(model: str, source: str, **changes: int | str) -> Tensor:
    sizes = {letter: size for letter, size in changes.items() if isinstance(size, int)}
    others = {name: value for name, value in changes.items() if isinstance(value, str)}
    entry = registry.model(model)
    case = Case("throughput", entry.recurrence, "chunkwise", HEADS.with_(**sizes), entry.name,
                operand_source=source, **others)  # fmt: skip
    found = build_operands(case)["log_a"]
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("model", ["gated_deltanet", "kda", BOUNDED, "mamba2"])
def test_steep_gates_have_their_mean_at_4096_steps_in_each_head(model: str) -> None:
    found = gates(model, "decay/steep", T=4096)
    over = [axis for axis in range(found.dim()) if axis != 2]
    torch.testing.assert_close(found.mean(over), torch.full((8,), -2.5), rtol=1e-4, atol=1e-4)
    assert (found <= 0).all() and (model != BOUNDED or found.min() == -5.0)


def test_steep_gates_of_a_step_do_not_depend_on_length_or_batch() -> None:
    long, short = gates("gated_deltanet", "decay/steep", T=100), gates("gated_deltanet", "decay/steep", T=50)
    torch.testing.assert_close(long[:, :50], short)
    half = gates("gated_deltanet", "decay/steep", T=50, dtype="bfloat16")
    torch.testing.assert_close(half, short)


@pytest.mark.parametrize("model", ["gated_deltanet", "kda"])
def test_slow_gates_are_those_of_the_first_of_four(model: str) -> None:
    start, slow = gates(model, "model"), gates(model, "decay/slow")
    first = torch.arange(start.shape[-1]) % 4 == 0
    assert (slow[..., first] == torch.tensor(-0.001)).all()
    assert torch.equal(slow[..., ~first], start[..., ~first])


def test_none_and_reset() -> None:
    assert not gates("kda", "decay/0").any()
    found = gates("kda", "decay/reset", T=512)
    resets = (found == -math.inf).flatten(2).all(-1)
    assert resets.any() and not resets.all()


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (BOUNDED, "0"),
        (BOUNDED, "reset"),
        ("rwkv7", "0"),
        ("rwkv7", "reset"),
        ("rwkv7", "steep"),
        ("tnl", "steep"),
        ("linear_transformer", "slow"),
    ],
)
def test_what_a_formula_cannot_give_is_unsupported(model: str, change: str) -> None:
    with pytest.raises(Unsupported):
        gates(model, f"decay/{change}")


def test_a_suite_that_asks_about_decay_may_leave_a_formula_s_range() -> None:
    for model in ("rwkv7", "tnl"):
        case = Case("stability", registry.recurrence_of(model), "chunkwise", HEADS, model,
                    operand_source="decay/0")  # fmt: skip
        assert not build_operands(case)["log_a"].any()
