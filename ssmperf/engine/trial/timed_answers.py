"""The answer of every timed call is checked.

Each call gets values that no call had before it (operands/variation.py). Its result is copied by its
address, right behind the clock, into memory that the backend does not know: what would be computed at first
use is never computed. The copy is reduced to its dot product with a vector that is drawn then.

Where answers combine, half of the calls get combinations, whose products must be those of the bases combined.
Whoever sees through that could combine answers instead of computing them; so the other calls get mixtures,
one of each two, and if these take longer or shorter, the backend is wrong. The answers to mixtures must all
differ, and some are made again, outside the time, and must be the same: all of them where few calls are
timed, since chance could spare those that were left out. The memory that a timed call is likely to get is
filled with NaN before it, so that a call which does not write its result cannot return an earlier one's.

A result must be of plain tensors, and no mode of torch may have been left on. Judged in full are one untimed
call, and calls that are drawn over all timed ones after they were made, combinations and mixtures alike.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.cases.record import Status
from ssmperf.engine.judge.answer import Answer, no_gradient
from ssmperf.engine.judge.verdict import Verdict
from ssmperf.engine.measure.answers import copied, norm, raw_copy, tensors_of
from ssmperf.engine.measure.passes import TimedPass
from ssmperf.engine.operands.contract import Contract, malformed
from ssmperf.engine.operands.values import Values
from ssmperf.engine.operands.variation import FIRST, SECOND, CallSecret, Variation
from ssmperf.engine.trial.sums import Sums
from ssmperf.errors import BrokenContract

# How many times the error that an untimed call shows, in the norm, a product may be off. Products of rounding
# errors with random signs scatter like a normal distribution whose deviation is that norm.
MARGIN = 24.0
MEASURED = 48.0  # the same for an error that is measured, on one combination: others have larger ones
SURELY_OFF = 64  # numbers of which some are off by as much as usual; fewer may all be nearly right, by chance
FEW = 8  # calls on mixtures that are all repeated
REPEATED = 1  # of more than these
REPEATED_ALONE = 4  # the same where answers do not combine
KINDS = (True, False)  # of each two timed calls where answers combine: on a mixture or not, in random order
FEWEST_COMPARED = 3  # calls of either kind whose times are compared: of the fewest, seven, there are as many
MOST_APART = 1.7  # by which the lower quartile of one kind may exceed the upper quartile of the other
SURE = 1e-5  # probability below which that is no chance; which calls are of which kind is drawn at random
FULL = {True: 2, False: 3}  # timed calls judged in full, on mixtures and on combinations
FULL_ALONE = 3  # the same where answers do not combine
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack

Ask = Callable[[CallSecret, Answer], Verdict]


class TimedAnswers:
    """Observes the timed calls of one pass.

    ask: judges the answer to a draw.
    probe: the mixture for the untimed call where answers do not combine, the same for all backends.
    eps: distance of 1 from the next number in the case's dtype.
    bound: the error bound that the backend declares.
    contract: of a forward call's result; None for a pass that returns gradients.
    """

    def __init__(
        self,
        timed: TimedPass,
        buffers: Values,
        variation: Variation,
        ask: Ask,
        *,
        probe: CallSecret,
        eps: float,
        bound: float | None,
        contract: Contract | None = None,
    ) -> None:
        self.contract = contract
        self.timed, self.buffers, self.variation, self.ask = timed, buffers, variation, ask
        self.eps, self.bound = eps, bound or 0.0
        self.secret = random.SystemRandom()
        self.drawn = SECOND
        self.draws: list[CallSecret] = []
        self.probe = probe
        self._kinds: list[bool] = []  # of the calls that are left of a group
        self._kept: dict[bool, list[tuple[CallSecret, Any]]] = {True: [], False: []}  # by mixed or not
        self._seen = {True: 0, False: 0}
        self._modes = (0, 0)
        self.problem: str | None = None
        self.uneven: str | None = None  # a doubt that may be chance, and needs more calls
        self._sums: Sums | None = None
        self._limits: list[float] = []  # relative to the norms, by tensor

    @property
    def sums(self) -> Sums:
        """The products of the timed calls."""
        assert self._sums is not None, "`prepare` comes first"
        return self._sums

    def prepare(self) -> Verdict:
        """Call the pass, untimed, on a variation and on the bases; judge the variation's answer in full."""
        combines = self.variation.combines
        probe = self.variation.draw(self.secret) if combines else self.probe
        result = self._call(probe)
        verdict = self.ask(probe, self._answer(result))
        if verdict.status is not Status.OK:
            return verdict
        tensors = tensors_of(result)
        if not tensors:
            return Verdict(Status.WRONG, "the timed call returns no tensor")
        self._sums = Sums(tensors, self.secret)
        self._limits = [
            max(MARGIN * max(self._eps(tensor) / 4, self.bound), rounding)
            for rounding, tensor in zip(self.sums.roundings, tensors, strict=True)
        ]
        if combines:
            return self._calibrate(probe, [each.detach().clone() for each in tensors])
        return verdict

    def before(self, *, timed: bool) -> None:
        """Write fresh values for the next call."""
        if not timed:
            self._write(self.variation.draw(self.secret, mixed=self.secret.choice(KINDS)))
            return
        self._write(self.variation.draw(self.secret, mixed=self._is_mixed()))
        self._spoil()
        self._modes = _dispatch_modes(), _function_modes()

    def freshen(self) -> None:
        """Write fresh values that take as long to write each time."""
        self._write(self.variation.draw(self.secret))

    def after(self, result: Any) -> None:
        """Copy and reduce the result of a timed call; keep it, or not, by chance."""
        if (_dispatch_modes(), _function_modes()) != self._modes:
            self.problem = self.problem or "a timed call left a mode of torch on"
        elif any(type(each) is not Tensor for each in tensors_of(result)):
            self.problem = self.problem or "a timed call returned a tensor that is no plain torch.Tensor"
        if self.problem:
            return
        result = copied(result, raw_copy)
        tensors = tensors_of(result)
        if not self.sums.fits(tensors):
            self.problem = "a timed call returned other tensors than the untimed one"
            return
        self.sums.add(tensors, None if self.drawn.seed is not None else self.drawn.answer)
        self.draws.append(self.drawn)
        self._keep(result)

    def _keep(self, result: Any) -> None:
        """Keep results so that each timed call of a kind is as likely to be judged in full as any other."""
        mixed = self.drawn.seed is not None
        kept, most = self._kept[mixed], FULL[mixed] if self.variation.combines else FULL_ALONE
        self._seen[mixed] += 1
        place = self.secret.randrange(self._seen[mixed])
        if len(kept) < most:
            kept.append((self.drawn, result))
        elif place < most:
            kept[place] = self.drawn, result

    def verdict(self, seconds: Sequence[float]) -> Verdict:
        """Judge the timed calls. Where `uneven` is set afterwards, more calls are needed.

        seconds: how long the first of them took, in order.
        """
        if self.problem:
            return Verdict(Status.WRONG, self.problem)
        if not self.draws:
            return Verdict(Status.WRONG, "no timed call was seen")
        found = self.sums.products()
        problem = (
            self._unwritten(found)
            or self._deviating(found)
            or self._repeating(found)
            or self._combining(seconds)
        )
        if problem:
            return Verdict(Status.WRONG, problem)
        verdict = Verdict(Status.OK)
        for drawn, result in [*self._kept[True], *self._kept[False]]:
            self._write(drawn)  # inputs of the way back from a native answer
            verdict = self.ask(drawn, self._answer(result))
            if verdict.status is not Status.OK:
                break
        self._kept = {True: [], False: []}
        return verdict

    def _calibrate(self, probe: CallSecret, rest: list[Tensor]) -> Verdict:
        """Measure the results of the bases, and how exactly the probe's answer is their combination.

        rest: the probe's answer; what the bases explain of it is taken away here, in place of a copy.
        """
        weights = probe.answer
        wide = [each.to(torch.promote_types(each.dtype, torch.float32)) for each in rest]
        for base, weight in ((FIRST, weights[0]), (SECOND, weights[1])):
            tensors = [raw_copy(each.detach()) for each in tensors_of(self._call(base))]
            if not self.sums.fits(tensors):
                return Verdict(Status.WRONG, "two calls returned different tensors")
            wide = [left - weight * each for left, each in zip(wide, tensors, strict=True)]
            self.sums.add_base(tensors)
        scales = [self.sums.scale(at, weights) for at in range(len(wide))]
        errors = [norm(left) / scale if scale else 0.0 for left, scale in zip(wide, scales, strict=True)]
        for at, left in enumerate(wide):
            relative = max(errors) if left.numel() < SURELY_OFF else errors[at]
            self._limits[at] = max(self._limits[at], MEASURED * relative)
        return Verdict(Status.OK)

    def _spoil(self) -> None:
        """Fill the free memory that the next call is likely to get for its result with NaN.

        That is where the last result was, or where it was copied to.
        """
        device = self.buffers.grad_output.device
        likely = [each for each in self.sums.results if _has_nan(each.dtype)] * 2
        blocks = [torch.full_like(each, math.nan, device=device) for each in likely]
        del blocks

    def _unwritten(self, found: list[list[float]]) -> str | None:
        """Say which call's result is not finite, as memory is that it did not write, or return None."""
        for number, products in enumerate(found, start=1):
            if not all(map(math.isfinite, products)):
                return (
                    f"timed call {number} of {len(found)} left its result unwritten, at least in part, or it "
                    f"is not finite: a random sum over it is {products[0]:.6g}"
                )
        return None

    def _deviating(self, found: list[list[float]]) -> str | None:
        """Say which call's products are not the combination of those of the bases, or return None."""
        for index, wanted in self.sums.expected().items():
            weights = self.draws[index].answer
            for at, (product, expected) in enumerate(zip(found[index], wanted, strict=True)):
                limit = self._limits[at] * self.sums.scale(at, weights)
                if not abs(product - expected) <= limit:
                    return (
                        f"timed call {index + 1} of {len(found)} did not answer for its own values: a random "
                        f"sum over its result is {product:.6g}, must be {expected:.6g} within {limit:.2g}"
                    )
        return None

    def _repeating(self, found: list[list[float]]) -> str | None:
        """Say which two calls gave the same answer, or which gives another when repeated; else None."""
        seen: dict[tuple[float, ...], int] = {}
        sums = self.sums.alike()
        mixed = list(sums)
        alike: dict[int, tuple[int, int]] = {}  # two sums of float32 may be equal by chance
        for index, sum_ in sums.items():
            earlier = seen.setdefault(sum_, index)
            if earlier != index:
                alike |= dict.fromkeys((earlier, index), (earlier + 1, index + 1))
        count = REPEATED if self.variation.combines else REPEATED_ALONE
        repeated = self.secret.sample(mixed, len(mixed) if len(mixed) <= FEW else count)
        for index in dict.fromkeys([*list(alike)[:FEW], *repeated]):
            if self._repeats(index, found[index], after_another=index in alike):
                continue
            if index in alike:
                one, other = alike[index]
                return f"timed calls {one} and {other} gave the same answer to different values"
            return (
                f"timed call {index + 1} of {len(found)} gave another answer than an untimed call "
                "on the same values"
            )
        return None

    def _repeats(self, index: int, products: list[float], *, after_another: bool) -> bool:
        """Call the pass again, untimed, on the values of a call; tell whether the answer is the same.

        after_another: and before it on others: a backend that has returned its last answer may do so again.
        """
        if after_another:
            self._call(self.variation.draw(self.secret, mixed=True))
        tensors = [each.detach() for each in tensors_of(self._call(self.draws[index]))]
        return self.sums.fits(tensors) and all(
            abs(mine - product) <= limit * norm(tensor)
            for mine, product, limit, tensor in zip(
                self.sums.again(index, tensors), products, self._limits, tensors, strict=True
            )
        )

    def _combining(self, seconds: Sequence[float]) -> str | None:
        """Say that mixtures and combinations take different times, or return None.

        On a busy machine a few calls can differ as much by chance. Then `uneven` says so instead.
        """
        self.uneven = None
        times: dict[bool, list[float]] = {True: [], False: []}
        for drawn, each in zip(self.draws, seconds, strict=False):
            times[drawn.seed is not None].append(each)
        if min(map(len, times.values())) < FEWEST_COMPARED:
            return None
        mixed, combined = (statistics.quantiles(times[kind], n=4) for kind in (True, False))
        if mixed[0] <= MOST_APART * combined[2] and combined[0] <= MOST_APART * mixed[2]:
            return None
        problem = (
            f"calls on values that are no combination of others take {mixed[1] / combined[1]:.2g} times as "
            "long as the rest: it does not do the same work for both"
        )
        from scipy.stats import mannwhitneyu  # half a second, which few cases need

        if mannwhitneyu(times[True], times[False]).pvalue < SURE:
            return problem
        self.uneven = f"{problem}, or it is chance"
        return None

    def _is_mixed(self) -> bool:
        """Say whether the next timed call gets a mixture.

        By chance alone, few calls could nearly all be of one kind: nothing could be compared, and a backend
        that only combines would have the median of the combinations.
        """
        if not self.variation.combines:
            return True
        if not self._kinds:
            self._kinds = self.secret.sample(KINDS, len(KINDS))
        return self._kinds.pop()

    def _call(self, drawn: CallSecret) -> Any:
        self._write(drawn)
        return self.timed.call()

    def _write(self, drawn: CallSecret) -> None:
        if self.drawn.seed is not None and drawn.seed is None:
            self.variation.restore(self.buffers)
        self.drawn = drawn
        self.variation.write(drawn, self.buffers)
        self.timed.refresh()

    def _answer(self, result: Any) -> Answer:
        try:
            results: Mapping[str, Tensor | None] = self.timed.results(result)
        except BrokenContract as error:
            return Answer(problem=f"the timed call: {error}")
        if self.contract is not None:
            both = results.get("output"), results.get("final_state")
            problem = malformed(both, self.contract, self.buffers.grad_output.device)
            if problem:
                return Answer(problem=f"the timed call: {problem}")
        missing = [name for name, value in results.items() if value is None]
        if missing:
            return Answer(gradient_problem=no_gradient(missing))
        return Answer({name: value for name, value in results.items() if value is not None})

    def _eps(self, tensor: Tensor) -> float:
        return max(self.eps, torch.finfo(tensor.dtype).eps)


@dataclass(frozen=True, slots=True)
class FreshValues:
    """Observes calls whose answers are judged elsewhere: each gets values that no call had before it.

    ready: called when the values are written.
    """

    answers: TimedAnswers
    ready: Callable[[], None]

    def before(self, *, timed: bool) -> None:
        self.answers.before(timed=False)
        self.ready()

    def after(self, result: Any) -> None:
        """Leave the result alone."""


def _has_nan(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
