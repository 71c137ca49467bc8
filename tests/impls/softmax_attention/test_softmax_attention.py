"""Softmax attention: the definition is the softmax, the backends are the definition, a cache continues it."""

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
from torch import Tensor

from ssmperf import Backend, Shape, Unsupported, UsageError
from ssmperf.suitekit import registry

RECURRENCE = registry.recurrence("softmax_attention")
SHAPE = Shape(B=2, T=66, H=2, K=4, V=5)  # one chunk and a part of the next

each_backend = pytest.mark.parametrize(
    "backend", runnable("softmax_attention"), ids=lambda backend: backend.name
)
LENGTHS = {"sequential": 9}  # it is slow, and has no chunks
each_kind = pytest.mark.parametrize("kind", RECURRENCE.gate_kinds)


def operands(
    kind: str, *, S: int = 20, T: int = 66, regime: str = "sigmoid", dtype: str = "float64"
) -> Operands:
    """Draw operands with a cache of S steps; without a gate it has the dtype of the data."""
    drawn = sample("softmax_attention", SHAPE.with_(T=T), regime=regime, kind=kind, dtype=dtype)
    drawn = {name: value for name, value in drawn.items() if value is not None}
    generator = torch.Generator().manual_seed(1)
    cache = RECURRENCE.sample_state(detached(drawn), generator, rows=S)
    drawn["initial_state"] = cache.requires_grad_()
    if S == 0:
        del drawn["initial_state"]
    return drawn


@each_backend
def test_a_gate_that_weighs_nothing_has_a_gradient(backend: Backend) -> None:
    """The first step has no past to forget."""
    drawn = operands("scalar", S=0, T=1, dtype="float32")
    output, _ = backend.function(**drawn)
    (gradient,) = torch.autograd.grad(output.sum(), [drawn["log_f"]])
    assert not gradient.any()


@pytest.mark.parametrize("S", [0, 3])
def test_the_definition_is_the_softmax_number_by_number(S: int) -> None:
    drawn = detached(operands("scalar", S=S, T=5))
    q, k, v, log_f = (drawn[name] for name in ("q", "k", "v", "log_f"))
    output, final = RECURRENCE.definition(**drawn)
    assert torch.equal(final[:, S:, :, :-1], torch.cat([k, v], dim=-1))
    for b, h in ((0, 0), (1, 1)):
        past = [drawn["initial_state"][b, m, h] for m in range(S)]
        keys = [row[:4] for row in past] + list(k[b, :, h])
        values = [row[4:9] for row in past] + list(v[b, :, h])
        for n in range(5):
            weights = []
            for m in range(S + n + 1):
                gates = math.exp(log_f[b, max(0, m - S + 1) : n + 1, h].sum())
                weights.append((past[m][9] if m < S else 1) * gates * math.exp(q[b, n, h] @ keys[m]))
            expected = sum(w * value for w, value in zip(weights, values, strict=False)) / sum(weights)
            assert error(output[b, n, h], torch.as_tensor(expected)) < 1e-13
        left = [math.exp(log_f[b, max(0, m - S + 1) :, h].sum()) for m in range(S + 5)]
        left = [weight * (past[m][9] if m < S else 1) for m, weight in enumerate(left)]
        assert error(final[b, :, h, -1], torch.tensor(left, dtype=torch.float64)) < 1e-13


def length(backend: Backend) -> int:
    return LENGTHS.get(backend.name, SHAPE["T"])


@pytest.mark.parametrize(("S", "T"), [(0, 1), (20, 1), (3, None)])
@each_backend
def test_outputs_and_all_gradients_match_the_definition(backend: Backend, S: int, T: int | None) -> None:
    for kind, regime, dtype in (
        ("none", "ones", "float64"),
        ("none", "ones", "float32"),
        ("scalar", "reset", "float64"),
        ("scalar", "gla", "float32"),
    ):
        drawn = operands(kind, S=S, T=T or length(backend), regime=regime, dtype=dtype)
        got = evaluate(backend.function, drawn)
        assert got.output.dtype == DTYPES[dtype]
        assert_close(backend, got, oracle("softmax_attention", drawn), dtype)
        assert all(value._version == 0 for value in drawn.values())


@each_kind
@each_backend
def test_two_runs_that_pass_the_cache_equal_one(backend: Backend, kind: str) -> None:
    drawn = operands(kind, T=length(backend))

    def in_two(initial_state: Tensor, **timed: Any) -> tuple[Tensor, Tensor]:
        outputs, cache = [], initial_state
        for part in (slice(0, 1), slice(1, None)):
            steps = {name: value[:, part] for name, value in timed.items()}
            output, cache = backend.function(**steps, initial_state=cache)
            outputs.append(output)
        return torch.cat(outputs, dim=1), cache

    assert_close(backend, evaluate(in_two, drawn), evaluate(backend.function, drawn), "float64")


