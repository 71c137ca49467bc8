"""GRU and LSTM: the definition is torch's, the backends are the definition, and what all recurrences keep."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.kernels.table import (
    DTYPES,
    Operands,
    assert_close,
    detached,
    error,
    evaluate,
    oracle,
    runnable,
    sample,
)
from torch import Tensor, nn

from ssmperf import Backend, Shape, UsageError
from ssmperf.authoring import Spec
from ssmperf.engine.operands.samplers import log_gates
from ssmperf.suitekit import registry

RECURRENCE = registry.recurrence("rnn")
SHAPE = Shape(B=2, T=33, C=5)
FORGETTING = ("sigmoid", "reset", "rglru", "gla")

each_backend = pytest.mark.parametrize("backend", runnable("rnn"), ids=lambda backend: backend.name)
each_cell = pytest.mark.parametrize("cell", RECURRENCE.gate_kinds)


def operands(cell: str, *, shape: Shape = SHAPE, regime: str = "sigmoid", **how: Any) -> Operands:
    return sample("rnn", shape, regime=regime, kind=cell, **{"dtype": "float64", **how})


@each_cell
def test_the_definition_is_the_layer_of_torch(cell: str) -> None:
    drawn = detached(operands(cell))
    layer = {"gru": nn.GRU, "lstm": nn.LSTM}[cell](SHAPE["C"], SHAPE["C"], batch_first=True).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(drawn[name.removesuffix("_l0")])
    parts = drawn["initial_state"].view(SHAPE["B"], -1, SHAPE["C"]).unbind(1)
    begin = tuple(part.unsqueeze(0).contiguous() for part in parts)
    expected, last = layer(drawn["x"], begin if cell == "lstm" else begin[0])
    output, final = RECURRENCE.definition(**drawn)
    assert error(output, expected) < 1e-14
    assert error(final, torch.stack(last, dim=2)[0] if cell == "lstm" else last[0]) < 1e-14


@pytest.mark.slow(but=("sequential-gru-33", "sequential-lstm-33"))
@pytest.mark.parametrize("T", [1, 2, 33, 64, 100])
@each_cell
@each_backend
def test_outputs_and_all_gradients_match_the_definition(backend: Backend, cell: str, T: int) -> None:
    for dtype in backend.dtypes:
        for regime in FORGETTING:
            drawn = operands(cell, shape=SHAPE.with_(T=T), regime=regime, dtype=dtype)
            got = evaluate(backend.function, drawn)
            assert_close(backend, got, oracle("rnn", drawn), dtype)
            assert got.output.dtype == DTYPES[dtype]
            assert got.final_state.dtype == (torch.float64 if dtype == "float64" else torch.float32)
            assert all(v._version == 0 for v in drawn.values() if isinstance(v, Tensor))


@pytest.mark.parametrize("regime", ["ones", "s4d", "retnet", "mamba"])
@each_cell
@each_backend
def test_gates_that_keep_for_long(backend: Backend, cell: str, regime: str) -> None:
    for dtype in ("float64", "float32"):
        drawn = operands(cell, regime=regime, dtype=dtype)
        assert_close(backend, evaluate(backend.function, drawn), oracle("rnn", drawn), dtype)


@each_cell
@each_backend
def test_inputs_of_another_width(backend: Backend, cell: str) -> None:
    drawn = operands(cell)
    wider = torch.randn(2, 33, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    weight = torch.randn(
        len(drawn["bias_ih"]), 7, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
    drawn |= {"x": wider.requires_grad_(), "weight_ih": weight.requires_grad_()}
    assert_close(backend, evaluate(backend.function, drawn), oracle("rnn", drawn), "float64")


@pytest.mark.parametrize("split", [1, 16, 32])
@each_cell
@each_backend
def test_two_runs_that_pass_the_state_equal_one(backend: Backend, cell: str, split: int) -> None:
    drawn = operands(cell)

    def in_two(x: Tensor, initial_state: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
        first, state = backend.function(x[:, :split], initial_state=initial_state, **rest)
        second, state = backend.function(x[:, split:], initial_state=state, **rest)
        return torch.cat([first, second], dim=1), state

    assert_close(backend, evaluate(in_two, drawn), evaluate(backend.function, drawn), "float64")


@each_cell
@each_backend
def test_the_future_does_not_change_the_past_nor_one_item_another(backend: Backend, cell: str) -> None:
    drawn = detached(operands(cell, dtype="float32"))
    output, _ = backend.function(**drawn)
    for step in (1, 16, 32):
        x = drawn["x"].clone()
        x[:, step:] = -3.0
        later, _ = backend.function(**{**drawn, "x": x})
        assert torch.equal(later[:, :step], output[:, :step])
        assert not torch.equal(later[:, step:], output[:, step:])
    x = drawn["x"].clone()
    x[1] = math.nan
    assert torch.equal(backend.function(**{**drawn, "x": x})[0][0], output[0])


@each_cell
@each_backend
def test_no_state_means_zeros_and_layout_does_not_matter(backend: Backend, cell: str) -> None:
    drawn = detached(operands(cell))
    zeros = {**drawn, "initial_state": torch.zeros_like(drawn["initial_state"])}
    empty = backend.function(**{**drawn, "initial_state": None})
    for a, b in zip(empty, backend.function(**zeros), strict=True):
        assert torch.equal(a, b)
    strided = {
        name: value.transpose(0, -1).contiguous().transpose(0, -1) if isinstance(value, Tensor) else value
        for name, value in drawn.items()
    }
    for a, b in zip(backend.function(**strided), backend.function(**drawn), strict=True):
        assert error(a, b) < 1e-13


@each_cell
@each_backend
def test_no_graph_is_made_where_none_is_wanted(backend: Backend, cell: str) -> None:
    drawn = operands(cell)
    output, final = backend.function(**drawn)
    with torch.no_grad():
        quiet, last = backend.function(**drawn)
    assert output.requires_grad and final.requires_grad
    assert not quiet.requires_grad and not last.requires_grad
    assert error(quiet, output) < 1e-14 and error(last, final) < 1e-14


@each_cell
@each_backend
def test_gradcheck(backend: Backend, cell: str) -> None:
    drawn = operands(cell, shape=Shape(B=1, T=4, C=2), regime="gla")
    leaves = {name: value for name, value in drawn.items() if isinstance(value, Tensor)}
    assert torch.autograd.gradcheck(
        lambda *values: backend.function(**dict(zip(leaves, values, strict=True)), cell=cell),
        list(leaves.values()),
    )


@each_backend
def test_a_backward_twice_gives_the_same(backend: Backend) -> None:
    drawn = operands("gru")
    output, _ = backend.function(**drawn)
    first, second = (torch.autograd.grad(output.sum(), drawn["x"], retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["definition", "sequential", "torch_rnn"])
def test_what_is_no_cell_is_refused(name: str) -> None:
    function = RECURRENCE.definition if name == "definition" else registry.backend("rnn", name).function
    drawn = detached(operands("gru"))
    with pytest.raises(UsageError, match="elman"):
        function(**{**drawn, "cell": "elman"})
    with pytest.raises(UsageError, match="weight_hh of a lstm"):
        function(**{**drawn, "cell": "lstm"})


def test_torch_computes_mixed_precision_and_keeps_the_settings() -> None:
    function = registry.backend("rnn", "torch_rnn").function
    drawn = detached(operands("gru", dtype="float32"))
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.rnn.fp32_precision
    x = drawn["x"].half()
    output, final = function(**{**drawn, "x": x})
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.rnn.fp32_precision) == before
    wide, _ = function(**{**drawn, "x": x.float()})
    assert (output.dtype, final.dtype) == (torch.float16, torch.float32)
    assert torch.equal(output, wide.half())


def test_torch_keeps_what_half_gates_would_lose_on_a_cpu() -> None:
    """Where z is near 1, a GRU's 1 − z of rounded gates is 0."""
    function = registry.backend("rnn", "torch_rnn").function
    x, weights = torch.ones(1, 1, 1), torch.zeros(3, 1)
    biases = torch.tensor([0.0, 8.0, 1.0])  # of r, z, n
    wide, half = (
        function(*(each.to(dtype) for each in (x, weights, weights, biases, torch.zeros(3))))[0].float()
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert wide > 0 and torch.allclose(half, wide, rtol=2**-8)


@each_cell
def test_float32_never_runs_in_tf32(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither forwards nor backwards: seen where torch calls its own operator and its gradient."""
    seen = []
    operator = getattr(torch, cell)

    def spy(*arguments: Any) -> Any:
        seen.append(torch.backends.cudnn.allow_tf32)
        results = operator(*arguments)
        results[0].register_hook(lambda _: seen.append(torch.backends.cudnn.allow_tf32))
        return results

    monkeypatch.setattr(torch, cell, spy)
    drawn = operands(cell, dtype="float32")
    output, _ = registry.backend("rnn", "torch_rnn").function(**drawn)
    torch.autograd.grad(output.sum(), drawn["x"])
    assert seen == [False, False]


@each_cell
def test_the_regime_sets_the_gate_that_keeps_the_state(cell: str) -> None:
    """Where input and state are 0, z of a GRU and f of an LSTM are one step of the regime."""
    C = 64
    drawn = detached(operands(cell, shape=Shape(B=1, T=1, C=C), regime="retnet"))
    kept = torch.sigmoid(drawn["bias_ih"] + drawn["bias_hh"])[C : 2 * C]
    wanted = torch.exp(log_gates("retnet", (C,), torch.Generator())).double()
    assert error(kept, wanted.clamp(max=torch.sigmoid(torch.tensor(6.0)).item())) < 1e-6


def test_cost_tells_the_cells_apart() -> None:
    shape = RECURRENCE.presets["standard"][0]
    B, T, C = (shape[letter] for letter in "BTC")

    def specs(blocks: int) -> dict[str, Spec]:
        weight, bias = Spec((blocks * C, C), 4), Spec((blocks * C,), 4)
        x = Spec((B, T, C), 4)
        return {"x": x, "weight_ih": weight, "weight_hh": weight, "bias_ih": bias, "bias_hh": bias}

    for blocks, special in ((3, 3), (4, 5)):
        forward = RECURRENCE.cost(shape, specs(blocks), "forward")
        assert forward.bytes == 4 * (2 * B * T * C + 2 * blocks * C * C + 2 * blocks * C)
        assert forward.special == special * B * T * C
        assert forward.flops > 4 * blocks * B * T * C * C
        both = RECURRENCE.cost(shape, specs(blocks), "forward_backward")
        assert both.flops == pytest.approx(3 * forward.flops, rel=1e-2)
