"""selective_scan's options: step sizes by softplus, a skip, an output gate, packed sequences."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from support.kernels.table import Operands, assert_close, detached, error, evaluate, runnable, sample, widened
from torch import Tensor
from torch.nn import functional

from ssmperf import Backend, Shape, UsageError
from ssmperf.authoring import Spec
from ssmperf.suitekit import registry

NAME = "selective_scan"
RECURRENCE = registry.recurrence(NAME)
BACKENDS = runnable(NAME)
FUNCTIONS = {"definition": RECURRENCE.definition, **{b.name: b.function for b in BACKENDS}}
SHAPE = Shape(B=2, T=21, D=5, N=3)
LENGTHS = (6, 0, 1, 9, 5)  # of packed sequences
CASES = {
    "skip": ("skip",),
    "output gate": ("output_gate",),
    "bias": ("delta_bias",),
    "softplus": ("delta_softplus",),
    "packed": ("cu_seqlens",),
    "all": ("skip", "output_gate", "delta_bias", "delta_softplus", "cu_seqlens"),
}

each_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
each_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bounds(device: str = "cpu") -> Tensor:
    return torch.tensor((0, *LENGTHS), device=device).cumsum(0)


def operands(kind: str, wanted: tuple[str, ...], dtype: str = "float64") -> tuple[Operands, Operands]:
    """Leaves with the wanted options, and the options that are none."""
    packed = "cu_seqlens" in wanted
    given = sample(NAME, SHAPE.with_(B=1) if packed else SHAPE, kind=kind, dtype=dtype)
    size = given["x"].shape
    made = {"skip": normal(size[2], seed=1), "output_gate": normal(*size, seed=2)}
    made["delta_bias"] = normal(size[2], seed=3)
    if packed:
        given["initial_state"] = normal(len(LENGTHS), *given["initial_state"].shape[1:], seed=4)
    step = given["delta"].detach().double().clamp(min=1e-3)  # what delta, its options done, gives
    step = torch.log(torch.expm1(step)) if "delta_softplus" in wanted else step
    given["delta"] = step - (made["delta_bias"] if "delta_bias" in wanted else 0)
    given |= {name: value for name, value in made.items() if name in wanted}
    real = given["x"].dtype
    for name, value in given.items():
        if isinstance(value, Tensor) and not value.is_complex():
            given[name] = value.detach().to(real).requires_grad_()
    fixed: Operands = {"delta_softplus": True} if "delta_softplus" in wanted else {}
    return given, fixed | ({"cu_seqlens": bounds()} if packed else {})


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["exp", "implicit"])
@each_backend
def test_results_and_gradients_are_the_definitions(
    backend: Backend, kind: str, case: str, dtype: str
) -> None:
    given, fixed = operands(kind, CASES[case], dtype)
    want = evaluate(partial(RECURRENCE.definition, **fixed), widened(given))
    span = RECURRENCE.decay_span({**given, **fixed})
    got = evaluate(partial(backend.function, **fixed), given)
    assert set(CASES[case]) - set(fixed) <= set(got.gradients)
    assert_close(backend, got, want, dtype, span)


@pytest.mark.parametrize("kind", ["sigmoid", "const", "exp_zoh_complex"])
@each_backend
def test_every_other_gate_takes_all_options(backend: Backend, kind: str) -> None:
    given, fixed = operands(kind, CASES["all"])
    if kind.endswith("complex"):
        given["initial_state"] = torch.complex(given["initial_state"], normal(len(LENGTHS), 5, 3, seed=9))
        given["initial_state"] = given["initial_state"].detach().requires_grad_()
    want = evaluate(partial(RECURRENCE.definition, **fixed), widened(given))
    got = evaluate(partial(backend.function, **fixed), given)
    assert_close(backend, got, want, "float64", RECURRENCE.decay_span({**given, **fixed}) + 1e4)


def test_the_definition_does_them_outside_the_recurrence() -> None:
    given, _ = operands("exp", CASES["all"][:-1])
    given = detached(given)
    output, final = RECURRENCE.definition(**given, delta_softplus=True)
    skip, z, bias = (given.pop(name) for name in ("skip", "output_gate", "delta_bias"))
    given["delta"] = torch.log(1 + torch.exp(given["delta"] + bias))
    plain, state = RECURRENCE.definition(**given)
    assert error(output, (plain + skip * given["x"]) * z / (1 + torch.exp(-z))) < 1e-13
    assert error(final, state) < 1e-13


@each_function
def test_packed_sequences_are_separate_calls_with_their_gradients(function: Any) -> None:
    given, fixed = operands("exp", ("cu_seqlens", "skip"))
    packed = evaluate(partial(function, **fixed), given)

    def apart(**leaves: Any) -> tuple[Tensor, Tensor]:
        outputs, states = [], []
        for i, (first, end) in enumerate(pairwise(bounds().tolist())):
            states.append(leaves["initial_state"][i : i + 1])
            if first < end:
                part = {n: leaves[n][:, first:end] for n in ("x", "delta", "k", "q")}
                output, states[i] = function(**{**leaves, **part, "initial_state": states[i]})
                outputs.append(output)
        return torch.cat(outputs, dim=1), torch.cat(states)

    for (name, value, _), (_, other, _) in zip(packed.items(), evaluate(apart, given).items(), strict=True):
        assert error(value, other) < 1e-11, name
    assert torch.equal(packed.final_state[1], given["initial_state"][1])


@each_function
def test_without_states_each_packed_sequence_begins_with_none(function: Any) -> None:
    given, fixed = operands("exp", ("cu_seqlens",))
    zeros = {**given, "initial_state": torch.zeros_like(given["initial_state"])}
    for got, want in zip(
        function(**{**given, "initial_state": None}, **fixed), function(**zeros, **fixed), strict=True
    ):
        assert got.shape == want.shape and torch.equal(got, want)


def test_gradcheck_of_the_definition_with_all_options() -> None:
    given, fixed = operands("exp", CASES["all"])
    names = [name for name, value in given.items() if isinstance(value, Tensor)]

    def function(*values: Tensor) -> Any:
        return RECURRENCE.definition(**{**given, **dict(zip(names, values, strict=True))}, **fixed)

    assert torch.autograd.gradcheck(function, [given[name] for name in names], fast_mode=True)


@each_function
def test_softplus_keeps_the_digits_of_tiny_and_large_steps(function: Any) -> None:
    raw = torch.tensor([-40.0, -12.0, -1e-3, 0.0, 3.0, 50.0], dtype=torch.float64).view(1, 1, 6)
    ones = torch.ones(1, 1, 1, dtype=torch.float64)
    A = torch.zeros(6, 1, dtype=torch.float64)
    _, final = function(torch.ones_like(raw), raw, ones, ones, A, delta_softplus=True)
    assert torch.allclose(
        final.flatten(), functional.softplus(raw.flatten(), threshold=60), rtol=1e-14, atol=0
    )


def test_the_span_and_the_cost_know_the_options() -> None:
    given, fixed = operands("exp", ("delta_bias", "delta_softplus"))
    step = functional.softplus(given["delta"] + given["delta_bias"]).detach()
    want = (step.sum(1).unsqueeze(-1) * -given["A"].detach()).max().item()
    assert RECURRENCE.decay_span({**given, **fixed}) == pytest.approx(want)
    specs = {n: Spec(tuple(v.shape), 4) for n, v in given.items() if isinstance(v, Tensor)}
    gated = specs | {"output_gate": specs["x"]}
    more = RECURRENCE.cost(SHAPE, gated, "forward").bytes - RECURRENCE.cost(SHAPE, specs, "forward").bytes
    assert more == specs["x"].nbytes


WRONG: dict[str, tuple[Operands, str]] = {
    "shape of skip": ({"skip": torch.ones(3)}, r"skip must be \(5,\), got \(3,\)"),
    "shape of the gate": ({"output_gate": torch.ones(1, 21, 3)}, r"output_gate must be \(1, 21, 5\)"),
    "shape of the bias": ({"delta_bias": torch.ones(1, 5)}, "delta_bias must be"),
    "complex skip": ({"skip": torch.ones(5, dtype=torch.complex64)}, "skip must be real"),
    "a bias of nothing": ({"delta": None, "gate": "const", "delta_bias": torch.ones(5)}, "need delta"),
    "a softplus of nothing": ({"delta": None, "gate": "const", "delta_softplus": True}, "need delta"),
    "floats": ({"cu_seqlens": torch.tensor([0.0, 21.0])}, "int32 or int64, got torch.float32"),
    "a matrix": ({"cu_seqlens": torch.tensor([[0, 21]])}, "a vector"),
    "no sequence": ({"cu_seqlens": torch.tensor([0])}, "begin with 0 and end with T = 21, got one number"),
    "a late start": ({"cu_seqlens": torch.tensor([1, 21])}, "got 1 and 21"),
    "an early end": ({"cu_seqlens": torch.tensor([0, 20])}, "end with T = 21, got 0 and 20"),
    "a decrease": ({"cu_seqlens": torch.tensor([0, 9, 8, 21])}, "must not decrease, got 9 before 8"),
    "too many states": (
        {"cu_seqlens": torch.tensor([0, 21]), "initial_state": torch.ones(2, 5, 3)},
        "one of each",
    ),
}


@pytest.mark.parametrize("case", WRONG)
@each_function
def test_an_option_that_means_nothing_is_refused(function: Any, case: str) -> None:
    wrong, message = WRONG[case]
    given = detached(sample(NAME, SHAPE.with_(B=1), kind="exp", dtype="float32"))
    with pytest.raises(UsageError, match=message):
        function(**{**given, **wrong})


@each_function
def test_sequences_are_packed_into_one_batch_element(function: Any) -> None:
    given = detached(sample(NAME, SHAPE, kind="exp", dtype="float32"))
    with pytest.raises(UsageError, match="one batch element, got B = 2"):
        function(**given, cu_seqlens=bounds())


def test_sums_of_logarithms_begin_anew_in_each_packed_sequence() -> None:
    """Joined by resets, 200 sequences have a span of 104 each, and logspace refused them (found by fuzz)."""
    lengths = [1] * 200
    given = sample(NAME, SHAPE.with_(B=1, T=sum(lengths)), kind="exp", dtype="float32")
    given["initial_state"] = None
    given["cu_seqlens"] = torch.arange(len(lengths) + 1)
    output, state = registry.backend(NAME, "logspace").function(**given)
    right, last = registry.recurrence(NAME).definition(**given)
    assert error(output, right) < 1e-5
    assert error(state, last) < 1e-5
