"""What a worker lends to a suite: operands and oracles shared by neighbouring cases, device, settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ssmperf import registry
from ssmperf.case import Case
from ssmperf.command import repeating
from ssmperf.configurations import as_json, noted
from ssmperf.errors import Unsupported
from ssmperf.measure import verify
from ssmperf.measure.calls import call_of, function_of, lowered, refer, values_of
from ssmperf.measure.timing import Stopwatch, Timing
from ssmperf.measure.verify import Reference, Values, Verdict
from ssmperf.operands import dtype_of, length_of
from ssmperf.record import Record, Status
from ssmperf.recurrence import Backend, Recurrence
from ssmperf.roofline import Ceilings

# the log gates whose exponential just vanishes
VANISHING = {torch.float64: -746.0, torch.float32: -104.0, torch.bfloat16: -93.0, torch.float16: -18.0}
SEARCH_SHARE = 0.25  # of the longest time of a case: for each candidate of a search


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure a case, and with what precision to stop earlier.

    autotune: whether a case is timed with the configurations that a search finds, not with curated ones.
    """

    min_time_s: float = 0.02
    max_time_s: float = 0.25
    relative_width: float = 0.01
    autotune: bool = False


@dataclass
class Draw:
    """Values of a case, with references made when they are first needed."""

    values: Values
    references: dict[tuple[Callable[..., Any], bool], Reference] = field(default_factory=dict)


