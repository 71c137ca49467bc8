"""Call one backend directly from Python."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ssmperf import registry
from ssmperf.errors import Unsupported, UsageError
from ssmperf.registry.declarations import Backend, Recurrence


def compute(recurrence: str, backend: str, *operands: Any, **options: Any) -> Any:
    """Call a backend directly: `compute("scan", "blelloch", log_a, b, phase=phase)`.

    Args:
        recurrence: a recurrence (or a model with backends of its own).
        backend: one of its backends.
        operands, options: the recurrence's operands, on CPU or GPU, in any dtype that the backend supports.

    Returns:
        (output, final_state), differentiable.

    Raises:
        Unsupported: the backend cannot compute this here; the message says why.
        UnknownName: there is no such recurrence or backend.
        UsageError: an operand is missing, unknown, empty or no tensor.
    """
    problem = registry.import_problem(recurrence, backend)
    if problem:
        raise Unsupported(f"{recurrence}/{backend} {problem}")
    entry = registry.backend(recurrence, backend)
    definition = registry.recurrence(registry.recurrence_of(recurrence))
    bound = _bind(definition, operands, options)
    reason = _refusal(entry, definition, bound)
    if reason:
        raise Unsupported(f"{recurrence}/{backend} {reason}")
    return entry.function(*operands, **options)


def _bind(definition: Recurrence, operands: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the operands and return them by name. A parameter with a default other than None is no tensor."""
    from torch import Tensor

    expected = ", ".join(map(_as_written, definition.signature.parameters.values()))
    try:
        bound = definition.signature.bind(*operands, **options).arguments
    except TypeError as error:
        raise UsageError(f"{definition.name}: {error} (its operands: {expected})") from error
    for name, value in bound.items():
        default = definition.signature.parameters[name].default
        if isinstance(value, Tensor):
            if value.numel() == 0:
                raise UsageError(f"{definition.name}: {name} is empty (its shape: {tuple(value.shape)})")
        elif default is inspect.Parameter.empty or (default is None and value is not None):
            problem = f"the operand {name} must be a tensor, got {type(value).__name__}"
            raise UsageError(f"{definition.name}: {problem} (its operands: {expected})")
    devices = sorted({str(value.device) for value in bound.values() if isinstance(value, Tensor)})
    if len(devices) > 1:
        raise UsageError(f"{definition.name}: the operands are on several devices: {', '.join(devices)}")
    return bound


def _as_written(parameter: inspect.Parameter) -> str:
    default = parameter.default
    return parameter.name if default is parameter.empty else f"{parameter.name}={default!r}"


def _refusal(entry: Backend, definition: Recurrence, bound: Mapping[str, Any]) -> str | None:
    import torch

    tensors = {name: value for name, value in bound.items() if isinstance(value, torch.Tensor)}
    gates = (*definition.gates, "initial_state")
    data = [value for name, value in tensors.items() if name not in gates] or list(tensors.values())
    device = data[0].device
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return entry.refusal(
        device=device.type,
        dtype=_dtype_name(data),
        gate_kind=definition.gate_kind(bound),
        length=next((int(value.shape[1]) for value in data if value.dim() >= 3), None),
        capability=capability,
    )


def _dtype_name(tensors: Sequence[Any]) -> str:
    """Name the narrowest real dtype among tensors, which the data path of a kernel must support."""
    names = {str(t.dtype.to_real() if t.is_complex() else t.dtype).removeprefix("torch.") for t in tensors}
    order = ("float16", "bfloat16", "float32", "float64")
    known = [name for name in order if name in names]
    return known[0] if known else next(iter(names))
