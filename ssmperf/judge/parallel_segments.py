"""A long literal loop whose segments run side by side, as the rows of one batch.

That needs each segment's initial state before the one to its left has run. Where a step is affine and
diagonal in the state, as most recurrences' are, a segment is so too: from any state it ends in
`ends + through · state`, and two runs of all segments give both. Newton's method on the states between
segments then leaves rounding alone, and the same holds of the adjoints. Nothing rests on that being so: a
result counts only if every segment ends where its right neighbour started, if what it gives back is what its
left neighbour was given, and if the first two, run in one go, give the same. Else segments run one by one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from ssmperf.judge.segments import (
    SEGMENT_BYTES,
    Definition,
    Gradients,
    OneByOne,
    Step,
)
from ssmperf.operands.dtypes import differentiable
from ssmperf.operands.time_axis import cut

SHORTEST = 16  # steps of a segment
FEWEST = 8  # segments that are worth it
RUNS = 3  # from states that are refined, before it is given up
# elements of a state up to which a step is the time of its launches, and rows beside it are free
SMALL_STATE = {"cuda": 2**20, "cpu": 2**11}


class Inseparable(Exception):
    """Segments side by side cannot be shown to be right."""


def segment_length(step: Step | None, length: int, device: torch.device) -> int | None:
    """Steps of each segment for a loop of some length, or None where the loop does not gain by it."""
    if step is None or step.elements > SMALL_STATE[device.type]:
        return None
    fitting = step.fit(memory(device))
    segment = max(SHORTEST, math.isqrt(length) // 2, math.ceil(length / fitting))
    return segment if length // segment >= FEWEST else None


def memory(device: torch.device) -> int:
    """Bytes that a group of segments may take: of a GPU's free memory a quarter, if that is more."""
    least = SEGMENT_BYTES[device.type]
    if device.type != "cuda":
        return least
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(least, (free + unused) // 4)


class SideBySide:
    """Segments as the rows of a batch and what remains after them, or all one by one where that is not right.

    timed: operands with a time axis (the second), of `length` steps. segment: steps of each row.
    """

    def __init__(
        self,
        definition: Definition,
        operands: Mapping[str, Any],
        timed: Collection[str],
        length: int,
        segment: int,
        step: Step,
    ) -> None:
        self.definition, self.operands, self.timed = definition, operands, timed
        self.segment, self.step = segment, step
        self.count, remaining = divmod(length, segment)
        self.whole = length - remaining
        self.batch = max(operands[name].shape[0] for name in timed)
        self.device = next(operands[name].device for name in timed)
        one = step.fit(SEGMENT_BYTES[self.device.type])
        self.alone = OneByOne(definition, operands, timed, length, one)
        rest = cut(operands, timed, self.whole, length)
        self.rest = OneByOne(definition, rest, timed, remaining, one) if remaining else None
        self.initial: Tensor | None = None
        self.states: Tensor | None = None  # (B, segments + 1, ...), None where segments run one by one
        self.scale: Tensor  # of each element of a state

    def forward(self, state: Tensor | None) -> tuple[Tensor, Tensor]:
        self.initial, self.states = state, None
        try:
            with torch.no_grad():
                output, self.states = self._forward(state)
        except Inseparable:
            self.states = None
        if self.states is None:
            return self.alone.forward(state)
        end = self.states[:, -1].clone()
        if self.rest is None:
            return output, end
        last, end = self.rest.forward(end)
        return torch.cat([output, last], dim=1), end

    def backward(self, grad_output: Tensor, adjoint: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        if self.states is not None:
            try:
                return self._backward(self.states, grad_output, adjoint)
            except Inseparable:
                self.states = None
            self.alone.forward(self.initial)
        return self.alone.backward(grad_output, adjoint)

    def _forward(self, state: Tensor | None) -> tuple[Tensor, Tensor]:
        two = 2 * self.segment
        by_itself, end = self.definition(**cut(self.operands, self.timed, 0, two), initial_state=state)
        begin = torch.zeros_like(end) if state is None else state
        if begin.shape != (self.batch, *end.shape[1:]) or begin.dtype != end.dtype:
            raise Inseparable("the initial state is no state of the loop")
        rows = self._rows(cut(self.operands, self.timed, 0, self.whole), self.count)
        zeros = begin.new_zeros(self.batch, self.count, *begin.shape[1:])
        _, ends = self._run(rows, zeros)
        largest = float(ends.abs().max())
        if not math.isfinite(largest):
            raise Inseparable("a segment overflows")
        unit = 2.0 ** math.frexp(largest)[1]  # as large as the states, so that rounding leaves all digits
        through = (self._run(rows, zeros + unit)[1] - ends) / unit
        starts = _fold(begin, through[:, :-1], ends[:, :-1])
        for run in range(RUNS):
            output, ends = self._run(rows, starts)
            gaps = ends[:, :-1] - starts[:, 1:]
            self.scale = ends.abs().amax(1, keepdim=True)
            if run and self._rounding(gaps, self.scale):
                break
            starts = starts + _fold(torch.zeros_like(begin), through[:, :-1], gaps)
        else:
            raise Inseparable("segments do not end where the next ones start")
        output = output.unflatten(0, (self.batch, self.count)).flatten(1, 2)
        same = self._rounding(ends[:, 1] - end, self.scale.squeeze(1)) and self._rounding(
            output[:, :two] - by_itself, output.abs().max()
        )
        if not same:  # it reads other rows or counts its steps, say
            raise Inseparable("the first two segments by themselves give something else")
        return output, torch.cat([starts, ends[:, -1:]], dim=1)

    def _backward(
        self, states: Tensor, grad_output: Tensor, adjoint: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        gradients = Gradients(self.timed)
        if self.rest is not None:
            found, back = self.rest.backward(grad_output[:, self.whole :], adjoint)
            assert back is not None
            gradients.add(found)
            adjoint = back
        group = max(1, self.step.fit(memory(self.device)) // self.segment)
        for last in range(self.count, 0, -group):
            first = max(0, last - group)
            found, adjoint = self._group(
                states[:, first : last + 1],
                cut(self.operands, self.timed, first * self.segment, last * self.segment),
                grad_output[:, first * self.segment : last * self.segment],
                adjoint,
            )
            gradients.add(found)
        return gradients.join(), None if self.initial is None else adjoint

    def _group(
        self, states: Tensor, operands: Mapping[str, Any], grad_output: Tensor, adjoint: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients of neighbouring segments, whose states are (B, segments + 1, ...), and the adjoint of the
        state before them."""
        count = states.shape[1] - 1
        leaves = {
            name: value.detach().requires_grad_() if differentiable(value) else value
            for name, value in operands.items()
        }
        begin = states[:, :-1].detach().requires_grad_()
        with torch.enable_grad():
            output, ends = self._run(self._rows(leaves, count), begin)
        if not self._rounding(ends.detach() - states[:, 1:], self.scale):
            raise Inseparable("segments do not end where the next ones start")
        wanted = {name: leaf for name, leaf in leaves.items() if differentiable(leaf)}
        arriving = grad_output.unflatten(1, (count, self.segment)).flatten(0, 1)
        local = _gradient([output], begin, [arriving])
        through = _gradient([ends], begin, [torch.ones_like(ends)]).flip(1)
        adjoints = _fold(adjoint, through, local.flip(1)).flip(1)
        # once more, for the rounding of sums as large as the loop's: it decides what else is right
        back = _gradient([output, ends], begin, [arriving, adjoints[:, 1:]])
        gaps = (back - adjoints[:, :-1]).flip(1)
        adjoints = adjoints + _fold(torch.zeros_like(adjoint), through, gaps).flip(1)
        *found, back = torch.autograd.grad(
            [output, ends],
            [*wanted.values(), begin],
            [arriving, adjoints[:, 1:]],
            allow_unused=True,
            materialize_grads=True,
        )
        if not self._rounding(back - adjoints[:, :-1], back.abs().max()):
            raise Inseparable("segments do not give back what the ones before them were given")
        return dict(zip(wanted, found, strict=True)), back[:, 0].clone()

    def _run(self, rows: Mapping[str, Any], starts: Tensor) -> tuple[Tensor, Tensor]:
        """Output (B · segments, steps, ...) and final states (B, segments, ...) of segments from states."""
        begin = starts.flatten(0, 1)
        try:
            output, ends = self.definition(**rows, initial_state=begin)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # if it is not that of the rows' shapes, one by one raises it too
            raise Inseparable("the loop does not take segments as rows") from error
        if ends.shape != begin.shape or output.shape[:2] != (len(begin), self.segment):
            raise Inseparable("the loop does not take segments as rows")
        return output, ends.unflatten(0, starts.shape[:2])

    def _rows(self, operands: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Operands of `count` segments as (B · count, steps, ...); what has no time is the same for each."""
        rows = dict(operands)
        for name, value in operands.items():
            if name in self.timed:
                if value.shape[0] not in (1, self.batch):
                    raise Inseparable(f"{name} has a batch of its own")
                whole = value.expand(self.batch, *value.shape[1:])
                rows[name] = whole.unflatten(1, (count, self.segment)).flatten(0, 1)
            elif isinstance(value, Tensor) and value.dim() >= 3 and value.shape[0] != 1:
                if value.shape[:2] != (self.batch, 1):
                    raise Inseparable(f"{name} has no batch and no time")
                rows[name] = value.expand(self.batch, count, *value.shape[2:]).flatten(0, 1).unsqueeze(1)
        return rows

    def _rounding(self, difference: Tensor, scale: Tensor) -> bool:
        """Whether a difference is what roundings in two runs of a segment make of values of some scale."""
        # as a random walk: over all segments it stays within 2 T ε, where ε T bounds the loop's own error
        limit = 8 * math.sqrt(self.segment) * torch.finfo(difference.dtype).eps
        return bool((difference.abs() <= limit * scale + torch.finfo(difference.dtype).tiny).all())


def _fold(first: Tensor, factors: Tensor, terms: Tensor) -> Tensor:
    """x_0 and x_{k+1} = factor_k ⊙ x_k + term_k, over axis 1 of all."""
    found = [first]
    for factor, term in zip(factors.unbind(1), terms.unbind(1), strict=True):
        found.append(torch.addcmul(term, factor, found[-1]))
    return torch.stack(found, dim=1)


def _gradient(results: list[Tensor], begin: Tensor, arriving: list[Tensor]) -> Tensor:
    """The gradient of the segments' initial states alone, which keeps the graph."""
    (found,) = torch.autograd.grad(
        results, [begin], arriving, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    assert isinstance(found, Tensor)
    return found