@dataclass
class Context:
    """Lent to `Suite.measure` by the worker that runs the case.

    device: torch device string, such as "cuda:1". env_id: the environment's id.
    announce: told "oracle" before a reference is made and "backend" after it: that time is not the backend's.
    say: told what a search for configurations tries.
    options: of the run, for the command that repeats a case.
    first_call_s: seconds of each backend's first call in this process, compilation included.
    """

    device: str
    env_id: str
    settings: Settings
    ceilings: Ceilings
    plugins: tuple[str, ...] = ()
    announce: Callable[[str], None] = lambda phase: None
    say: Callable[[str], None] = lambda text: None
    options: tuple[str, ...] = ()
    first_call_s: dict[tuple[object, ...], float] = field(default_factory=dict)
    _shared: dict[Hashable, Any] = field(default_factory=dict)
    _shared_by: tuple[object, ...] | None = None  # the operands of all that is in there
    _stopwatches: dict[str, Stopwatch] = field(default_factory=dict)

    def recurrence(self, case: Case) -> Recurrence:
        return registry.recurrence(case.recurrence)

    def backend(self, case: Case) -> Backend:
        return registry.backend(case.model or case.recurrence, case.backend)

    def function(self, case: Case) -> Callable[..., Any]:
        """What the case calls with its operands by name: the backend, or the block around it."""
        return function_of(case, device=self.device)

    def lowered(self, case: Case, operands: Mapping[str, Any]) -> Mapping[str, Any]:
        """The recurrence's operands, given the case's: the same, or those that a block makes of its own."""
        return lowered(case, operands)

    def definition(self, case: Case) -> Callable[..., Any]:
        """What the case's backend is judged by.

        Raises:
            Unsupported: it is declared to be another function, and gives no definition of that.
        """
        backend = self.backend(case)
        if backend.equivalent:
            return self.recurrence(case).definition
        if backend.definition is None:
            raise Unsupported(f"{backend.name} is another function by declaration, with no definition")
        return backend.definition

    def draw(self, case: Case, number: int, *, with_state: bool) -> Draw:
        """The case's values number 0, 1, ...; shared with all cases of the same operands."""
        made: Draw = self.once(
            case,
            ("draw", number, with_state),
            lambda: Draw(values_of(case, number, device=self.device, with_state=with_state)),
        )
        return made

    def once(self, case: Case, what: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once for all cases of the same operands; its time is no backend's.

        what: tells it from the other things made for these operands. A refusal (Unsupported) is kept too.
        """
        if self._shared_by != case.operand_key:
            self._shared.clear()
            self._shared_by = case.operand_key
        if what not in self._shared:
            self.announce("oracle")
            try:
                self._shared[what] = make()
            except Unsupported as refusal:
                self._shared[what] = refusal
            self.announce("backend")
        made = self._shared[what]
        if isinstance(made, Unsupported):
            raise made
        return made

    def reference(self, case: Case, number: int, *, with_state: bool, gradients: bool) -> Reference:
        """The oracle's answer for those values, made once for all backends and passes.

        Raises:
            Unsupported: the values overflow the case's dtype.
        """
        draw = self.draw(case, number, with_state=with_state)
        definition = self.definition(case)
        if (definition, gradients) not in draw.references:
            self.announce("oracle")
            draw.references[definition, gradients] = refer(case, definition, draw.values, gradients=gradients)
            self.announce("backend")
        return draw.references[definition, gradients]

    def verify(self, case: Case, *, with_state: bool) -> tuple[Verdict, Values]:
        """Judge the case's backend twice, on fresh values in the same buffers.

        Returns:
            The verdict (the first that is not ok, or the second) and the buffers with the values
            of the second judgement, ready to be timed.
        """
        gradients = case.gradients
        first, second = (self.draw(case, number, with_state=with_state).values for number in (0, 1))
        grad_state = None if first.grad_state is None else first.grad_state.clone()
        buffers = Values(_clones(first.operands), first.grad_output.clone(), grad_state)
        self._time_first_call(case, buffers)  # before the references: it may refuse these operands
        for number in (0, 1):
            self.reference(case, number, with_state=with_state, gradients=gradients and number == 1)
        verdict = self._judge(case, buffers, 0, with_state=with_state, gradients=False)
        if verdict.status is not Status.OK or verdict.output is None:
            return verdict, buffers
        kept = verdict.output.clone()
        _refill(buffers, second)
        again = self._judge(case, buffers, 1, with_state=with_state, gradients=gradients)
        if again.status is Status.OK and not torch.equal(verdict.output, kept):
            reason = "its second call overwrote the output of the first"
            return Verdict(Status.WRONG, reason, again.errors, again.tolerances), buffers
        return again, buffers

    def verify_again(self, case: Case, buffers: Values) -> Verdict:
        """After timing, without poisoned memory: the first values in the same buffers give their answer.

        The gradients too, where the pass has them; with an initial state where the buffers have one.
        """
        with_state = "initial_state" in buffers.operands
        _refill(buffers, self.draw(case, 0, with_state=with_state).values)
        return self._judge(case, buffers, 0, with_state=with_state, gradients=case.gradients, poison=False)

    def judge_again(self, case: Case, buffers: Values) -> Verdict:
        """Judge the values that `verify` left in the buffers, with what configurations are in force now."""
        with_state = self.restore(case, buffers)
        return self._judge(case, buffers, 1, with_state=with_state, gradients=case.gradients)

    def restore(self, case: Case, buffers: Values) -> bool:
        """Write the values that `verify` left in the buffers once more; whether there is an initial state."""
        with_state = "initial_state" in buffers.operands
        _refill(buffers, self.draw(case, 1, with_state=with_state).values)
        return with_state

    def judge_gradients(self, case: Case, values: Values, gradients: Mapping[str, Tensor]) -> Verdict:
        """Judge gradients of the second values, which have no initial state, as a timed pass gave them."""
        reference = self.reference(case, 1, with_state=False, gradients=True)
        return verify.compare_gradients(
            gradients, reference, dtype=dtype_of(case.dtype), bound=self.error_bound(case, values.operands)
        )

    @property
    def broken(self) -> bool:
        """Whether this process should run no further case."""
        return any(stopwatch.broken for stopwatch in self._stopwatches.values())

    def time(
        self, case: Case, call: Callable[[], Any], *, touched: Sequence[Tensor], peak_bytes: int | None
    ) -> Timing:
        """Time a call by the device's clocks, in the case's cache state; see `Stopwatch.time`."""
        with noted() as consulted:
            call()
        settings = self.settings
        timing = self._stopwatch(case).time(
            call,
            touched=touched,
            min_time_s=settings.min_time_s,
            max_time_s=settings.max_time_s,
            relative_width=settings.relative_width,
            peak_bytes=peak_bytes or 0,
        )
        return replace(timing, configuration=as_json(consulted) or None)

    def median_s(self, case: Case, call: Callable[[], Any], *, touched: Sequence[Tensor]) -> float:
        """A short look at how long a call takes, in the case's cache state."""
        max_time_s = SEARCH_SHARE * self.settings.max_time_s
        return self._stopwatch(case).median_s(call, touched=touched, max_time_s=max_time_s)

    def _stopwatch(self, case: Case) -> Stopwatch:
        if case.cache not in self._stopwatches:
            self._stopwatches[case.cache] = Stopwatch.of(self.device, case.cache)
        return self._stopwatches[case.cache]

    def record(self, case: Case, verdict: Verdict, **numbers: Any) -> Record:
        """A record with the verdict's errors, the tolerances and the command that repeats the case."""
        errors = dict(verdict.errors)
        gradients = [value for name, value in errors.items() if name.startswith("gradient")]
        judged = {
            "error_output": errors.get("output"),
            "error_final_state": errors.get("final_state"),
            "error_gradients": max(gradients, default=None),
            "errors": errors,
            "tolerances": dict(verdict.tolerances),
            "command": self.command(case),
        }
        return Record(case, verdict.status, verdict.reason, self.env_id, {**judged, **numbers})

    def command(self, case: Case) -> str:
        """The one command that repeats a case."""
        return repeating(case, self.plugins, options=self.options)

    def _judge(
        self,
        case: Case,
        values: Values,
        number: int,
        *,
        with_state: bool,
        gradients: bool,
        poison: bool = True,
    ) -> Verdict:
        return verify.judge(
            self.function(case),
            values,
            self.reference(case, number, with_state=with_state, gradients=gradients),
            dtype=dtype_of(case.dtype),
            gradients=gradients,
            bound=self.error_bound(case, values.operands),
            poison=poison,
        )

    def error_bound(self, case: Case, operands: Mapping[str, Any], dtype: str | None = None) -> float | None:
        """What the backend declares to be off by on these operands, in the case's dtype or another.

        A reset adds to the span what a backend that works with logarithms must clamp it to.
        """
        declared = self.backend(case).error_bound
        if declared is None:
            return None
        recurrence, operands = self.recurrence(case), lowered(case, operands)
        clamped = {
            name: value.clamp(min=VANISHING[value.dtype])
            if name in recurrence.gates and name.startswith("log_") and isinstance(value, Tensor)
            else value
            for name, value in operands.items()
        }
        return declared(decay_span(recurrence, clamped), dtype or case.dtype)

    def _time_first_call(self, case: Case, values: Values) -> None:
        """Time this backend's first call on these shapes, its backward included, once a process."""
        key = (case.backend, case.operand_key, case.pass_)
        if key in self.first_call_s:
            return
        pass_ = "forward_backward" if case.gradients else "forward"
        begin = time.perf_counter()
        call_of(pass_, self.function(case), values)()
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
        self.first_call_s[key] = time.perf_counter() - begin


def decay_span(recurrence: Recurrence, operands: Mapping[str, Any]) -> float:
    """Largest finite sum over time of the log gates' magnitudes, over all channels."""
    if recurrence.decay_span is not None:
        return recurrence.decay_span(operands)
    log_a = operands.get("log_a")
    if not isinstance(log_a, Tensor):
        return 0.0
    finite = torch.where(torch.isfinite(log_a), -log_a, 0.0).double()
    length = length_of(operands)
    over_time = finite.dim() >= 3 and finite.shape[1] == length
    return float(finite.sum(1).max()) if over_time else float(finite.max()) * length


def _refill(buffers: Values, values: Values) -> None:
    """Write other values into the same buffers."""
    for name, tensor in buffers.tensors.items():
        tensor.copy_(values.operands[name])
    buffers.grad_output.copy_(values.grad_output)
    if buffers.grad_state is not None and values.grad_state is not None:
        buffers.grad_state.copy_(values.grad_state)


def _clones(operands: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in operands.items()}
