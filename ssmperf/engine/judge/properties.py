"""Properties that a backend must have beside its accuracy: those of docs/recurrences.md#properties.

They are tested on float64 operands of a small shape, or float32 ones for a backend without float64. Each test
compares a backend with itself or with the definition, and applies only if the definition has the property.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case, split_source
from ssmperf.engine.cases.record import Status
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.judge.checked import Checked, DoesNotApply, each_part, worst
from ssmperf.engine.judge.reference import Reference, make_reference
from ssmperf.engine.judge.tolerance import (
    LINEAR_COMBINATION,
    TWO_RESULTS,
    relative_error,
    tolerance,
    within_float32,
)
from ssmperf.engine.judge.verdict import Verdict, judge_call
from ssmperf.engine.operands.dtypes import dtype_of
from ssmperf.engine.operands.subject import OperationSubject
from ssmperf.engine.operands.time_axis import has_time, laid_out, length_of, steps
from ssmperf.engine.operands.values import Values
from ssmperf.engine.registry.declarations import Backend, Recurrence
from ssmperf.errors import Unsupported

REGIMES = ("sigmoid", "reset", "s4d", "phase")  # in which they are checked
# The sizes differ, so that axes cannot be confused; there are several batch items and heads.
SIZES = {"B": 2, "C": 5, "H": 3, "K": 4, "V": 2, "D": 5, "N": 3, "S": 19}
LENGTHS = (1, 2, 3, 16, 17, 63, 64, 65)
LENGTH = 37
SPLITS = (1, 16, 20, 36)  # including the end of a chunk
CHANGED_FROM = (1, 16, 35)
RESET_AT = 11
DELAY = 3

Bound = Callable[[Any], float | None]


class Probe:
    """Operands of one source and the oracle's answers, shared by all backends that are tested on them."""

    def __init__(self, case: Case, dtype: str, device: str) -> None:
        shape = Shape({letter: min(SIZES.get(letter, size), size) for letter, size in case.shape.items()})
        shape = shape.with_(B=SIZES["B"])
        self.case = replace(case, shape=shape, dtype=dtype, gate_dtype=dtype)
        self.dtype = dtype_of(dtype)
        self.device = device
        self.recurrence: Recurrence = registry.recurrence(case.recurrence)
        self.values = cache(self._values)
        self.reference = cache(self._reference)

    def _values(self, T: int = LENGTH, number: int = 0) -> Values:
        return self._subject(T).values(number, with_state=True)

    def _reference(self, T: int = LENGTH, gradients: bool = True) -> Reference:
        return make_reference(
            self._subject(T), self.recurrence.definition, self.values(T), gradients=gradients
        )

    def _subject(self, T: int) -> OperationSubject:
        return OperationSubject(replace(self.case, shape=self.case.shape.with_(T=T)), self.device)

    def timed(self, name: str, T: int = LENGTH) -> bool:
        return has_time(name, self.values(T).operands[name], T)


@dataclass(frozen=True)
class ProbedOperands:
    """A backend on a probe's operands. bound: operands -> the error bound that it declares, or None."""

    backend: Backend
    probe: Probe
    bound: Bound

    @property
    def gradients(self) -> bool:
        return "forward_backward" in self.backend.passes

    @property
    def operands(self) -> dict[str, Any]:
        return dict(self.probe.values().operands)

    def forward(self, operands: Any) -> dict[str, Tensor]:
        """Compute output and final state by name, on operands in the case's layout."""
        operands = laid_out(operands, self.probe.case.layout, length_of(operands))
        with torch.no_grad():
            return results_of(self.backend.function(**operands))

    @cached_property
    def whole(self) -> dict[str, Tensor]:
        return self.forward(self.operands)

    def limit(self, *, gradient: bool = False) -> float:
        """Compute the largest allowed difference of two results that should agree."""
        low = self.probe.reference(LENGTH, self.gradients).low_errors
        worst = max(e for name, e in low.items() if (name not in ("output", "final_state")) == gradient)
        bound = self.bound(self.operands)
        return TWO_RESULTS * tolerance(worst, self.probe.dtype, gradient=gradient, bound=bound)


def has_properties(case: Case) -> bool:
    """Tell whether properties are checked: for a bare recurrence, in some regimes, not in half precision."""
    regime, _ = split_source(case.operand_source)
    precise = case.dtype in ("float32", "float64")
    return case.model is None and regime in REGIMES and precise and case.plain and not case.decodes


def widest(backend: Backend) -> str:
    """Name the dtype in which properties are checked."""
    return "float64" if "float64" in backend.dtypes else "float32"


def results_of(result: tuple[Tensor, Tensor | None]) -> dict[str, Tensor]:
    """Map the output, and the final state if there is one, to their names."""
    output, state = result
    return {"output": output, **({} if state is None else {"final_state": state})}


