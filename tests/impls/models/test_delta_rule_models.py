"""The models that lower to delta_rule: what they minimise and equal, and the solve of exact Longhorn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ssmperf.impls.models.longhorn_exact import solve_in_chunks
from support.kernels.table import Operands, Results, detached, error, evaluate, oracle
from torch import Tensor
from torch.nn import functional

from ssmperf import Unsupported
from ssmperf.suitekit import registry

NAME = "delta_rule"
RECURRENCE = registry.recurrence(NAME)


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def worst(got: Results, want: Results) -> float:
    """The largest relative error over outputs, final state and all gradients."""
    reference = {name: tensor for name, tensor, _ in want.items()}
    return max(error(tensor, reference[name]) for name, tensor, _ in got.items())


def shared(T: int, dtype: torch.dtype = torch.float64, *, V: int = 1, K: int = 4) -> Operands:
    """Exact Longhorn's operands: 5 channels, each with a step of its own, and unnormalised keys."""
    k = 3 * normal(2, T, 1, K, seed=1)
    beta = torch.sigmoid(normal(2, T, 5, seed=2))
    operands = {
        "q": normal(2, T, 1, K, seed=3),
        "k": k,
        "v": normal(2, T, 5, V, seed=4),
        "beta": beta / (1 + beta * k.square().sum(-1)),
        "initial_state": normal(2, 5, K, V, seed=5),
    }
    return {name: value.to(dtype).requires_grad_() for name, value in operands.items()}


@pytest.mark.parametrize("V", [1, 3])
@pytest.mark.parametrize("T", [1, 2, 15, 16, 17, 100])
def test_state_first_is_the_delta_rule_of_shared_keys(T: int, V: int) -> None:
    state_first = registry.backend("longhorn_exact", "state_first")
    sequential = registry.backend("longhorn_exact", "sequential")
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        operands = shared(T, dtype, V=V)
        got = evaluate(state_first.function, operands)
        assert worst(got, evaluate(sequential.function, operands)) < tolerance
        assert worst(got, oracle(NAME, operands)) < tolerance
        assert got.output.dtype == got.final_state.dtype == dtype


@pytest.mark.parametrize("C", [1, 7, 16, 50])
def test_state_first_with_chunks_of_any_size(C: int) -> None:
    operands = shared(50)

    def function(
        q: Tensor, k: Tensor, v: Tensor, beta: Tensor, initial_state: Tensor
    ) -> tuple[Tensor, Tensor]:
        return solve_in_chunks(q[:, :, 0], k[:, :, 0], v, beta, initial_state, C)

    assert worst(evaluate(function, operands), oracle(NAME, operands)) < 1e-12


def test_state_first_in_halves_splits_and_without_a_state() -> None:
    function = registry.backend("longhorn_exact", "state_first").function
    operands = detached(shared(70))
    whole, final = function(**operands)
    head = {name: x[:, :41] if name != "initial_state" else x for name, x in operands.items()}
    tail = {name: x[:, 41:] if name != "initial_state" else x for name, x in operands.items()}
    first, state = function(**head)
    second, last = function(**{**tail, "initial_state": state})
    assert error(torch.cat([first, second], dim=1), whole) < 1e-12 and error(last, final) < 1e-12
    zeros = {**operands, "initial_state": torch.zeros_like(operands["initial_state"])}
    assert torch.equal(function(**{**operands, "initial_state": None})[0], function(**zeros)[0])
    half = {name: x.bfloat16() for name, x in operands.items()}
    output, state = function(**half)
    assert output.dtype == torch.bfloat16 and state.dtype == torch.float32


def test_state_first_refuses_what_it_cannot() -> None:
    function = registry.backend("longhorn_exact", "state_first").function
    operands = detached(shared(5))
    own = operands["k"].expand(-1, -1, 5, -1)
    for change in ({"k": own}, {"q": own}, {"log_a": torch.zeros(5)}, {"p": own, "r": own}, {"beta": None}):
        with pytest.raises(Unsupported, match="state_first"):
            function(**{**operands, **change})


def test_state_first_belongs_to_its_model_alone() -> None:
    assert "state_first" in registry.backend_names("longhorn_exact")
    assert "state_first" not in registry.backend_names("deltanet")


def build(name: str, **sizes: int) -> Any:
    torch.manual_seed(0)
    return registry.model(name).cls(sizes or {"H": 2, "K": 4, "V": 3}).double()


