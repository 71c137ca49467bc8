"""Build the operands of a case: a model's parameterisation of embedded text, or samples of a gate regime.

A model's log gates may be changed: no decay, more or less of it, or exact resets. Operands have specs: what a
kernel sees of them besides their values.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine import registry
from ssmperf.engine.cases.calls.call import parse
from ssmperf.engine.cases.case import MODEL, Case, decay_of, split_source
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.layers.model import Model
from ssmperf.engine.operands import corpus
from ssmperf.engine.operands.calls.forms import completed, in_memory
from ssmperf.engine.operands.decay import STEEP_AT, change_decay, check_range
from ssmperf.engine.operands.dtypes import differentiable, dtype_of, gate_dtype_of
from ssmperf.engine.operands.time_axis import laid_out, steps
from ssmperf.engine.operands.values import contract
from ssmperf.engine.plan.refusal import probes_decay
from ssmperf.engine.registry.declarations import Recurrence

VOCABULARY = 256  # the values of a byte
_B, _T = 2, 3  # of the draw whose specs stand for those of all batches and lengths


@functools.lru_cache(maxsize=2)
def build_model(name: str, shape: Shape, seed: int) -> Model:
    """Build a model whose parameters depend only on the seed, not on the device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = registry.model(name).cls(shape)
    assert isinstance(layer, Model)
    return layer.requires_grad_(False)


def embed_text(B: int, T: int, width: int, *, seed: int, draw: int = 0, device: str = "cpu") -> Tensor:
    """Embed text as (B, T, width) float32: each byte becomes a row of a standard-normal table.

    Neighbouring draws have different texts.
    """
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(VOCABULARY, width, generator=generator, dtype=torch.float32).to(device)
    tokens = torch.frombuffer(bytearray(_text(B * T, seed, draw)), dtype=torch.uint8)
    return table[tokens.to(device).long()].view(B, T, width)


def _text(length: int, seed: int, draw: int) -> bytes:
    """Read the text of a draw.

    A few bytes of two places are often the same, such as spaces. Timed calls mix two neighbouring draws, and
    would then all see the same values. So a draw of an odd number goes on to where its text is another one.
    """
    step = 104729 * length
    offset = 7919 * seed + step * draw
    text = corpus.read(length, offset=offset)
    if draw % 2 == 0:
        return text
    neighbours = [corpus.read(length, offset=offset + side) for side in (-step, step)]
    while text in neighbours:
        offset += 1
        text = corpus.read(length, offset=offset)
    return text


def build_operands(case: Case, *, draw: int = 0, device: str = "cpu") -> dict[str, Tensor | Any]:
    """Build a case's operands by name, in its dtypes and layout; they are leaves without gradients.

    draw: number of the draw; each gives fresh values of the same distribution (the same parameters, other
        text).
    """
    recurrence = registry.recurrence(case.recurrence)
    change = decay_of(case.operand_source)
    if case.model is not None and (case.operand_source == MODEL or change is not None):
        wide = _model_operands(case, draw, device)
        if change is not None:
            least = _built(case).least_log_gate
            if not probes_decay(case.suite):
                check_range(change, least)
            wide = change_decay(
                recurrence,
                registry.model(case.model).gate,
                wide,
                change,
                _seed(case, draw),
                least=least,
                start=functools.partial(_at_start, case.model, case.shape.with_(B=1, T=STEEP_AT), device),
            )
    else:
        wide = _regime_operands(case, recurrence, draw, device)
    wide = completed(case, recurrence, wide, _seed(case, draw))
    narrow = {
        name: _cast(name, value, case, recurrence)
        for name, value in wide.items()
        if value is not None or name in recurrence.required
    }
    return in_memory(laid_out(narrow, case.layout, case.shape["T"]), parse(case.call))


def initial_state(case: Case, operands: dict[str, Any], *, draw: int = 0, device: str = "cpu") -> Tensor:
    """Draw an initial state for a case's operands; the same case and draw give the same state."""
    generator = torch.Generator(device).manual_seed(_seed(case, draw) + 1)
    recurrence, T = registry.recurrence(case.recurrence), case.shape["T"]
    return sample_state(recurrence, operands, generator, T=T, past=case.shape.get("S"))


