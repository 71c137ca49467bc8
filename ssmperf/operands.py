"""The operands of a case: a model's own parameterisation of embedded text, or a named gate regime."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from ssmperf import corpus, registry
from ssmperf.case import Case, Shape, split_source
from ssmperf.layer import Model
from ssmperf.recurrence import Recurrence

VOCABULARY = 256  # bytes


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a case's dtype name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def gate_dtype_of(case: Case) -> torch.dtype:
    """Gates are at least as wide as asked, and float64 in float64 cases."""
    return torch.float64 if case.dtype == "float64" else dtype_of(case.gate_dtype)


@functools.lru_cache(maxsize=2)
def build_model(name: str, shape: Shape, seed: int) -> Model:
    """A model with the parameters that this seed gives, the same on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = registry.model(name).cls(shape)
    assert isinstance(layer, Model)
    return layer.requires_grad_(False)


def embed_text(B: int, T: int, width: int, *, seed: int, draw: int = 0, device: str = "cpu") -> Tensor:
    """Text as (B, T, width) float32: each byte's row of a random standard-normal table."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(VOCABULARY, width, generator=generator, dtype=torch.float32).to(device)
    offset = 7919 * seed + 104729 * draw * B * T
    tokens = torch.frombuffer(bytearray(corpus.read(B * T, offset=offset)), dtype=torch.uint8)
    return table[tokens.to(device).long()].view(B, T, width)


def build(case: Case, *, draw: int = 0, device: str = "cpu") -> dict[str, Tensor | Any]:
    """Operands by name, of the case's dtypes and in its layout, leaves without gradients.

    draw: 0, 1, ... gives fresh values of the same distribution (the same parameters, other text).
    """
    recurrence = registry.recurrence(case.recurrence)
    if case.operand_source == "model" and case.model is not None:
        wide = _model_operands(case, draw, device)
    else:
        wide = _regime_operands(case, recurrence, draw, device)
    narrow = {
        name: _cast(name, value, case, recurrence)
        for name, value in wide.items()
        if value is not None or name in recurrence.required
    }
    return laid_out(narrow, case.layout, case.shape["T"])


def laid_out(operands: Mapping[str, Any], layout: str, T: int) -> dict[str, Any]:
    """Operands by name in a layout: with `time_last` those with a time axis have it innermost in memory."""
    if layout == "channels_last":
        return dict(operands)
    return {name: time_last(v) if has_time(name, v, T) else v for name, v in operands.items()}


def time_last(values: Tensor) -> Tensor:
    """The same (B, T, ...) with neighbouring steps next to one another in memory."""
    return values.movedim(1, -1).contiguous().movedim(-1, 1)


def initial_state(case: Case, operands: dict[str, Any], *, draw: int = 0, device: str = "cpu") -> Tensor:
    """A random initial state for a case's operands, the same for the same case and draw."""
    generator = torch.Generator(device).manual_seed(_seed(case, draw) + 1)
    return sample_state(registry.recurrence(case.recurrence), operands, generator, T=case.shape["T"])


def sample_state(
    recurrence: Recurrence, operands: Mapping[str, Any], generator: torch.Generator, *, T: int
) -> Tensor:
    """A random state of the dtype and shape that operands of length T give: standard normal, or as the
    recurrence samples it."""
    if recurrence.sample_state is not None:
        sampled: Tensor = recurrence.sample_state(operands, generator)
        return sampled
    _, state = recurrence.definition(**steps(operands, 0, 1, T))
    return torch.randn(state.shape, dtype=state.dtype, device=generator.device, generator=generator)


def steps(operands: Mapping[str, Any], start: int, stop: int, T: int) -> dict[str, Any]:
    """Operands by name, restricted to some of the T time steps."""
    return cut(operands, with_time(operands, T), start, stop)


def with_time(operands: Mapping[str, Any], T: int) -> frozenset[str]:
    """Names of the operands that have a time axis of length T."""
    return frozenset(name for name, value in operands.items() if has_time(name, value, T))


def cut(operands: Mapping[str, Any], timed: Collection[str], start: int, stop: int) -> dict[str, Any]:
    """Operands by name, those with a time axis restricted to some of its steps."""
    return {name: value[:, start:stop] if name in timed else value for name, value in operands.items()}


def has_time(name: str, value: Any, T: int) -> bool:
    """Whether an operand has a time axis (its second) of length T; a state has none, whatever its sizes."""
    return name != "initial_state" and isinstance(value, Tensor) and value.dim() >= 3 and value.shape[1] == T


def length_of(operands: Mapping[str, Any]) -> int:
    """T of operands by name: those of three dimensions or more have it second, or 1 where they broadcast."""
    return max(
        value.shape[1]
        for name, value in operands.items()
        if name != "initial_state" and isinstance(value, Tensor) and value.dim() >= 3
    )


def _model_operands(case: Case, draw: int, device: str) -> dict[str, Any]:
    assert case.model is not None
    layer = build_model(case.model, case.shape.with_(B=1, T=1), case.seed).to(device)
    x = embed_text(case.shape["B"], case.shape["T"], layer.width, seed=case.seed, draw=draw, device=device)
    with torch.no_grad():
        if case.dtype == "float64":
            return layer.double().operands(x.double())
        return layer.float().operands(x)


def _regime_operands(case: Case, recurrence: Recurrence, draw: int, device: str) -> dict[str, Any]:
    generator = torch.Generator(device).manual_seed(_seed(case, draw))
    regime, kind = split_source(case.operand_source)
    kind = registry.model(case.model).gate if case.model else kind
    options = {"gate_kind": kind} if kind else {}
    return recurrence.sample(case.shape, regime=regime, generator=generator, **options)


def _seed(case: Case, draw: int) -> int:
    return zlib.crc32(f"{case.operand_source} {case.seed} {draw}".encode())


def _cast(name: str, value: Any, case: Case, recurrence: Recurrence) -> Any:
    """Gates to the gate dtype; data to the dtype, or to the narrowest complex that torch has."""
    if not isinstance(value, Tensor):
        return value
    dtype = gate_dtype_of(case) if name in recurrence.gates else dtype_of(case.dtype)
    if value.is_complex():
        dtype = torch.promote_types(dtype, torch.float32).to_complex()
    return value.detach().to(dtype).contiguous().clone()