def test_exact_longhorn_minimises_its_objective_and_is_stable() -> None:
    model = build("longhorn_exact", H=6, K=4, V=1)
    x = 4 * normal(1, 40, 6)
    o = model.operands(x)
    k = o["k"][0, :, 0]
    step = o["beta"][0]
    beta = step / (1 - step * k.square().sum(-1, keepdim=True))  # Δ = β / (1 + β k·k), solved for β
    assert beta.min() > 0 and beta.max() < 1
    before = torch.zeros(6, 4, dtype=torch.float64)
    for t in range(40):
        after = RECURRENCE.definition(
            **{name: value[:, t : t + 1] for name, value in o.items()},
            initial_state=before[None, :, :, None],
        )[1][0, ..., 0]
        slope = (after - before) + beta[t].unsqueeze(-1) * ((after @ k[t] - x[0, t]).unsqueeze(-1) * k[t])
        assert slope.abs().max() < 1e-12 * max(1.0, k[t].square().sum().item() * x.abs().max().item())
        before = after


def test_one_step_of_gradient_descent_a_token_is_the_delta_rule() -> None:
    model = build("ttt_linear")
    x = normal(1, 12, 6)
    o = model.operands(x)
    assert torch.allclose(o["k"].norm(dim=-1), torch.ones(()).double(), atol=1e-5)
    output, final = RECURRENCE.definition(**o)
    for h in range(2):
        W = torch.zeros(3, 4, dtype=torch.float64)
        for t in range(12):
            W.requires_grad_()
            loss = 0.5 * (W @ o["k"][0, t, h] - o["v"][0, t, h]).square().sum()
            W = (W - o["beta"][0, t, h] * torch.autograd.grad(loss, W)[0]).detach()
            assert error(output[0, t, h], W @ o["q"][0, t, h]) < 1e-12
        assert error(final[0, h].T, W) < 1e-12


def test_gradient_descent_from_one_point_is_linear_attention() -> None:
    one_by_one, batch = build("ttt_linear"), build("ttt_linear_batch")
    batch.load_state_dict(one_by_one.state_dict())
    x = normal(1, 12, 6)
    o = one_by_one.operands(x)
    start = torch.zeros(2, 3, 4, dtype=torch.float64, requires_grad=True)
    y, _ = batch(x, backend="chunkwise")
    for t in range(12):
        errors = torch.einsum("hvk,thk->thv", start, o["k"][0, : t + 1]) - o["v"][0, : t + 1]
        loss = (0.5 * o["beta"][0, : t + 1] * errors.square().sum(-1)).sum()
        W = -torch.autograd.grad(loss, start)[0]
        assert error(y[0, t], torch.einsum("hvk,hk->hv", W, o["q"][0, t]).flatten()) < 1e-12


def test_gated_deltanet_without_decay_is_deltanet_on_its_own_values() -> None:
    model = build("gated_deltanet")
    with torch.no_grad():
        model.A_log.fill_(-1e3)
    x = normal(2, 20, 6)
    o = model.operands(x)
    assert not o["log_a"].any()
    ungated = {name: value for name, value in o.items() if name != "log_a"}
    assert error(model.definition(x), RECURRENCE.definition(**ungated)[0].flatten(-2)) < 1e-12


def test_a_scalar_gate_is_a_vector_gate_of_equal_channels() -> None:
    scalar, vector = build("f4_scalar"), build("f4_vector")
    x = normal(2, 20, 6)
    o = scalar.operands(x)
    expanded = {**o, "log_a": o["log_a"].unsqueeze(-1).expand_as(o["k"])}
    assert RECURRENCE.gate_kind(expanded) == registry.model(vector.name).gate
    assert error(RECURRENCE.definition(**expanded)[0], RECURRENCE.definition(**o)[0]) < 1e-12


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_every_transition_of_f4_decoupled_is_a_contraction(scale: float) -> None:
    model = build("f4_decoupled")
    o = model.operands(scale * normal(2, 50, 6))
    transition = torch.diag_embed(torch.exp(o["log_a"])) + o["p"].unsqueeze(-1) * o["r"].unsqueeze(-2)
    assert torch.linalg.matrix_norm(transition, ord=2).max() <= 1 + 1e-12
    assert (functional.cosine_similarity(o["r"], o["k"], dim=-1).abs() < 0.9).any()


@pytest.mark.parametrize("name", ["f4_scalar", "f4_vector", "f4_decoupled"])
def test_project_defined_models_say_so(name: str) -> None:
    """Such a model cites a paper for its recurrence; the reference says that the model is not in it."""
    assert registry.model(name).paper.endswith(": defined by this project, not a published model")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["deltanet", "gated_deltanet", "kda", "f4_scalar", "f4_vector", "f4_decoupled", "longhorn_exact"]
)
def test_long_runs_of_a_model_stay_bounded_in_float32(name: str) -> None:
    model = build(name, H=2, K=8, V=4).float()
    x = normal(1, 1500, 8).float()
    y, state = model(x, backend="chunkwise")
    assert y.isfinite().all() and state.abs().max() < 100
    assert error(y, build(name, H=2, K=8, V=4).definition(x.double())) < 1e-4