@each_kind
@each_backend
def test_neither_later_steps_nor_other_items_nor_other_heads_are_read(backend: Backend, kind: str) -> None:
    drawn, other = (detached(operands(kind, dtype="float32", regime=r)) for r in ("sigmoid", "gla"))
    output, _ = backend.function(**drawn)
    for step in (1, 64):
        later = {
            name: value
            if name == "initial_state"
            else torch.cat([value[:, :step], -value[:, step:].abs()], 1)
            for name, value in drawn.items()
        }
        changed, _ = backend.function(**later)
        assert torch.equal(changed[:, :step], output[:, :step])
        assert not torch.equal(changed[:, step:], output[:, step:])
    item = {name: torch.cat([drawn[name][:1], other[name][1:] / 2]) for name in drawn}
    assert torch.equal(backend.function(**item)[0][0], output[0])
    head = {name: torch.cat([drawn[name][:, :, :1], other[name][:, :, 1:] / 2], dim=2) for name in drawn}
    assert torch.equal(backend.function(**head)[0][:, :, 0], output[:, :, 0])


@each_backend
def test_a_reset_and_a_weight_of_0_forget_for_good(backend: Backend) -> None:
    drawn = operands("scalar")
    with torch.no_grad():
        drawn["log_f"][:, 30] = -math.inf
        drawn["initial_state"][:, :5, :, -1] = 0
    got = evaluate(backend.function, drawn)
    alone, cache = backend.function(
        **{name: value[:, 30:] for name, value in detached(drawn).items() if name != "initial_state"}
    )
    assert error(got.output[:, 30:], alone) < 1e-13
    assert error(got.final_state[:, -36:], cache) < 1e-13 and not got.final_state[:, :50, :, -1].any()
    assert all(gradient.isfinite().all() for gradient in got.gradients.values())
    assert not got.gradients["log_f"][:, 30].any()
    shorter, _ = backend.function(
        **{**detached(drawn), "initial_state": drawn["initial_state"].detach()[:, 5:]}
    )
    assert error(got.output, shorter) < 1e-13


@each_kind
@each_backend
def test_operands_need_not_be_contiguous(backend: Backend, kind: str) -> None:
    drawn = operands(kind, T=length(backend))
    strided = {
        name: value.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_()
        for name, value in drawn.items()
    }
    assert_close(backend, evaluate(backend.function, strided), evaluate(backend.function, drawn), "float64")


@each_backend
def test_a_cache_of_another_kind_is_refused(backend: Backend) -> None:
    plain, gated = (detached(operands(kind, T=3)) for kind in ("none", "scalar"))
    for given, cache in ((plain, gated["initial_state"]), (gated, plain["initial_state"])):
        for function in (backend.function, RECURRENCE.definition):
            with pytest.raises(UsageError, match="channels, must have"):
                function(**{**given, "initial_state": cache})


def test_chunks_keep_memory_linear_for_the_backward_pass() -> None:
    def kept(name: str, T: int) -> int:
        drawn, storages = operands("scalar", S=0, T=T), {}

        def keep(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = registry.backend("softmax_attention", name).function(**drawn)
        assert result[0].requires_grad
        return sum(storages.values())

    assert kept("chunkwise", 256) < 2.2 * kept("chunkwise", 128)
    assert kept("torch_sdpa", 256) > 3 * kept("torch_sdpa", 128)


def test_a_gate_makes_the_cache_wide_and_none_leaves_it_narrow() -> None:
    for backend in runnable("softmax_attention"):
        for kind, dtype in (("none", torch.bfloat16), ("scalar", torch.float32)):
            _, cache = backend.function(**detached(operands(kind, S=0, T=3, dtype="bfloat16")))
            assert cache.dtype == dtype and cache.shape[-1] == 9 + (kind == "scalar")


@pytest.mark.parametrize("said", ["cutlassF: no kernel found to launch!", "planted"])
def test_a_kernel_that_torch_does_not_have_is_refused(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*tensors: Tensor, **options: Any) -> Tensor:
        raise RuntimeError(said)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", failing)
    backend = registry.backend("softmax_attention", "torch_sdpa")
    with pytest.raises(Unsupported if "cutlass" in said else RuntimeError, match=said):
        backend.function(**operands("none", S=0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_torch_sdpa_reads_gradients_of_any_memory(dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def drawn() -> Tensor:
        return torch.randn(2, 67, 3, 64, device="cuda", generator=generator).to(dtype)

    leaves = [drawn().mul_(0.1).requires_grad_() for _ in range(3)]
    output, _ = registry.backend("softmax_attention", "torch_sdpa").function(*leaves)
    gradient = drawn()
    heads_first = gradient.transpose(1, 2).contiguous().transpose(1, 2)
    sliced = torch.cat([gradient, gradient], -1)[..., :64]
    transposed = gradient.transpose(-1, -2).contiguous().transpose(-1, -2)
    expected = torch.autograd.grad(output, leaves, gradient, retain_graph=True)
    for other in (heads_first, sliced, transposed):
        found = torch.autograd.grad(output, leaves, other, retain_graph=True)
        for got, wanted in zip(found, expected, strict=True):
            assert error(got.double(), wanted.double()) < 0.01  # as they add up in no fixed order
