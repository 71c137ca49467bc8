"""Variation: values for timed calls that never repeat, with answers that follow from two draws.

A timed call must not see values that an earlier call has seen: its answer could have been kept. But an
oracle for every timed call is too expensive. A recurrence is linear in some of its operands, and gradients
are linear in the gradient at the output. So each call gets a secret combination of two draws, and its answer
is the same combination of their answers. Where nothing is linear, the two draws are blended, at each time
step in one of two secret proportions; then the answers are only known to differ.

Draws are blended, rather than the items of a batch permuted, since a small batch has too few permutations.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.operands.calls.memory import held_by, write
from ssmperf.engine.operands.time_axis import with_time
from ssmperf.engine.operands.values import Values

BACKWARD, BOTH = "backward", "forward_backward"
LOG_GATE = "log_"  # how the names of gates begin
TURN = 256  # steps, by multiples of which gates are moved, so that parts of a kernel keep theirs
MOST_SEED = 2**62


@dataclass(frozen=True, slots=True)
class CallSecret:
    """The secret of one call.

    weights: of the first and the second base in the varied tensors. scale: of the gradient at the output
    where the operands are varied too. seed: of the proportions of a mixture; None for a combination.
    """

    weights: tuple[float, float] = (0.0, 1.0)
    scale: float = 1.0
    seed: int | None = None

    @property
    def answer(self) -> tuple[float, float]:
        """The weights of the bases' answers in the answer of a combination."""
        return self.weights[0] * self.scale, self.weights[1] * self.scale


FIRST, SECOND = CallSecret((1.0, 0.0)), CallSecret((0.0, 1.0))  # the bases


@dataclass(frozen=True, slots=True)
class Variation:
    """Makes the values of the calls of one pass from two draws of a case's values.

    linear: operands in all of which together the recurrence is linear; empty if it is not known to be.
    joint: operands that are legal only together.
    first: the draw that only lends its varied tensors. second: the draw that lends the others too.
    """

    pass_: str
    linear: tuple[str, ...]
    first: Values
    second: Values
    length: int
    joint: tuple[str, ...] = ()

    @classmethod
    def of(cls, case: Case, first: Values, second: Values, *, equivalent: bool) -> Variation:
        """Make the variation of a case's values.

        equivalent: whether the backend computes the recurrence, and not a function of its own.
        """
        recurrence = registry.recurrence(case.recurrence)
        names = linear_operands(recurrence.linear, level=case.level, equivalent=equivalent)
        return cls(case.pass_, names, first, second, case.shape["T"], recurrence.joint)

    @property
    def combines(self) -> bool:
        """Whether answers follow from those of the bases."""
        return self.pass_ == BACKWARD or bool(self._varied)

    @property
    def _varied(self) -> tuple[str, ...]:
        return tuple(name for name in self.linear if name in self.second.tensors)

    def draw(self, secret: random.Random, *, mixed: bool = False) -> CallSecret:
        """Draw a secret that no other call is likely to get.

        mixed: a mixture, even where answers combine.
        """
        if mixed or not self.combines:
            return CallSecret(seed=secret.randrange(MOST_SEED), scale=_signed(secret))
        if self.pass_ == BOTH:  # the gradients of linear operands ignore their values: weights add up to 1
            share = secret.uniform(-0.5, 1.5)
            return CallSecret((share, 1.0 - share), _signed(secret))
        return CallSecret((_signed(secret), _signed(secret)))

    def base(self) -> Values:
        """Make the values that belong to the first base."""
        if self.pass_ == BACKWARD:
            return replace(self.second, grad_output=self.first.grad_output)
        operands = {**self.second.operands, **{name: self.first.operands[name] for name in self._varied}}
        return replace(self.second, operands=operands)

    def values(self, drawn: CallSecret) -> Values:
        """Make the values of a call in new memory."""
        made = self.second.clone()
        self.write(drawn, made)
        return made

    def write(self, drawn: CallSecret, buffers: Values) -> None:
        """Write the values of a call into buffers that hold the second base, or those of another call.

        After a mixture, `restore` comes first.
        """
        with torch.no_grad():
            if drawn.seed is not None:
                self._mix(drawn, buffers)
            elif self.pass_ == BACKWARD:
                _combine(buffers.grad_output, self.first.grad_output, self.second.grad_output, drawn.weights)
            else:
                for name in self._varied:
                    pair = self.first.operands[name], self.second.operands[name]
                    _combine(buffers.operands[name], *pair, drawn.weights)
            if self.pass_ == BOTH:
                into, gradient = held_by(buffers.grad_output, self.second.grad_output)
                torch.mul(gradient, drawn.scale, out=into)

    def restore(self, buffers: Values) -> None:
        """Write the second base again, as far as a mixture has changed it."""
        if self.pass_ != BACKWARD:  # its operands are part of a graph, and never change
            for name in with_time(self.second.operands, self.length):
                write(self.second.operands[name], buffers.operands[name])

    def _mix(self, drawn: CallSecret, buffers: Values) -> None:
        """Blend the two bases, at each time step in one of two secret proportions; states in one of them.

        Joint operands are those of the base that has the larger proportion at the step. Where the times of
        mixtures and combinations are compared, gates are those of one base or the other in another order:
        kernels take more time where decay is strong, and a blend of two draws has less of that than either.
        """
        if self.pass_ == BACKWARD:
            pairs = [("", buffers.grad_output, self.first.grad_output, self.second.grad_output)]
        else:
            timed = sorted(with_time(self.second.operands, self.length))
            sources = (buffers, self.first, self.second)
            pairs = [(name, *(each.operands[name] for each in sources)) for name in timed]
            for name in set(self._varied) - set(timed):  # a state, which a combination has changed
                into, first, second = (each.operands[name] for each in sources)
                write(first * self._less(drawn) + second * (1 - self._less(drawn)), into)
        shares: dict[tuple[int, ...], Tensor] = {}
        assert drawn.seed is not None
        less = self._less(drawn)
        for name, into, first, second in pairs:
            if self.combines and name.startswith(LOG_GATE) and name not in self.joint:
                write(_shuffled(first, second, drawn.seed), into)
                continue
            shape = tuple(second.shape[:2])
            if shape not in shares:
                generator = torch.Generator().manual_seed(drawn.seed)
                heads = torch.rand(shape, generator=generator).lt(0.5)
                shares[shape] = torch.where(heads, less, 1 - less).to(second.device)
            share = shares[shape].view(*shape, *[1] * (second.dim() - 2)).to(second.dtype.to_real())
            share = share.round() if name in self.joint else share
            write(first * share + second * (1 - share), into)  # legal wherever both are: log gates stay ≤ 0

    @staticmethod
    def _less(drawn: CallSecret) -> float:
        """Get the smaller of a mixture's two proportions."""
        return random.Random(drawn.seed).uniform(0.05, 0.45)