def check_properties(backend: Backend, probe: Probe, bound: Bound) -> Iterator[Checked]:
    """Test every property in turn; a property whose calls the backend refuses does not apply."""
    trial = ProbedOperands(backend, probe, bound)
    for name, measure in PROPERTIES.items():
        try:
            yield measure(trial)
        except (DoesNotApply, Unsupported) as error:
            yield Checked(name, reason=str(error))


def lengths(trial: ProbedOperands) -> Checked:
    """Test that outputs, states and gradients are right at many lengths, also around the sizes of tiles."""
    found = []
    for T, verdict in each_part(LENGTHS, lambda T: _judged_at(trial, T)):
        if verdict.status is not Status.OK:
            error = max(verdict.errors.values(), default=math.nan)
            reason = f"T = {T}: {verdict.reason}"
            if trial.probe.dtype is torch.float64 and within_float32(verdict.errors, verdict.tolerances):
                reason = "accurate to float32 only: declare dtypes"
            return Checked("lengths", error, None, reason, verdict.status)
        found += [(error, verdict.tolerances[name]) for name, error in verdict.errors.items()]
    return worst("lengths", found)


def _judged_at(trial: ProbedOperands, T: int) -> Verdict:
    """Judge one call of some length. Raises Unsupported where the backend refuses it."""
    refused = trial.backend.lengths(T) if trial.backend.lengths is not None else None
    if refused:
        raise Unsupported(refused)
    probe = trial.probe
    values = probe.values(T)
    return judge_call(
        trial.backend.function,
        values,
        probe.reference(T, trial.gradients),
        dtype=probe.dtype,
        gradients=trial.gradients,
        bound=trial.bound(values.operands),
        poison=False,
    )


def state_passing(trial: ProbedOperands) -> Checked:
    """Test that two runs, the second from the first's final state, equal one run, gradients included."""
    if not trial.probe.recurrence.has_state:
        raise DoesNotApply("the recurrence has no state")
    function, values = trial.backend.function, trial.probe.values()
    whole = evaluate(function, values, trial.gradients)

    def in_two(split: int, **operands: Any) -> tuple[Tensor, Tensor]:
        first, state = function(**steps(operands, 0, split, LENGTH))
        rest = {**steps(operands, split, LENGTH, LENGTH), "initial_state": state}
        second, state = function(**rest)
        return torch.cat([first, second], dim=1), state

    found: list[tuple[float, float]] = []
    for _, parts in each_part(
        SPLITS, lambda split: evaluate(partial(in_two, split), values, trial.gradients)
    ):
        found += differences(parts, whole, trial)
    return worst("state_passing", found)


def causality(trial: ProbedOperands) -> Checked:
    """Test that changing the inputs from some step on leaves all earlier outputs unchanged."""
    if trial.backend.causal == "none":
        raise DoesNotApply("it declares causal='none'")
    other = trial.probe.values(number=1).operands
    limit = 0.0 if trial.backend.causal == "bitwise" else trial.limit()
    found = []
    for step in CHANGED_FROM:
        changed = {
            name: torch.cat([value[:, :step], other[name][:, step:]], dim=1)
            if trial.probe.timed(name)
            else value
            for name, value in trial.operands.items()
        }
        after = trial.forward(changed)["output"][:, :step]
        found.append((relative_error(after, trial.whole["output"][:, :step]), limit))
    return worst("causality", found)


def prefix(trial: ProbedOperands) -> Checked:
    """Test that a shorter run gives the first outputs of the longer one."""
    short = trial.forward(steps(trial.operands, 0, 19, LENGTH))["output"]
    return worst("prefix", [(relative_error(short, trial.whole["output"][:, :19]), trial.limit())])


def batch_independence(trial: ProbedOperands) -> Checked:
    """Test that changing one batch item leaves the results of the others unchanged."""
    limit = 0.0 if trial.backend.batches == "bitwise" else trial.limit()
    other = trial.probe.values(number=1).operands
    changed = {
        name: torch.cat([value[:1], other[name][1:]])
        if name == "initial_state" or trial.probe.timed(name)
        else value
        for name, value in trial.operands.items()
    }
    after = trial.forward(changed)
    return worst(
        "batch_independence",
        [(relative_error(after[name][:1], value[:1]), limit) for name, value in trial.whole.items()],
    )


def determinism(trial: ProbedOperands) -> Checked:
    """Test that two runs give the same bits, gradients included."""
    if not trial.backend.deterministic:
        raise DoesNotApply("it declares deterministic=False")
    values = trial.probe.values()
    first, second = (evaluate(trial.backend.function, values, trial.gradients) for _ in range(2))
    return worst("determinism", [(relative_error(second[name], first[name]), 0.0) for name in first])


