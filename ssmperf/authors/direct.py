"""Call one backend directly from Python."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.pattern import fitted, misfit
from ssmperf.engine.registry.declarations import PACKED, Backend, Recurrence
from ssmperf.errors import BrokenContract, Unsupported, UsageError

MOST_EXAMINED = 256  # kinds of calls of one backend that are remembered


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
        UsageError: an operand is missing, unknown, empty or no tensor, has a shape that the recurrence does
            not define, or is a log gate above 0. Gates on a GPU are read at the first call on such shapes
            only, since that waits for the GPU.
        BrokenContract: the result has another form, shape, dtype or device than the recurrence says.
    """
    target = _targets.get((recurrence, backend))
    if target is None or target.state != registry.state():
        target = _targets[recurrence, backend] = Target(recurrence, backend)
    expected = target.check(operands, options)
    result = target.entry.function(*operands, **options)
    target.check_result(result, expected, (*operands, *options.values()))
    return result


@dataclass(frozen=True, slots=True)
class Expected:
    """The required result of a call on operands of some shapes and dtypes.

    contract: a `Contract`, or None where no definition says so.
    device: of the operands, and so of the results.
    summary: the `_summary` of a result that fulfils the contract; None if it does not determine one.
    """

    contract: Any
    device: Any
    summary: tuple[Any, ...] | None = None


class Target:
    """A backend as `compute` calls it, and the kinds of calls that it was found to take.

    taken: kinds of calls that the backend does not refuse. examined: required results by shapes and dtypes
        of the operands; only operands of right shapes have an entry.

    Raises:
        Unsupported: the backend cannot be imported here.
        UnknownName: no such recurrence or backend.
    """

    def __init__(self, recurrence: str, backend: str) -> None:
        import torch

        from ssmperf.engine.operands.contract import ill_formed, malformed

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
        self.examined: dict[tuple[Any, ...], Expected] = {}
        self.malformed, self.ill_formed, self.recording = malformed, ill_formed, torch.is_grad_enabled
        self.log_gates = [name for name in self.definition.gates if name.startswith("log_")]
        self.differentiable = "backward" in self.entry.passes

    def check(self, operands: Sequence[Any], options: Mapping[str, Any]) -> Expected:
        """Refuse operands that the recurrence does not define, and those that the backend does not take.

        Returns:
            What the call must return.

        Raises:
            Unsupported, UsageError: as `compute`.
        """
        bound = dict(zip(self.positional, operands, strict=False))
        named = len(bound) == len(operands) and bound.keys().isdisjoint(options)
        bound.update(options)
        key = self.key(bound) if named else None
        expected = None if key is None else self.examined.get(key)
        if expected is not None and expected.device.type != "cpu":
            return expected
        if not (named and self.plain(bound)):
            bound = _bind(self.definition, operands, options)
            key = self.key(bound)
        kind = self.kind(bound)
        if kind is None or kind not in self.taken:
            reason = _refusal(self.entry, self.definition, bound)
            if reason:
                raise Unsupported(f"{self.label} {reason}")
            if kind is not None:
                self.taken.add(kind)
        if expected is None:
            self.check_shapes(bound)
        self.check_gates(bound)  # before the call counts as examined
        return expected or self.examine(key, bound)

    def key(self, bound: Mapping[str, Any]) -> tuple[Any, ...]:
        """Give the key of a call in `examined`: all that its checks depend on, but for gates' values."""
        parts: list[Any] = []
        for name, value in bound.items():
            if isinstance(value, self.tensor):
                parts += (name, value.shape, value.dtype, value.device)
            else:
                parts += (name, repr(value))
        return tuple(parts)

    def check_shapes(self, bound: Mapping[str, Any]) -> None:
        """Raise UsageError for an operand of a shape that the recurrence does not define."""
        shapes = {name: value.shape for name, value in bound.items() if isinstance(value, self.tensor)}
        problem = misfit(self.definition.operand_shapes, shapes)
        if problem:
            raise UsageError(f"{self.definition.name}: {problem}")

    def examine(self, key: tuple[Any, ...] | None, bound: Mapping[str, Any]) -> Expected:
        """Find the required result of a call, and remember it under its key."""
        expected = _expected(self.entry, self.definition, bound)
        if key is not None:
            if len(self.examined) >= MOST_EXAMINED:
                self.examined.clear()
            self.examined[key] = expected
        return expected

    def check_gates(self, bound: Mapping[str, Any]) -> None:
        """Raise UsageError for a log gate above 0."""
        for name in self.log_gates:
            value = bound.get(name)
            if value is None or not _readable(value):
                continue
            largest = float(value.detach().max())
            if largest > 0:
                raise UsageError(
                    f"{self.definition.name}: {name} is up to {largest:.3g}, must be ≤ 0: gates are given as "
                    f"logs, so a gate of 0.9 is log(0.9) = -0.105"
                )

    def check_result(self, result: Any, expected: Expected, bound: Iterable[Any]) -> None:
        """Raise BrokenContract for a result that is not as expected.

        bound: the operands; where one asks for a gradient, the output must have a graph.
        """
        if expected.summary is None or _summary(result, self.tensor) != expected.summary:
            contract = expected.contract
            problem = (
                self.ill_formed(result)
                if contract is None
                else self.malformed(result, contract, expected.device, plain=False)
            )
            if problem:
                raise BrokenContract(f"{self.label}: {problem}")
        if result[0].requires_grad or not (self.differentiable and self.recording()):
            return
        if any(isinstance(value, self.tensor) and value.requires_grad for value in bound):
            problem = "output has no graph (requires_grad is False), so no gradient reaches the operands"
            raise BrokenContract(f"{self.label}: {problem}")

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
        gates, sizes = self.entry.gates is not None, self.entry.lengths is not None or self.entry.sizes
        return (
            device,
            self.definition.gate_kind(bound) if gates else None,
            tuple([value.shape for value in tensors.values()]) if sizes else None,
            *[(name, value.dtype) for name, value in tensors.items()],
        )


