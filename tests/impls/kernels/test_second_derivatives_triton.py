"""Fused kernels refuse second derivatives by name, on every path that leads to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernels.second_derivatives import (
    Loss,
    Operands,
    drawn,
    leaves_of,
    linear,
    quadratic,
    second,
    tensors,
)
from torch import Tensor

from ssmperf import Unsupported
from ssmperf.suitekit import registry

NAMES = ("scan", "selective_scan", "ratio_scan", "linear_attention")
ENTRIES = {name: registry.backend(name, "triton") for name in NAMES}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if reason := ENTRIES["scan"].missing(DEVICE):
    pytest.skip(reason, allow_module_level=True)

KINDS = [
    (name, kind) for name in NAMES for kind in ENTRIES[name].gates or registry.recurrence(name).gate_kinds
]
RICH = [
    ("scan", "data_complex"),
    ("selective_scan", "implicit"),
    ("ratio_scan", "const"),
    ("linear_attention", "key"),
    ("linear_attention", "both_complex"),
]
T = 3
by_loss = pytest.mark.parametrize("loss", [linear, quadratic])


def narrowed(operands: Operands) -> Operands:
    """The operands in float32, on the device of the test."""
    dtypes = {torch.float64: torch.float32, torch.complex128: torch.complex64}
    return {
        key: value.to(DEVICE, dtypes[value.dtype]) if isinstance(value, Tensor) else value
        for key, value in operands.items()
    }


def strided(x: Tensor) -> Tensor:
    """The same numbers, but not next to one another: kernels may read a copy."""
    return torch.stack([x, x], -1)[..., 0]


def refused(name: str, operands: Operands, loss: Loss, names: list[str], change: Any = None) -> None:
    """Second derivatives are refused where the definition's are not 0. change: made of what has gradients."""
    expected = second(registry.recurrence(name).definition, operands, loss, names)

    def function(**given: Any) -> Any:
        changed = {key: change(value) for key, value in given.items() if key in names and change is not None}
        return ENTRIES[name].function(**{**given, **changed})

    try:
        found = second(function, narrowed(operands), loss, names)
    except Unsupported as refusal:
        assert str(refusal).startswith(f"{name}/triton: ") and "sequential" in str(refusal)
        return
    assert not any(bool(each.any()) for each in (*expected, *found)), names


@pytest.mark.slow(
    but=(
        "scan-data-linear",
        "scan-const-*",
        "scan-data_complex-linear",
        "linear_attention-key-quadratic",
        "linear_attention-none-*",
        "linear_attention-scalar-*",
        "linear_attention-both-*",
        "ratio_scan-const-linear",
    )
)
@by_loss
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_of_all_operands(name: str, kind: str, loss: Loss) -> None:
    operands = drawn(name, kind, T, reset=False, state=True)
    refused(name, operands, loss, tensors(operands))


@pytest.mark.slow(but=("linear_attention-key-quadratic-None",))
@pytest.mark.parametrize(("loss", "change"), [(linear, strided), (quadratic, None)])
@pytest.mark.parametrize(("name", "kind"), RICH)
def test_of_one_operand(name: str, kind: str, loss: Loss, change: Any) -> None:
    operands = drawn(name, kind, T, reset=False, state=True)
    for each in tensors(operands):
        refused(name, operands, loss, [each], change)


@pytest.mark.slow(but=("value-*",))
@by_loss
@pytest.mark.parametrize("kind", ["key", "value", "scalar_complex"])
def test_of_a_read_before_the_write(kind: str, loss: Loss) -> None:
    operands = {**drawn("linear_attention", kind, T, reset=False, state=True), "read": "pre"}
    refused("linear_attention", operands, loss, tensors(operands))
    operands["bonus"] = torch.rand(2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for names in (tensors(operands), ["q"], ["k"], ["bonus"]):
        refused("linear_attention", operands, loss, names)


@pytest.mark.slow(but=("skip-linear",))
@by_loss
@pytest.mark.parametrize("option", ["skip", "output_gate", "delta_bias"])
def test_of_an_option_of_selective_scan(option: str, loss: Loss) -> None:
    operands = drawn("selective_scan", "exp", T, reset=False, state=True)
    size = operands["x"].shape if option == "output_gate" else operands["x"].shape[2:]
    operands[option] = torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    refused("selective_scan", operands, loss, [option])


@pytest.mark.slow(but=("linear_attention", "scan"))
@pytest.mark.parametrize("name", NAMES)
def test_first_derivatives_with_a_graph_have_the_same_bits(name: str) -> None:
    kind = (ENTRIES[name].gates or registry.recurrence(name).gate_kinds)[0]
    operands = narrowed(drawn(name, kind, T, reset=False, state=True))
    found = []
    for create_graph in (False, True):
        leaves = leaves_of(operands, tensors(operands))
        value = quadratic(*ENTRIES[name].function(**{**operands, **leaves}))
        found.append(torch.autograd.grad(value, list(leaves.values()), create_graph=create_graph))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert all(each.requires_grad for each in found[1])


# numpy warns about lanes that are masked off, as in test_scan_time_last_triton.py
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value encountered in reduce:RuntimeWarning")
def test_of_a_scan_with_time_innermost() -> None:
    operands = drawn("scan", "data", T, reset=False, state=True)
    operands["b"] = operands["b"].transpose(1, 2).contiguous().transpose(1, 2)

    def last(x: Tensor) -> Tensor:
        return x.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)

    for names in (["log_a"], ["b"], ["log_a", "b"]):
        refused("scan", operands, linear, names, last)