def linearity(trial: ProbedOperands) -> Checked:
    """Test that f(2x − 3y) = 2 f(x) − 3 f(y), for the output and the final state."""
    inputs = trial.probe.recurrence.linear
    if not inputs:
        raise DoesNotApply("the recurrence is linear in none of its operands")
    other = trial.probe.values(number=1).operands
    kept = {n: v for n, v in trial.operands.items() if n in inputs or n != "initial_state"}
    parts = [{**kept, **{name: of[name] for name in inputs}} for of in (kept, other)]
    mixed = {**kept, **{name: 2 * parts[0][name] - 3 * parts[1][name] for name in inputs}}
    one, two = (trial.forward(part) for part in parts)
    sums = {name: 2 * one[name] - 3 * two[name] for name in one}
    return worst(
        "linearity",
        [(e, LINEAR_COMBINATION * limit) for e, limit in differences(trial.forward(mixed), sums, trial)],
    )


def delay(trial: ProbedOperands) -> Checked:
    """Test that zeros before the inputs, without a state, delay the outputs and change nothing else."""
    if not trial.probe.recurrence.linear:
        raise DoesNotApply("zeros may change the state of a recurrence that is not linear")
    operands = {name: value for name, value in trial.operands.items() if name != "initial_state"}
    late = {
        name: torch.cat([torch.zeros_like(value[:, :DELAY]), value], dim=1)
        if trial.probe.timed(name)
        else value
        for name, value in operands.items()
    }
    delayed = trial.forward(late)
    delayed["output"] = delayed["output"][:, DELAY:]
    return worst("delay", differences(delayed, trial.forward(operands), trial))


def reset(trial: ProbedOperands) -> Checked:
    """Test that a gate of zero at one step makes all later results independent of earlier ones."""
    gates = [
        name for name in trial.probe.recurrence.gates if name.startswith("log_") and name in trial.operands
    ]
    timed = [name for name in gates if trial.probe.timed(name)]
    if not timed:
        raise DoesNotApply("no gate is given by its logarithm, step by step")
    operands = trial.operands
    for name in timed:
        operands[name] = operands[name].clone()
        operands[name][:, RESET_AT] = -math.inf
    fresh = steps(operands, RESET_AT, LENGTH, LENGTH)
    del fresh["initial_state"]

    def both(function: Callable[..., Any]) -> list[dict[str, Tensor]]:
        with torch.no_grad():
            after, alone = results_of(function(**operands)), results_of(function(**fresh))
        if "final_state" in alone and trial.probe.recurrence.grows:  # earlier rows do not count
            after["final_state"] = after["final_state"][:, -alone["final_state"].shape[1] :]
        # a recurrence that reads its state before updating it still sees the past in the step of the reset
        return [
            {**after, "output": after["output"][:, RESET_AT + 1 :]},
            {**alone, "output": alone["output"][:, 1:]},
        ]

    after, alone = both(trial.probe.recurrence.definition)
    if any(error > limit for error, limit in differences(after, alone, trial)):
        raise DoesNotApply("a gate of zero does not clear this recurrence's state")
    after, alone = both(trial.backend.function)
    return worst("reset", differences(after, alone, trial))


PROPERTIES: dict[str, Callable[[ProbedOperands], Checked]] = {
    function.__name__: function
    for function in (
        lengths,
        state_passing,
        causality,
        prefix,
        batch_independence,
        determinism,
        linearity,
        delay,
        reset,
    )
}


def evaluate(function: Callable[..., Any], values: Values, gradients: bool) -> dict[str, Tensor]:
    """Compute output, final state and, if requested, `gradient of NAME` for each tensor operand."""
    leaves = {name: value.detach().requires_grad_(gradients) for name, value in values.varying.items()}
    with torch.set_grad_enabled(gradients):
        found = results_of(function(**{**values.operands, **leaves}))
    if gradients:
        cotangents = {"output": values.grad_output, "final_state": values.grad_state}
        ends = [name for name, end in found.items() if end.requires_grad]
        by_leaf = torch.autograd.grad(
            [found[name] for name in ends],
            list(leaves.values()),
            [cotangents[name] for name in ends],
            allow_unused=True,
            materialize_grads=True,
        )
        gradient_of = {f"gradient of {n}": g for n, g in zip(leaves, by_leaf, strict=True)}
        found = {**{name: end.detach() for name, end in found.items()}, **gradient_of}
    return found


def differences(
    got: dict[str, Tensor], expected: dict[str, Tensor], trial: ProbedOperands
) -> Iterable[tuple[float, float]]:
    """List the error of each result with its limit."""
    return [
        (relative_error(got[name], expected[name]), trial.limit(gradient=name.startswith("gradient")))
        for name in expected
    ]
