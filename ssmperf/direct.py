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
    target = _targets.get((recurrence, backend))
    if target is None or target.state != registry.state():
        target = _targets[recurrence, backend] = Target(recurrence, backend)
    target.check(operands, options)
    return target.entry.function(*operands, **options)


class Target:
    """A backend as `compute` calls it, and the kinds of calls that it was found to take.

    Raises:
        Unsupported: the backend cannot be imported here.
        UnknownName: no such recurrence or backend.
    """

    def __init__(self, recurrence: str, backend: str) -> None:
        import torch

        problem = registry.import_problem(recurrence, backend)
        if problem:
            raise Unsupported(f"{recurrence}/{backend} {problem}")
        self.label = f"{recurrence}/{backend}"
        self.entry = registry.backend(recurrence, backend)
        self.definition = registry.recurrence(registry.recurrence_of(recurrence))
        self.state = registry.state()
        parameters = self.definition.signature.parameters.values()
        self.positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        self.defaults = {each.name: each.default for each in parameters}
        self.required = {each.name for each in parameters if each.default is each.empty}
        self.tensor = torch.Tensor
        self.taken: set[tuple[Any, ...]] = set()

    def check(self, operands: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Refuse operands that the recurrence does not define, and those that the backend does not take.

        Raises:
            Unsupported, UsageError: as `compute`.
        """
        bound = dict(zip(self.positional, operands, strict=False))
        named = len(bound) == len(operands) and bound.keys().isdisjoint(options)
        bound.update(options)
        if not (named and self.plain(bound)):
            bound = _bind(self.definition, operands, options)
        kind = self.kind(bound)
        if kind is None or kind not in self.taken:
            reason = _refusal(self.entry, self.definition, bound)
            if reason:
                raise Unsupported(f"{self.label} {reason}")
            if kind is not None:
                self.taken.add(kind)

    def plain(self, bound: Mapping[str, Any]) -> bool:
        """Whether operands by name are clearly valid; of any others `_bind` says whether they are."""
        if not (bound.keys() <= self.defaults.keys() and self.required <= bound.keys()):
            return False
        device = None
        for name, value in bound.items():
            if isinstance(value, self.tensor):
                if value.numel() == 0 or (device is not None and value.device != device):
                    return False
                device = value.device
            elif self.defaults[name] is inspect.Parameter.empty or (
                self.defaults[name] is None and value is not None
            ):
                return False
        return True

    def kind(self, bound: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """All that a refusal depends on; None on the CPU, where it depends on TRITON_INTERPRET too."""
        tensors = {name: value for name, value in bound.items() if isinstance(value, self.tensor)}
        device = next(iter(tensors.values())).device
        if device.type == "cpu":
            return None
        gates, lengths = self.entry.gates is not None, self.entry.lengths is not None
        return (
            device,
            self.definition.gate_kind(bound) if gates else None,
            tuple([value.shape for value in tensors.values()]) if lengths else None,
            *[(name, value.dtype) for name, value in tensors.items()],
        )


_targets: dict[tuple[str, str], Target] = {}


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