def sample_state(
    recurrence: Recurrence,
    operands: Mapping[str, Any],
    generator: torch.Generator,
    *,
    T: int,
    past: int | None = None,
) -> Tensor:
    """Draw a state with the dtype and shape of the final state that operands of length T give.

    It is standard normal unless the recurrence declares how to sample its states.

    past: the steps whose rows a state that grows has; T if None.
    """
    rows = T if past is None else past
    if recurrence.sample_state is not None:
        grown = {"rows": rows} if recurrence.grows else {}
        sampled: Tensor = recurrence.sample_state(operands, generator, **grown)
        return sampled
    _, state = contract(recurrence.definition, operands, T)
    size = (state.shape[0], rows, *state.shape[2:]) if recurrence.grows else state.shape
    return torch.randn(size, dtype=state.dtype, device=generator.device, generator=generator)


def _built(case: Case) -> Model:
    assert case.model is not None
    return build_model(case.model, case.shape.with_(B=1, T=1), case.seed)


@functools.lru_cache(maxsize=2)
def _at_start(model: str, shape: Shape, device: str) -> dict[str, Any]:
    """Build a model's gates in float32 as they are with seed 0."""
    case = Case("", registry.recurrence_of(model), "", shape, model)
    operands = _model_operands(case, 0, device)
    return {name: value for name, value in operands.items() if name.startswith("log_")}


def _model_operands(case: Case, draw: int, device: str) -> dict[str, Any]:
    layer = _built(case).to(device)
    B, T = case.shape["B"], case.shape["T"]
    x = embed_text(B, _tokens(layer, T), layer.width, seed=case.seed, draw=draw, device=device)
    with torch.no_grad():
        if case.dtype == "float64":
            return _first_steps(layer.double(), x.double(), T)
        return _first_steps(layer.float(), x, T)


def _tokens(layer: Model, T: int) -> int:
    """Count the tokens of which a layer makes T steps of its recurrence, or a few more."""
    return math.ceil(T / layer.steps_per_token)


def _first_steps(layer: Model, x: Tensor, T: int) -> dict[str, Any]:
    """Compute a layer's operands for its tokens, and leave the first T steps: T counts the recurrence's."""
    operands, made = layer.operands(x), x.shape[1] * layer.steps_per_token
    return operands if made == T else steps(operands, 0, T, made)


def _regime_operands(case: Case, recurrence: Recurrence, draw: int, device: str) -> dict[str, Any]:
    generator = torch.Generator(device).manual_seed(_seed(case, draw))
    regime, kind = split_source(case.operand_source)
    kind = registry.model(case.model).gate if case.model else kind
    options = {"gate_kind": kind} if kind else {}
    return recurrence.sample(case.shape, regime=regime, generator=generator, **options)


def _seed(case: Case, draw: int) -> int:
    return zlib.crc32(f"{case.operand_source} {case.seed} {draw}".encode())


def _cast(name: str, value: Any, case: Case, recurrence: Recurrence) -> Any:
    """Cast a gate to the gate dtype and data to the dtype; complex values to complex64 at least."""
    if not differentiable(value):
        return value
    dtype = gate_dtype_of(case) if name in recurrence.gates else dtype_of(case.dtype)
    if value.is_complex():
        dtype = torch.promote_types(dtype, torch.float32).to_complex()
    return value.detach().to(dtype).contiguous().clone()


def operand_specs(model: str, shape: Shape) -> Hashable:
    """Give the specs of a model's operands; models of one recurrence with equal ones are equal to a kernel.

    Batch and length do not matter. Values other than tensors, such as options of the recurrence, count too.
    """
    return _specs(model, shape.with_(B=1, T=1))


@functools.cache
def _specs(model: str, shape: Shape) -> Hashable:
    try:
        operands = _draw(model, shape, "meta")
    except RuntimeError:  # a model that looks at its values
        operands = _draw(model, shape, "cpu")
    return frozenset((name, _spec(value)) for name, value in operands.items() if value is not None)


def _draw(model: str, shape: Shape, device: str) -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]), torch.device(device), torch.no_grad():
        torch.manual_seed(0)
        layer = registry.model(model).cls(shape)
        operands = _first_steps(layer.float(), torch.randn(_B, _tokens(layer, _T), layer.width), _T)
    return operands


def _spec(value: Any) -> Hashable:
    return (tuple(value.shape), value.is_complex()) if isinstance(value, Tensor) else repr(value)
