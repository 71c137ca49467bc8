"""The part of a pass that is timed.

For a foreign package's kernel that is the kernel in its native form, without the preparation of its operands.
With `--timing end-to-end`, and for backends without a native form, it is the whole call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.cases.case import Case
from ssmperf.engine.operands.contract import ill_formed
from ssmperf.engine.operands.values import Values, call_of, specs
from ssmperf.engine.registry.cost import Spec
from ssmperf.engine.registry.declarations import Backend, Prepared
from ssmperf.errors import BrokenContract

Results = Mapping[str, Tensor | None]


@dataclass(frozen=True, slots=True)
class NativeStep:
    """A step around a native call, in one pass: the way there, and in passes with gradients the way back too.

    ready: brings about what the step needs, for the values as they are now, without taking the step itself.
    call: takes the step; takes no arguments.
    """

    ready: Callable[[], None]
    call: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class TimedPass:
    """A pass on some values.

    call: runs the pass; takes no arguments.
    touched: tensors that the pass reads and that may change between two calls.
    refresh: carries new contents of the values to what the call reads.
    results: turns what a call returned into results by name, for the values as they are now: `output` and
        `final_state`, or the gradients by operand (None where no gradient arrives). Raises BrokenContract.
    specs: specs by operand, for the cost; none is wider than the tensor that the call really reads.
    steps: what `call` leaves out of a native call, by name: `prepare` and `finish`; empty if it leaves out
        nothing.
    """

    call: Callable[[], Any]
    touched: Sequence[Tensor]
    refresh: Callable[[], None]
    results: Callable[[Any], Results]
    specs: Mapping[str, Spec]
    steps: Mapping[str, NativeStep] = field(default_factory=dict)


def pass_of(case: Case, backend: Backend, function: Callable[..., Any], values: Values) -> TimedPass:
    """Make the timed pass of a case, native or end to end as its `timing` says.

    function: takes the operands by name: the backend, or a block around it.
    """
    if backend.prepare is None or case.timing != "native" or case.level != "op":
        call = call_of(case.pass_, function, values)
        # a backward pass reads the tensors that its graph has saved, not the operands
        operands = () if case.pass_ == "backward" else values.tensors.values()

        def gradients(found: Any) -> Results:
            return dict(zip(values.varying, found, strict=True))

        results = gradients if case.gradients else _named
        return TimedPass(call, [*operands, values.grad_output], _nothing, results, specs(values.tensors))
    if not case.gradients:
        return _forward(backend, values)
    native = _Native(backend, values, ready=case.pass_ == "backward")
    touched = [] if case.pass_ == "backward" else _contiguous(native.operands)
    return TimedPass(
        native,
        [*touched, *native.incoming],
        native.refresh,
        native.gradients,
        _specs(values, native.operands),
        steps={"prepare": native.prepare_step(), "finish": native.finish_step()},
    )


def _named(result: Any) -> Results:
    """Name the results of a forward call. Raises BrokenContract."""
    problem = ill_formed(result)
    if problem:
        raise BrokenContract(problem)
    output, state = result
    return {"output": output} | ({} if state is None else {"final_state": state})


def _nothing() -> None:
    """Do nothing: the call reads the values themselves."""


def _forward(backend: Backend, values: Values) -> TimedPass:
    assert backend.prepare is not None and backend.native is not None
    prepare, native = backend.prepare, backend.native
    with torch.no_grad():
        held = prepare(**values.operands)
    finish = held.finish

    def forward() -> Any:
        with torch.no_grad():
            return native(*held.operands)

    def refresh() -> None:
        nonlocal finish
        with torch.no_grad():
            fresh = prepare(**values.operands)
            finish = fresh.finish
            _copy(held.operands, fresh.operands)

    def finished(raw: Any) -> Any:
        with torch.no_grad():
            return finish(raw)

    def prepared() -> Prepared:
        with torch.no_grad():
            return prepare(**values.operands)

    fresh: tuple[Callable[[Any], Any], Any] = (finish, None)

    def call_afresh() -> None:
        nonlocal fresh
        ready = prepared()
        with torch.no_grad():
            fresh = ready.finish, native(*ready.operands)

    def finish_afresh() -> Any:
        with torch.no_grad():
            return fresh[0](fresh[1])

    return TimedPass(
        forward,
        _contiguous(held.operands),
        refresh,
        lambda raw: _named(finished(raw)),
        _specs(values, held.operands),
        steps={"prepare": NativeStep(_nothing, prepared), "finish": NativeStep(call_afresh, finish_afresh)},
    )


class _Native:
    """Computes the gradients of the native operands from the gradients at the native results.

    The way back from the native results must be linear, as layouts and casts are: the gradients that arrive
    at them are made from the results for the first values.

    ready: whether the graph is made in advance; otherwise each call also runs the forward pass.
    """

    def __init__(self, backend: Backend, values: Values, *, ready: bool) -> None:
        assert backend.prepare is not None and backend.native is not None
        self._prepare, self._native, self._values = backend.prepare, backend.native, values
        self._ready = ready
        self._leaves = _leaves(values)
        self._prepared = self._prepare(**{**values.operands, **self._leaves})
        self.operands = tuple(_detached(each) for each in self._prepared.operands)
        self._inputs = [each for each in self.operands if _differentiable(each)]
        raw = self._native(*self.operands)
        end = _end_of(raw)
        self._ends = _ends_in(end)
        self._output, _ = self._prepared.finish(end)
        incoming = self._incoming_gradients()
        self._reached = [index for index, gradient in enumerate(incoming) if gradient is not None]
        self.incoming = [
            each.clone(memory_format=torch.contiguous_format) for each in _without_none(incoming)
        ]
        self._results = self._reached_of(raw) if ready else None

    def __call__(self) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the native operands; None where no gradient arrives."""
        ready = self._results is not None
        results = self._results if ready else self._reached_of(self._native(*self.operands))
        if not results:
            return (None,) * len(self._inputs)
        return torch.autograd.grad(
            results, self._inputs, self.incoming, retain_graph=ready, allow_unused=True
        )

    def prepare_step(self) -> NativeStep:
        """Make the step `prepare`: the operands with a graph, unless that is ready, and the way back."""
        found: tuple[Tensor | None, ...] = ()

        def ready() -> None:
            nonlocal found
            if self._ready:
                self.refresh()
            if self._ready or not found:  # the way back is linear, and the graph is fresh
                found = self()

        def call() -> Any:
            if self._ready:
                return self._back(self._leaves, self._prepared, found, retain_graph=True)
            return self.gradients(found)

        return NativeStep(ready, call)

    def finish_step(self) -> NativeStep:
        """Make the step `finish`: the results with a graph, unless that is ready, and the way back."""
        if self._ready:
            return NativeStep(_nothing, self._incoming_gradients)
        fresh: Any = None

        def ready() -> None:
            nonlocal fresh
            prepared = self._prepare(**{**self._values.operands, **_leaves(self._values)})
            raw = self._native(*map(_detached, prepared.operands))
            fresh = prepared.finish, _end_of(raw)

        def call() -> Any:
            finish, end = fresh
            output, _ = finish(end)
            ends = _ends_in(end)
            if ends and output.requires_grad:
                torch.autograd.grad(output, ends, self._values.grad_output, allow_unused=True)

        return NativeStep(ready, call)

    def refresh(self) -> None:
        """Carry the values to the native operands, unless a graph holds them, and to the native gradients."""
        if not self._ready:
            with torch.no_grad():
                _copy(self.operands, self._prepare(**self._values.operands).operands)
        with torch.no_grad():
            for held, fresh in zip(self.incoming, _without_none(self._incoming_gradients()), strict=True):
                held.copy_(fresh)

    def gradients(self, found: tuple[Tensor | None, ...]) -> Results:
        """Carry the gradients of the native operands back to the operands, for the values as they are now."""
        leaves = _leaves(self._values)
        prepared = self._prepare(**{**self._values.operands, **leaves})
        return self._back(leaves, prepared, found)

    @staticmethod
    def _back(
        leaves: Mapping[str, Tensor],
        prepared: Prepared,
        found: tuple[Tensor | None, ...],
        *,
        retain_graph: bool = False,
    ) -> Results:
        natives = [each for each in prepared.operands if _differentiable(each)]
        pairs = [pair for pair in zip(natives, found, strict=True) if pair[1] is not None]
        if not pairs:
            return dict.fromkeys(leaves)
        outputs, gradients = zip(*pairs, strict=True)
        back = torch.autograd.grad(
            outputs, list(leaves.values()), gradients, retain_graph=retain_graph, allow_unused=True
        )
        return dict(zip(leaves, back, strict=True))

    def _incoming_gradients(self) -> tuple[Tensor | None, ...]:
        """Carry the gradient at the output back to the native results."""
        if not self._ends or not self._output.requires_grad:
            return ()
        return torch.autograd.grad(
            self._output, self._ends, self._values.grad_output, retain_graph=True, allow_unused=True
        )

    def _reached_of(self, raw: Any) -> list[Tensor]:
        """List the native results that a gradient reaches."""
        whole = raw if isinstance(raw, (tuple, list)) else (raw,)
        results = [each for each in whole if _differentiable(each)]
        return [results[index] for index in self._reached]