def linear_operands(linear: tuple[str, ...], *, level: str, equivalent: bool) -> tuple[str, ...]:
    """Get the operands to combine: none for a layer, or for a function that is not the recurrence."""
    return linear if level == "op" and equivalent else ()


def _shuffled(first: Tensor, second: Tensor, seed: int) -> Tensor:
    """Make gates (B, T, heads or channels, …) of two draws: each turn of a head is one of either draw's.

    Both are moved round by secret amounts before, of time by whole turns, if at all.
    """
    secret = random.Random(f"gates of {seed}")
    B, T, *rest = second.shape
    turns = T // TURN if T % TURN == 0 else 1
    moved = []
    for gate in (first, second):
        shifts = [secret.randrange(B), TURN * secret.randrange(turns), *map(secret.randrange, rest[:1])]
        moved.append(torch.roll(gate, shifts, tuple(range(len(shifts)))))
    generator = torch.Generator().manual_seed(secret.randrange(MOST_SEED))
    heads = torch.rand((B, turns, *rest[:1]), generator=generator).lt(0.5).to(second.device)
    heads = heads.repeat_interleave(T // turns, 1)
    one, other = moved
    return torch.where(heads.view(*heads.shape, *[1] * (second.dim() - heads.dim())), one, other)


def _combine(into: Tensor, first: Tensor, second: Tensor, weights: tuple[float, float]) -> None:
    into, first, second = held_by(into, first, second)
    torch.mul(first, weights[0], out=into)
    into.add_(second, alpha=weights[1])


def _signed(secret: random.Random) -> float:
    return secret.choice((-1, 1)) * secret.uniform(0.5, 1.5)


def as_json(drawn: CallSecret) -> dict[str, Any]:
    """Write a draw as plain data."""
    return {"weights": list(drawn.weights), "scale": drawn.scale, "seed": drawn.seed}


def from_json(data: Mapping[str, Any]) -> CallSecret:
    """Read the output of `as_json`."""
    first, second = data["weights"]
    return CallSecret((float(first), float(second)), float(data["scale"]), data["seed"])
