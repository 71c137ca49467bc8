"""Run the segments of a long literal loop in parallel, as the rows of one batch.

This needs the initial state of each segment before its left neighbour has run. If a step is affine and
diagonal in the state, as in most recurrences, then so is a segment: started from any state, it ends in
`offset + factor · state`. Two runs of all segments give offsets and factors, and an affine scan over the
segments gives their initial states. Newton's method then refines these until only rounding is left. The
adjoints between segments are found in the same way.

The parallel result does not rely on the steps being affine and diagonal. It is accepted only if neighbouring
segments agree on boundary states and adjoints, and if the first two segments, run as one, give the same.
Otherwise the segments run sequentially.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.judge.loops.recording import recordable
from ssmperf.engine.judge.loops.segments import (
    SEGMENT_BYTES,
    Definition,
    Gradients,
    Loop,
    LoopStep,
    sequential_segments,
)
from ssmperf.engine.operands.dtypes import differentiable

SHORTEST_SEGMENT = 16  # steps
FEWEST_SEGMENTS = 8  # with fewer, a batch does not pay
# Runs of the batch, to refine the initial states; then the segments run sequentially, which takes a GPU 20 s
# for a million steps. More runs follow if the remainder is a few roundings: sums of a million terms of one
# sign, in float32, need two more.
MOST_RUNS, MOST_RUNS_NEAR = 3, 8
NEAR = 8.0  # so many roundings are a few
# elements of a state up to which launches take most of a step's time, so that further rows are almost free
SMALL_STATE = {"cuda": 2**20, "cpu": 2**11}
SMALL_RECORDED = 2**17  # the same where sequential segments are recorded, so that launches take little time


class Inseparable(Exception):
    """The parallel result cannot be shown to be right."""


def segment_length(
    step: LoopStep | None, length: int, device: torch.device, definition: Definition | None = None
) -> int | None:
    """Choose the steps per segment for a loop of some length, or return None if the loop would not gain."""
    if step is None or step.grows:
        return None
    recorded = definition is not None and recordable(definition, device)
    if step.elements > (SMALL_RECORDED if recorded else SMALL_STATE[device.type]):
        return None
    fitting = step.fit(memory_budget(device))
    segment = max(SHORTEST_SEGMENT, math.isqrt(length) // 2, math.ceil(length / fitting))
    return segment if length // segment >= FEWEST_SEGMENTS else None


def memory_budget(device: torch.device) -> int:
    """Compute the bytes that a group of segments may take; on a GPU at least a quarter of the free memory."""
    least = SEGMENT_BYTES[device.type]
    if device.type != "cuda":
        return least
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(least, (free + unused) // 4)


class ParallelSegments:
    """Runs segments of equal length as the rows of a batch, and the remaining steps after them.

    If the parallel result is not accepted, all steps run in sequential segments.

    segment: steps per row.
    """

    def __init__(self, loop: Loop, segment: int, step: LoopStep) -> None:
        self.loop, self.segment, self.step = loop, segment, step
        self.count, remaining = divmod(loop.length, segment)
        self.parallel_length = loop.length - remaining
        self.batch = max(loop.operands[name].shape[0] for name in loop.timed)
        self.sequential = sequential_segments(loop, step)
        last = replace(loop, operands=loop.piece(self.parallel_length, loop.length), length=remaining)
        self.remainder = sequential_segments(last, step) if remaining else None
        self.initial: Tensor | None = None
        self.states: Tensor | None = None  # (B, segments + 1, ...); None if the segments run sequentially
        self.scale: Tensor  # magnitude of each element of a state

    def forward(self, state: Tensor | None) -> tuple[Tensor, Tensor]:
        self.initial, self.states = state, None
        try:
            with torch.no_grad():
                output, self.states = self._forward(state)
        except Inseparable:
            self.states = None
        if self.states is None:
            return self.sequential.forward(state)
        end = self.states[:, -1].clone()
        if self.remainder is None:
            return output, end
        last, end = self.remainder.forward(end)
        return torch.cat([output, last], dim=1), end

    def backward(self, grad_output: Tensor, adjoint: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        if self.states is not None:
            try:
                return self._backward(self.states, grad_output, adjoint)
            except Inseparable:
                self.states = None
            self.sequential.forward(self.initial)
        return self.sequential.backward(grad_output, adjoint)

    def _forward(self, state: Tensor | None) -> tuple[Tensor, Tensor]:
        two = 2 * self.segment
        first_two, end = self.loop.definition(**self.loop.piece(0, two), initial_state=state)
        begin = torch.zeros_like(end) if state is None else state
        if begin.shape != (self.batch, *end.shape[1:]) or begin.dtype != end.dtype:
            raise Inseparable("the initial state is no state of the loop")
        rows = self._rows(self.loop.piece(0, self.parallel_length), self.count)
        zeros = begin.new_zeros(self.batch, self.count, *begin.shape[1:])
        _, offsets = self._run(rows, zeros)
        largest = float(offsets.abs().max())
        if not math.isfinite(largest):
            raise Inseparable("a segment overflows")
        unit = 2.0 ** math.frexp(largest)[1]  # as large as the states, so that rounding leaves all digits
        factors = (self._run(rows, zeros + unit)[1] - offsets) / unit
        starts = _affine_scan(begin, factors[:, :-1], offsets[:, :-1])
        for run in range(MOST_RUNS_NEAR):
            output, ends = self._run(rows, starts)
            gaps = ends[:, :-1] - starts[:, 1:]
            self.scale = ends.abs().amax(1, keepdim=True)
            if run and self._only_rounding(gaps, self.scale):
                break
            if run >= MOST_RUNS - 1 and not self._only_rounding(gaps, NEAR * self.scale):
                raise Inseparable("segments do not end where the next ones start")
            starts = starts + _affine_scan(torch.zeros_like(begin), factors[:, :-1], gaps)
        else:
            raise Inseparable("segments do not end where the next ones start")
        output = output.unflatten(0, (self.batch, self.count)).flatten(1, 2)
        same = self._only_rounding(ends[:, 1] - end, self.scale.squeeze(1)) and self._only_rounding(
            output[:, :two] - first_two, output.abs().max()
        )
        if not same:  # for example because the loop reads other rows, or counts its steps
            raise Inseparable("the first two segments, run as one, give something else")
        return output, torch.cat([starts, ends[:, -1:]], dim=1)

    def _backward(
        self, states: Tensor, grad_output: Tensor, adjoint: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        gradients = Gradients(self.loop.timed)
        if self.remainder is not None:
            found, back = self.remainder.backward(grad_output[:, self.parallel_length :], adjoint)
            assert back is not None
            gradients.add(found)
            adjoint = back
        group = max(1, self.step.fit(memory_budget(self.loop.device)) // self.segment)
        for last in range(self.count, 0, -group):
            first = max(0, last - group)
            found, adjoint = self._backward_group(
                states[:, first : last + 1],
                self.loop.piece(first * self.segment, last * self.segment),
                grad_output[:, first * self.segment : last * self.segment],
                adjoint,
            )
            gradients.add(found)
        return gradients.join(), None if self.initial is None else adjoint

    def _backward_group(
        self, states: Tensor, operands: Mapping[str, Any], grad_output: Tensor, adjoint: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Run neighbouring segments backward.

        states: the states around the segments, (B, segments + 1, ...). adjoint: that of the last state.

        Returns:
            The gradients by operand name, and the adjoint of the first state.
        """
        count = states.shape[1] - 1
        leaves = {
            name: value.detach().requires_grad_() if differentiable(value) else value
            for name, value in operands.items()
        }
        begin = states[:, :-1].detach().requires_grad_()
        with torch.enable_grad():
            output, ends = self._run(self._rows(leaves, count), begin)
        if not self._only_rounding(ends.detach() - states[:, 1:], self.scale):
            raise Inseparable("segments do not end where the next ones start")
        differentiable_leaves = {name: leaf for name, leaf in leaves.items() if differentiable(leaf)}
        arriving = grad_output.unflatten(1, (count, self.segment)).flatten(0, 1)
        offsets = _gradient([output], begin, [arriving])
        factors = _gradient([ends], begin, [torch.ones_like(ends)]).flip(1)
        adjoints = _affine_scan(adjoint, factors, offsets.flip(1)).flip(1)
        # Refine once. The rounding errors are then as large as those of the sequential loop, which matters
        # because tolerances are derived from the error of a low-precision evaluation.
        back = _gradient([output, ends], begin, [arriving, adjoints[:, 1:]])
        gaps = (back - adjoints[:, :-1]).flip(1)
        adjoints = adjoints + _affine_scan(torch.zeros_like(adjoint), factors, gaps).flip(1)
        *found, back = torch.autograd.grad(
            [output, ends],
            [*differentiable_leaves.values(), begin],
            [arriving, adjoints[:, 1:]],
            allow_unused=True,
            materialize_grads=True,
        )
        if not self._only_rounding(back - adjoints[:, :-1], back.abs().max()):
            raise Inseparable("segments do not return the adjoints that their left neighbours were given")
        return dict(zip(differentiable_leaves, found, strict=True)), back[:, 0].clone()

    def _run(self, rows: Mapping[str, Any], starts: Tensor) -> tuple[Tensor, Tensor]:
        """Run all rows from their initial states.

        Returns:
            The output (B · segments, steps, ...) and the final states (B, segments, ...).
        """
        begin = starts.flatten(0, 1)
        try:
            output, ends = self.loop.definition(**rows, initial_state=begin)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # if the rows' shapes are not its cause, the sequential run raises it too
            raise Inseparable("the loop does not take segments as rows") from error
        if ends.shape != begin.shape or output.shape[:2] != (len(begin), self.segment):
            raise Inseparable("the loop does not take segments as rows")
        return output, ends.unflatten(0, starts.shape[:2])

    def _rows(self, operands: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Cut operands into `count` rows per batch item, (B · count, steps, ...).

        An operand without a time axis is repeated for every row.
        """
        rows = dict(operands)
        for name, value in operands.items():
            if name in self.loop.timed:
                if value.shape[0] not in (1, self.batch):
                    raise Inseparable(f"{name} has a batch of its own")
                whole = value.expand(self.batch, *value.shape[1:])
                rows[name] = whole.unflatten(1, (count, self.segment)).flatten(0, 1)
            elif isinstance(value, Tensor) and value.dim() >= 3 and value.shape[0] != 1:
                if value.shape[:2] != (self.batch, 1):
                    raise Inseparable(f"{name} has no batch and no time")
                rows[name] = value.expand(self.batch, count, *value.shape[2:]).flatten(0, 1).unsqueeze(1)
        return rows

    def _only_rounding(self, difference: Tensor, scale: Tensor) -> bool:
        """Tell whether rounding in two runs of a segment explains a difference.

        scale: magnitude of the values that differ.
        """
        # Rounding errors grow as a random walk. Over all segments this limit adds up to at most 2 T ε, where
        # T ε bounds the error of the loop itself.
        limit = 8 * math.sqrt(self.segment) * torch.finfo(difference.dtype).eps
        return bool((difference.abs() <= limit * scale + torch.finfo(difference.dtype).tiny).all())


def _affine_scan(first: Tensor, factors: Tensor, offsets: Tensor) -> Tensor:
    """Compute all x_{k+1} = factor_k ⊙ x_k + offset_k along axis 1, including x_0 = first."""
    states = [first]
    for factor, offset in zip(factors.unbind(1), offsets.unbind(1), strict=True):
        states.append(torch.addcmul(offset, factor, states[-1]))
    return torch.stack(states, dim=1)


def _gradient(results: list[Tensor], begin: Tensor, arriving: list[Tensor]) -> Tensor:
    """Compute the gradient of the segments' initial states alone, keeping the graph."""
    (found,) = torch.autograd.grad(
        results, [begin], arriving, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    assert isinstance(found, Tensor)
    return found
