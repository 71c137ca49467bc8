"""Run a literal loop in segments, one after another: the results of autograd, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ssmperf.engine.judge.loops.recording import GraphRecorder, Recorder, Repeated, Results, Work, recordable
from ssmperf.engine.operands.contract import TIME
from ssmperf.engine.operands.dtypes import differentiable
from ssmperf.engine.operands.time_axis import cut
from ssmperf.engine.operands.values import grows
from ssmperf.errors import UsageError

SEGMENT_BYTES = {"cuda": 4 * 2**30, "cpu": 2**28}
# A segment is run twice before it is replayed, and a replay has its own costs. The square root of the length
# is a compromise between the two.
LONGEST_RECORDED = 64  # steps of a segment that is recorded
FEWEST_RECORDED = 8  # segments
SLACK = 2  # memory of a graph with its backward pass, relative to the memory that the graph keeps

# operands by name -> output, final state (None where the recurrence has none)
Definition = Callable[..., tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Loop:
    """A definition and its operands.

    timed: names of the operands with a time axis (the second), which has `length` steps.
    """

    definition: Definition
    operands: Mapping[str, Any]
    timed: Collection[str]
    length: int

    @property
    def device(self) -> torch.device:
        """The device of the operands."""
        found: torch.device = next(self.operands[name].device for name in self.timed)
        return found

    def piece(self, start: int, end: int) -> dict[str, Any]:
        """Cut the operands to some steps."""
        return cut(self.operands, self.timed, start, end)


class Pass(Protocol):
    """A loop over its operands: first forward, then backward from the loss's gradients at both results."""

    def forward(self, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute output and final state from an initial state, without a graph."""

    def backward(self, grad_output: Tensor, adjoint: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        """Compute the gradients by operand name, and that of the initial state (None if it was None)."""


@dataclass(frozen=True, slots=True)
class LoopStep:
    """The cost of one step of a loop: elements of its state, and bytes that autograd keeps for the step.

    grows: whether the state has a row for every step before it; then this is the cost of the last step.
    """

    elements: int
    kept_bytes: int
    grows: bool = False

    def fit(self, available_bytes: int) -> int:
        """Count the steps that fit into some memory together with their backward pass; at least one."""
        return max(1, available_bytes // (SLACK * self.kept_bytes))


def measure_step(
    definition: Definition, operands: Mapping[str, Any], timed: Collection[str], state: Tensor | None
) -> LoopStep | None:
    """Measure the cost of a step on the first two steps, or return None if these cannot run on their own."""
    length = min(operands[name].shape[1] for name in timed)
    count = min(2, length)
    try:
        kept_bytes, after = _kept(definition, operands, timed, state, count)
        rows = 0 if state is None else state.shape[TIME]
        may_grow = count == 2 and after.dim() > TIME + 1 and after.shape[TIME] == rows + count
        if may_grow and grows(definition, {**operands, "initial_state": state}, length):
            # the last step keeps the most; tensors kept once for all steps are left out
            full = after.new_zeros(after.shape[0], rows + length - count, *after.shape[2:])
            of_one, of_two = (_kept(definition, operands, timed, full, steps)[0] for steps in (1, 2))
            return LoopStep(full.numel(), max(of_two - of_one, 1), grows=True)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, UsageError):
        return None
    state_bytes = after.numel() * after.element_size()
    return LoopStep(after.numel(), max(kept_bytes // count, state_bytes, 1))


def _kept(
    definition: Definition,
    operands: Mapping[str, Any],
    timed: Collection[str],
    state: Tensor | None,
    count: int,
) -> tuple[int, Tensor]:
    """Run the first steps; count the bytes that autograd keeps beside the operands, and give the state."""
    own = {value.untyped_storage().data_ptr() for value in operands.values() if isinstance(value, Tensor)}
    kept: dict[int, torch.UntypedStorage] = {}  # holds the storages, so that no address is used twice

    def keep(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage

    leaves = {
        name: value.detach().requires_grad_() if differentiable(value) else value
        for name, value in cut(operands, timed, 0, count).items()
    }
    begin = None if state is None else state.detach().requires_grad_()
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, _unpack):
        _, after = definition(**leaves, initial_state=begin)
    return sum(storage.nbytes() for storage in kept.values()), after.detach()


def _unpack(_: None) -> Tensor:
    raise AssertionError("this graph is never differentiated")


class Gradients:
    """Collects gradients by operand name, from the last segment to the first."""

    def __init__(self, timed: Collection[str]) -> None:
        self.timed = timed
        self.pieces: dict[str, list[Tensor]] = {}

    def add(self, found: Mapping[str, Tensor]) -> None:
        for name, gradient in found.items():
            if name in self.timed or name not in self.pieces:
                self.pieces.setdefault(name, []).append(gradient)
            else:
                self.pieces[name] = [self.pieces[name][0] + gradient]

    def join(self) -> dict[str, Tensor]:
        """Concatenate along time for operands that have a time axis, sum the others. Empties this object."""
        joined = {}
        for name in list(self.pieces):
            parts = self.pieces.pop(name)
            joined[name] = torch.cat(parts[::-1], dim=1) if len(parts) > 1 else parts[0]
        return joined


class SequentialSegments:
    """Runs the segments of a loop one after another.

    The forward pass runs without a graph and keeps the states between segments. The backward pass goes from
    the last segment to the first; each gets its initial state and the adjoint of its final state.

    segment: steps per segment; the last one may have fewer.
    recorder: how to record the work on a segment, to be repeated on the others; None does not record it.
    """

    def __init__(self, loop: Loop, segment: int, recorder: Recorder | None = None) -> None:
        self.loop, self.segment, self.recorder = loop, segment, recorder
        self.starts = range(0, loop.length, segment)
        self.states: list[Tensor | None] = []

    def forward(self, state: Tensor | None) -> tuple[Tensor, Tensor]:
        run = self._repeated(self._run)
        self.states = [state]
        outputs: list[Tensor] = []
        for start in self.starts:
            found = run({**self._piece(start), "initial_state": state})
            state = found["final_state"]
            outputs.append(found["output"])
            self.states.append(state)
        assert state is not None
        return torch.cat(outputs, dim=1), state

    def backward(self, grad_output: Tensor, adjoint: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        run = self._repeated(self._run_back)
        gradients = Gradients(self.loop.timed)
        back: Tensor | None = adjoint
        for start, begin in zip(reversed(self.starts), reversed(self.states[:-1]), strict=True):
            arriving = grad_output[:, start : start + self.segment]
            found = run({**self._piece(start), "initial_state": begin}, arriving, back)
            back = found.pop("initial_state", None)
            gradients.add(found)
        return gradients.join(), back

    def _piece(self, start: int) -> dict[str, Any]:
        return self.loop.piece(start, start + self.segment)

    def _repeated(self, work: Work) -> Work:
        return work if self.recorder is None else Repeated(work, self.recorder)

    def _run(self, operands: Mapping[str, Any]) -> Results:
        with torch.no_grad():
            output, final = self.loop.definition(**operands)
        return {"output": output, "final_state": final}

    def _run_back(self, operands: Mapping[str, Any], grad_output: Tensor, adjoint: Tensor) -> Results:
        """Compute a segment's gradients by name, including that of `initial_state` if it is a tensor."""
        leaves = {
            name: value.detach().requires_grad_() for name, value in operands.items() if differentiable(value)
        }
        with torch.enable_grad():
            output, final = self.loop.definition(**{**operands, **leaves})
        found = torch.autograd.grad(
            [output, final],
            list(leaves.values()),
            [grad_output, adjoint],
            allow_unused=True,
            materialize_grads=True,
        )
        return dict(zip(leaves, found, strict=True))


def sequential_segments(loop: Loop, step: LoopStep) -> SequentialSegments:
    """Choose how long sequential segments are, and whether one is recorded for all others."""
    fitting = step.fit(SEGMENT_BYTES[loop.device.type])
    recorded = min(fitting, LONGEST_RECORDED, math.isqrt(loop.length))
    short = loop.length // recorded < FEWEST_RECORDED
    if step.grows or short or not recordable(loop.definition, loop.device):
        return SequentialSegments(loop, fitting)
    recorder = GraphRecorder(loop.definition, loop.device, SLACK * step.kept_bytes * recorded)
    return SequentialSegments(loop, recorded, recorder)