def _copy(held: Sequence[Any], fresh: Sequence[Any]) -> None:
    """Copy fresh native operands into those that a call reads, in order."""
    for into, value in zip(held, fresh, strict=True):
        if isinstance(into, Tensor) and isinstance(value, Tensor):
            into.detach().copy_(value.detach())


def _without_none(gradients: Sequence[Tensor | None]) -> list[Tensor]:
    return [gradient for gradient in gradients if gradient is not None]


def _leaves(values: Values) -> dict[str, Tensor]:
    return {name: value.detach().requires_grad_() for name, value in values.varying.items()}


def _differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _detached(value: Any) -> Any:
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _end_of(raw: Any) -> Any:
    """Detach native results, so that a graph begins there."""
    if isinstance(raw, (tuple, list)):
        return tuple(_detached(each) for each in raw)
    return _detached(raw)


def _ends_in(end: Any) -> list[Tensor]:
    return [each for each in (end if isinstance(end, tuple) else (end,)) if _differentiable(each)]


def _contiguous(operands: Sequence[Any]) -> list[Tensor]:
    return [each for each in operands if isinstance(each, Tensor) and each.is_contiguous()]


def _specs(values: Values, operands: Sequence[Any]) -> dict[str, Spec]:
    """Make specs of the operands, none wider than the narrowest native operand.

    A native kernel may, for example, take gates in half precision.
    """
    widths = [
        each.dtype.to_real().itemsize if each.is_complex() else each.element_size()
        for each in operands
        if isinstance(each, Tensor)
    ]
    narrowest = min(widths, default=8)
    return {
        name: spec if spec.complex else replace(spec, itemsize=min(spec.itemsize, narrowest))
        for name, spec in specs(values.tensors).items()
    }
