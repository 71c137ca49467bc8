"""Packed sequences and keys that heads share, in both recurrences of heads: separate runs, repeated keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ssmperf.impls.scan.common import shared_heads
from support.kernels.table import Operands, assert_close, error, evaluate, runnable, sample, span
from torch import Tensor

from ssmperf import Backend, BrokenContract, Shape, UsageError, compute
from ssmperf.suitekit import registry

H, K, V = 4, 3, 2
LENGTHS = (0, 5, 0, 1, 11, 0)
RECURRENCES = ("linear_attention", "delta_rule")
# None stands for the definition
SUBJECTS = [(name, backend) for name in RECURRENCES for backend in (None, *runnable(name))]
IDS = [f"{name}-{'definition' if backend is None else backend.name}" for name, backend in SUBJECTS]
Function = Callable[..., tuple[Tensor, Any]]

each_subject = pytest.mark.parametrize(("recurrence", "backend"), SUBJECTS, ids=IDS)
each_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES)


def draw(
    recurrence: str, *, heads: int = H, lengths: Sequence[int] = LENGTHS, choice: int = 0, gates: Any = None
) -> Operands:
    """Leaves in float64: q and k with so many heads, a state per sequence, and gates of the chosen kind."""
    kinds = gates or registry.recurrence(recurrence).gate_kinds
    shape = Shape(B=1, T=sum(lengths), H=H, K=K, V=V)
    operands = sample(recurrence, shape, kind=kinds[choice % len(kinds)], dtype="float64")
    for name in "qk":
        operands[name] = operands[name].detach()[:, :, :heads].clone().requires_grad_()
    generator = torch.Generator().manual_seed(choice)
    states = torch.randn(2, len(lengths), H, K, V, generator=generator, dtype=torch.float64)
    whole = operands["initial_state"].is_complex()
    operands["initial_state"] = (torch.complex(*states) if whole else states[0]).requires_grad_()
    if recurrence == "linear_attention" and choice // 10 % 2:
        bonus = torch.randn(H, K, generator=generator, dtype=torch.float64)
        operands |= {"read": "pre", "bonus": bonus.requires_grad_()}
    return operands


def apart(function: Function, lengths: Sequence[int]) -> Function:
    """Run each sequence alone, with keys that are repeated for the heads of v."""

    def each_alone(q: Tensor, k: Tensor, initial_state: Tensor, **others: Any) -> Any:
        of_head = [h * k.shape[2] // H for h in range(H)]
        whole = {"q": q[:, :, of_head], "k": k[:, :, of_head], **others}
        outputs, states = [], []
        bounds = pairwise(accumulate(lengths, initial=0))
        for state, (first, end) in zip(initial_state.split(1), bounds, strict=True):
            if first < end:
                part = {
                    name: x[:, first:end] if isinstance(x, Tensor) and x.dim() > 2 else x
                    for name, x in whole.items()
                }
                output, state = function(**part, initial_state=state)
                outputs.append(output)
            states.append(state)
        return torch.cat(outputs, 1), torch.cat(states)

    return each_alone


def bounds_of(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32 if len(lengths) % 2 else torch.int64)


@each_subject
@settings(max_examples=12, deadline=None, derandomize=True)
@example(lengths=LENGTHS, heads=2, choice=0)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any),
    heads=st.sampled_from((1, 2, H)),
    choice=st.integers(0, 99),
)
def test_packed_sequences_are_separate_runs_and_shared_keys_repeated_ones(
    recurrence: str, backend: Backend | None, lengths: Sequence[int], heads: int, choice: int
) -> None:
    """Outputs, the state after each sequence, and the gradients of all operands are the definition's."""
    definition = registry.recurrence(recurrence).definition
    function = definition if backend is None else backend.function
    operands = draw(
        recurrence, heads=heads, lengths=lengths, choice=choice, gates=backend and backend.gates
    )  # fmt: skip
    want = evaluate(apart(definition, lengths), operands)
    got = evaluate(partial(function, cu_seqlens=bounds_of(lengths)), operands)
    tolerance = backend or registry.backend(recurrence, "sequential")
    assert_close(tolerance, got, want, "float64", span(recurrence, operands))


@each_subject
def test_sequences_without_an_initial_state_start_from_zeros(
    recurrence: str, backend: Backend | None
) -> None:
    function = registry.recurrence(recurrence).definition if backend is None else backend.function
    given = draw(recurrence, gates=backend and backend.gates)
    results = []
    for state in (None, torch.zeros_like(given["initial_state"])):
        given["initial_state"] = state
        results.append(function(**given, cu_seqlens=bounds_of(LENGTHS)))
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)


def test_a_backend_without_a_state_runs_each_sequence_too() -> None:
    given = draw("linear_attention", heads=2, gates=("key",))
    states = given.pop("initial_state")
    backend = registry.backend("linear_attention", "surrogate_softmax")
    output, final = backend.function(**given, cu_seqlens=bounds_of(LENGTHS))

    def with_a_state(initial_state: Tensor, **others: Any) -> tuple[Tensor, Tensor]:
        return backend.function(**others)[0], initial_state

    assert final is None
    assert error(output, apart(with_a_state, LENGTHS)(**given, initial_state=states)[0]) < 1e-12


def test_longhorns_own_backend_takes_packed_sequences() -> None:
    backend = registry.backend("longhorn_exact", "state_first")
    operands = draw("delta_rule", heads=1, gates=("none",))
    want = evaluate(apart(registry.recurrence("delta_rule").definition, LENGTHS), operands)
    got = evaluate(partial(backend.function, cu_seqlens=bounds_of(LENGTHS)), operands)
    assert_close(backend, got, want, "float64")