_targets: dict[tuple[str, str], Target] = {}


def _expected(entry: Backend, definition: Recurrence, bound: Mapping[str, Any]) -> Expected:
    """Find the required result of a call from the first step of the definition."""
    import torch

    from ssmperf.engine.operands.contract import Contract
    from ssmperf.engine.operands.time_axis import length_of
    from ssmperf.engine.operands.values import contract

    tensors = {name: value for name, value in bound.items() if isinstance(value, torch.Tensor)}
    device = next(iter(tensors.values())).device
    function = definition.definition if entry.equivalent else entry.definition
    if function is None or not any(value.dim() >= 3 for value in tensors.values()):
        return Expected(None, device)
    taken = inspect.signature(function).parameters  # a definition of another function may take fewer
    kept = {
        name: value.detach() if isinstance(value, torch.Tensor) else value
        for name, value in bound.items()
        if name in taken or name == PACKED
    }
    length = length_of(kept)
    with torch.no_grad():
        output, state = contract(function, kept, length)
    shape = (output.shape[0], length, *output.shape[2:])
    if state is None:
        return Expected(
            Contract(shape, output.dtype, None, None), device, (shape, output.dtype, device, None)
        )
    agreed = Contract(shape, output.dtype, tuple(state.shape), state.dtype)
    return Expected(agreed, device, (shape, output.dtype, device, (tuple(state.shape), state.dtype, device)))


def _summary(result: Any, tensor: type[Any]) -> tuple[Any, ...] | None:
    """Give shape, dtype and device of output and final state; None if they are not two tensors, or one."""
    if type(result) is not tuple or len(result) != 2:
        return None
    output, state = result
    if not isinstance(output, tensor):
        return None
    if state is None:
        return output.shape, output.dtype, output.device, None
    if not isinstance(state, tensor):
        return None
    return output.shape, output.dtype, output.device, (state.shape, state.dtype, state.device)


def _readable(value: Any) -> bool:
    """Tell whether a tensor's values can be read now: not those of meta tensors, in graphs, in transforms."""
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device.type == "meta":
        return False
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(value):
        return False
    return not (value.is_cuda and torch.cuda.is_current_stream_capturing())


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
        shape=_sizes(definition, tensors) if entry.sizes else None,
        capability=capability,
    )


def _sizes(definition: Recurrence, tensors: Mapping[str, Any]) -> dict[str, int]:
    """Find the sizes of a call's dimensions by their letters."""
    return fitted(definition.operand_shapes, {name: value.shape for name, value in tensors.items()})[0]


def _dtype_name(tensors: Sequence[Any]) -> str:
    """Name the narrowest real dtype among tensors, which the data path of a kernel must support."""
    names = {str(t.dtype.to_real() if t.is_complex() else t.dtype).removeprefix("torch.") for t in tensors}
    order = ("float16", "bfloat16", "float32", "float64")
    known = [name for name in order if name in names]
    return known[0] if known else next(iter(names))
