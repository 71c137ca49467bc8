"""Operands that are legal and seldom: the Triton kernels take them as the definitions do, or refuse them."""

from __future__ import annotations

import importlib
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from ssmperf import Shape
from ssmperf.suitekit import registry

NAMES = ("scan", "selective_scan", "ratio_scan", "linear_attention")
ENTRIES = {name: registry.backend(name, "triton") for name in NAMES}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if reason := ENTRIES["scan"].missing(DEVICE):
    pytest.skip(reason, allow_module_level=True)

INPUT = {"scan": "b", "selective_scan": "x", "ratio_scan": "v", "linear_attention": "v"}
STATE = {"scan": (5,), "selective_scan": (5, 6), "ratio_scan": (3, 5), "linear_attention": (3, 4, 5)}

each_name = pytest.mark.parametrize("name", NAMES)
one_step_or_several = pytest.mark.parametrize("T", [1, 3])


def operands(name: str, T: int, *, B: int = 2, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    recurrence = registry.recurrence(name)
    kind = "const" if name in ("scan", "ratio_scan") else recurrence.gate_kinds[0]
    shape = Shape(B=2, T=T, C=5, D=5, N=6, H=3, K=4, V=5)
    generator = torch.Generator().manual_seed(0)
    given: dict[str, Any] = {
        **recurrence.sample(shape, regime="sigmoid", generator=generator, gate_kind=kind),
        "initial_state": torch.rand(2, *STATE[name], generator=generator),
    }
    for key, x in given.items():
        if isinstance(x, Tensor):
            x = x[:B] if x.shape[0] == 2 else x
            given[key] = x.to(DEVICE, torch.float32 if key in recurrence.gates else dtype)
    return given


def negated(x: Tensor) -> Tensor:
    """The same numbers as the imaginary part of a conjugate: their sign is a flag beside the memory."""
    view = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert view.is_neg()
    return view


@each_name
@one_step_or_several
def test_imaginary_parts_of_conjugates_have_their_sign(name: str, T: int) -> None:
    given = operands(name, T)
    want = ENTRIES[name].function(**given)
    if name == "scan" and T > 1:
        given["log_a"] = given["log_a"][..., :1]  # which is read where it is
        want = ENTRIES[name].function(**given)
    changed = {key: negated(x) if isinstance(x, Tensor) else x for key, x in given.items()}
    for got, expected in zip(ENTRIES[name].function(**changed), want, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize(
    ("name", "parameter", "keyword"), [("selective_scan", "A", "saves"), ("ratio_scan", "log_w", "save")]
)
def test_states_are_kept_only_for_a_backward_pass(
    monkeypatch: pytest.MonkeyPatch, name: str, parameter: str, keyword: str, graph: bool
) -> None:
    """Parameters ask for gradients under `torch.no_grad`, too."""
    function = importlib.import_module(f"ssmperf.impls.{name}._triton.function")
    passes = mock.Mock(side_effect=function.forward_pass)
    monkeypatch.setattr(function, "forward_pass", passes)
    given = operands(name, 3)
    given[parameter].requires_grad_()
    with torch.set_grad_enabled(graph):
        output, _ = ENTRIES[name].function(**given)
    assert output.requires_grad is graph
    assert [call.kwargs[keyword] for call in passes.call_args_list] == [graph]


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own, for tangents
@each_name
@one_step_or_several
def test_operands_with_tangents_are_refused(name: str, T: int) -> None:
    """A kernel would drop the tangent, and leave a derivative that lacks its part."""
    given = operands(name, T)
    with forward_ad.dual_level():
        given[INPUT[name]] = forward_ad.make_dual(given[INPUT[name]], torch.ones_like(given[INPUT[name]]))
        with pytest.raises(NotImplementedError, match="jvp"):
            ENTRIES[name].function(**given)


@each_name
@one_step_or_several
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_no_batch_element_at_all(name: str, T: int, dtype: torch.dtype) -> None:
    given = operands(name, T, B=0, dtype=dtype)
    x = given[INPUT[name]].requires_grad_(T > 1)
    got = ENTRIES[name].function(**given)
    want = registry.recurrence(name).definition(**given)
    assert [part.shape for part in got] == [part.shape for part in want]
    if T > 1:
        got[0].sum().backward()
        assert x.grad is not None and x.grad.shape == x.shape


def test_a_step_of_attention_takes_phases_and_states_in_double_precision() -> None:
    given = operands("linear_attention", 1)
    generator = torch.Generator().manual_seed(1)
    given["phase"] = 1e5 * torch.randn(3, 4, generator=generator, dtype=torch.float64).to(DEVICE)
    given["initial_state"] = given["initial_state"].to(torch.complex128)
    wide = {
        key: x.to(torch.promote_types(x.dtype, torch.float64)) for key, x in given.items() if x is not None
    }
    want = registry.recurrence("linear_attention").definition(**wide)
    for got, expected in zip(ENTRIES["linear_attention"].function(**given), want, strict=True):
        torch.testing.assert_close(got.to(expected.dtype), expected, rtol=1e-5, atol=1e-5)