@each_recurrence
def test_states_are_as_wide_as_those_of_one_sequence(recurrence: str) -> None:
    """Those of empty sequences too, which are no more than copies of initial states in half precision."""
    given = {
        name: x.detach().bfloat16() if isinstance(x, Tensor) else x for name, x in draw(recurrence).items()
    }
    for name in ("sequential", "chunkwise"):
        function = registry.backend(recurrence, name).function
        output, final = function(**given, cu_seqlens=bounds_of(LENGTHS))
        assert (output.dtype, final.dtype) == (torch.bfloat16, torch.float32)
        assert torch.equal(final[0], given["initial_state"][0].float())


def test_a_real_call_from_complex_states_reads_their_real_parts() -> None:
    """Of empty sequences too (found by fuzz: one of them made all states complex)."""
    given = draw("linear_attention", gates=("key",))
    states = torch.complex(given["initial_state"], torch.ones_like(given["initial_state"]))
    for name in ("sequential", "chunkwise"):
        function = registry.backend("linear_attention", name).function
        results = function(**given, cu_seqlens=bounds_of(LENGTHS))
        of_complex = function(**(given | {"initial_state": states}), cu_seqlens=bounds_of(LENGTHS))
        for result, other in zip(results, of_complex, strict=True):
            assert torch.equal(result, other)


EXACT = [each for each in runnable("linear_attention") if each.error_bound is None and each.equivalent]


@pytest.mark.parametrize("backend", EXACT, ids=lambda each: each.name)
def test_gradients_of_heads_that_share_a_key_are_summed_in_the_widest_precision(backend: Backend) -> None:
    """Where they cancel, each of them rounded to half precision leaves nothing right of the sum."""
    v, g = torch.full((2, 1, 1, 64, 1), 1.01).unbind(0)
    g[:, :, ::2] *= -1.0001  # of each two heads the gradients nearly cancel
    q = torch.ones(1, 1, 1, 4, dtype=torch.bfloat16, requires_grad=True)
    output, _ = backend.function(q, torch.ones(1, 1, 1, 4), v)
    (found,) = torch.autograd.grad(output, q, g)
    torch.testing.assert_close(found.float(), (v * g).sum().expand(found.shape), rtol=0.01, atol=0.0)


def test_a_key_that_all_heads_share_is_not_copied() -> None:
    q, k, v = torch.randn(1, 5, 1, K), torch.randn(1, 5, 1, K), torch.randn(1, 5, H, 3)
    for one, many in zip((q, k), shared_heads(q, k, v), strict=True):
        assert many.shape == (1, 5, H, K) and many.data_ptr() == one.data_ptr()


T = sum(LENGTHS)
MISFITS: list[tuple[dict[str, Tensor], str]] = [
    ({"cu_seqlens": torch.tensor([0, 3])}, "must begin with 0 and end with T = 17, got 0 and 3"),
    ({"cu_seqlens": torch.tensor([0, 9, 4, 17])}, "must not decrease, got 9 before 4"),
    ({"cu_seqlens": torch.tensor([0.0, 17.0])}, "int32 or int64, got torch.float32"),
    ({"cu_seqlens": torch.tensor([0, 17])}, r"must be \(1, 4, 3, 2\), one of each sequence, got \(6, 4"),
    ({"k": torch.zeros(1, T, 3, K), "q": torch.zeros(1, T, 3, K)}, "got 3 and 3, and 4 of v"),
    ({"k": torch.zeros(1, T, 2, K)}, "both the same divisor of them, got 4 and 2, and 4 of v"),
]
OF_THE_DELTA_RULE: list[tuple[dict[str, Tensor], str]] = [
    ({name: torch.zeros(shape)}, f"{name} must have as many heads as v, 4, got")
    for name, shape in (("beta", (1, T, 2)), ("p", (1, T, 2, K)), ("r", (1, T, 1, K)), ("log_a", (2,)))
]


@each_recurrence
def test_what_does_not_fit_is_refused(recurrence: str) -> None:
    given = draw(recurrence, gates=("key",) if recurrence == "linear_attention" else ("dplr_key",))
    more = OF_THE_DELTA_RULE if recurrence == "delta_rule" else []
    chunkwise = registry.backend(recurrence, "chunkwise").function
    for function in (registry.recurrence(recurrence).definition, chunkwise):
        for changed, message in MISFITS + more:
            with pytest.raises(UsageError, match=message):
                function(**{**given, "cu_seqlens": bounds_of(LENGTHS), **changed})
        with pytest.raises(UsageError, match="packs sequences into one batch element, got B = 2"):
            twice = {name: x.repeat(2, *[1] * (x.dim() - 1)) for name, x in given.items() if x is not None}
            function(**{**twice, "cu_seqlens": bounds_of(LENGTHS)})


@each_recurrence
def test_they_have_a_contract(recurrence: str) -> None:
    given = draw(recurrence, heads=2)
    bounds = bounds_of(LENGTHS)
    output, final = compute(recurrence, "chunkwise", **given, cu_seqlens=bounds)
    assert (output.shape, final.shape) == ((1, T, H, V), (len(LENGTHS), H, K, V))
    for changed in ({"k": given["k"][:, :5]}, {"q": given["q"][:, :, :1]}):
        with pytest.raises((UsageError, BrokenContract)):
            compute(recurrence, "chunkwise", **{**given, **changed}, cu_seqlens=bounds)
