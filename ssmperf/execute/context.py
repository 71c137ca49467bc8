"""What a worker lends to a suite: operands and oracles shared by neighbouring cases, device, settings."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssmperf import registry
from ssmperf.case import Case
from ssmperf.measure import verify
from ssmperf.measure.timing import Stopwatch, Timing
from ssmperf.measure.verify import Reference, Values, Verdict
from ssmperf.operands import build, dtype_of, initial_state
from ssmperf.record import Record, Status
from ssmperf.recurrence import Backend, Recurrence
from ssmperf.roofline import Ceilings


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure a case, and with what precision to stop earlier."""

    min_time_s: float = 0.02
    max_time_s: float = 0.25
    relative_width: float = 0.01


@dataclass
class Draw:
    """Values of a case, with references made when they are first needed."""

    values: Values
    references: dict[bool, Reference] = field(default_factory=dict)


@dataclass
class Context:
    """Lent to `Suite.measure` by the worker that runs the case.

    device: torch device string, such as "cuda:1". env_id: the environment's id.
    first_call_s: seconds of each backend's first call in this process, compilation included.
    """

    device: str
    env_id: str
    settings: Settings
    ceilings: Ceilings
    plugins: tuple[str, ...] = ()
    first_call_s: dict[tuple[object, ...], float] = field(default_factory=dict)
    _draws: dict[tuple[object, ...], Draw] = field(default_factory=dict)
    _stopwatches: dict[str, Stopwatch] = field(default_factory=dict)

    def recurrence(self, case: Case) -> Recurrence:
        return registry.recurrence(case.recurrence)

    def backend(self, case: Case) -> Backend:
        return registry.backend(case.model or case.recurrence, case.backend)

    def draw(self, case: Case, number: int, *, with_state: bool) -> Draw:
        """The case's values number 0, 1, ...; shared with all cases of the same operands."""
        key = (case.operand_key, number, with_state)
        if key not in self._draws:
            if self._draws and next(iter(self._draws))[0] != case.operand_key:
                self._draws.clear()
            self._draws[key] = Draw(self._values(case, number, with_state))
        return self._draws[key]

    def reference(self, case: Case, number: int, *, with_state: bool, gradients: bool) -> Reference:
        """The oracle's answer for those values, made once for all backends and passes."""
        draw = self.draw(case, number, with_state=with_state)
        if gradients not in draw.references:
            draw.references[gradients] = verify.refer(
                self.recurrence(case).definition,
                draw.values,
                length=case.shape["T"],
                dtype=dtype_of(case.dtype),
                gradients=gradients,
            )
        return draw.references[gradients]

    def verify(self, case: Case, *, with_state: bool) -> tuple[Verdict, Values]:
        """Judge the case's backend twice, on fresh values in the same buffers.

        Returns:
            The verdict (the first that is not ok, or the second) and the buffers with the values
            of the second judgement, ready to be timed.
        """
        first, second = (self.draw(case, number, with_state=with_state) for number in (0, 1))
        buffers = Values(_clones(first.values.operands), first.values.grad_output, first.values.grad_state)
        verdict = self._judge(case, buffers, 0, with_state=with_state, gradients=False)
        if verdict.status is not Status.OK:
            return verdict, buffers
        for name, tensor in buffers.tensors.items():
            tensor.copy_(second.values.operands[name])
        buffers = Values(buffers.operands, second.values.grad_output, second.values.grad_state)
        gradients = case.pass_ != "forward"
        return self._judge(case, buffers, 1, with_state=with_state, gradients=gradients), buffers

    def verify_again(self, case: Case, buffers: Values, *, with_state: bool) -> Verdict:
        """After timing: the first values in the same buffers must give the first answer again."""
        first = self.draw(case, 0, with_state=with_state)
        for name, tensor in buffers.tensors.items():
            tensor.copy_(first.values.operands[name])
        return self._judge(case, buffers, 0, with_state=with_state, gradients=False)

    @property
    def broken(self) -> bool:
        """Whether this process should run no further case."""
        return any(stopwatch.broken for stopwatch in self._stopwatches.values())

    def time(self, case: Case, call: Callable[[], Any], *, peak_bytes: int | None) -> Timing:
        """Time a call by the device's clocks, in the case's cache state."""
        if case.cache not in self._stopwatches:
            self._stopwatches[case.cache] = Stopwatch.of(self.device, case.cache)
        settings = self.settings
        return self._stopwatches[case.cache].time(
            call,
            min_time_s=settings.min_time_s,
            max_time_s=settings.max_time_s,
            relative_width=settings.relative_width,
            peak_bytes=peak_bytes or 0,
        )

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
        words = ["ssmperf", "run", "--suite", case.suite]
        words += ["--models", case.model] if case.model else []
        words += ["--backends", case.backend]
        words += ["--regime", case.operand_source] if case.operand_source != "model" else []
        for letter, size in case.shape.items():
            words += ["--axis", f"{letter}={size}"]
        words += ["--dtype", case.dtype]
        words += ["--gate-dtype", case.gate_dtype] if case.gate_dtype not in ("float32", case.dtype) else []
        words += ["--pass", case.pass_, "--device", case.device, "--seed", str(case.seed)]
        for plugin in self.plugins:
            words += ["--plugin", plugin]
        return shlex.join(words)

    def _judge(
        self, case: Case, values: Values, number: int, *, with_state: bool, gradients: bool
    ) -> Verdict:
        reference = self.reference(case, number, with_state=with_state, gradients=gradients)
        backend = self.backend(case)
        function = self._timed_first_call(case, backend.function)
        bound = backend.error_bound(decay_span(values.operands), case.dtype) if backend.error_bound else None
        return verify.judge(
            function, values, reference, dtype=dtype_of(case.dtype), gradients=gradients, bound=bound
        )

    def _timed_first_call(self, case: Case, function: Callable[..., Any]) -> Callable[..., Any]:
        key = (case.backend, case.operand_key)
        if key in self.first_call_s:
            return function

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = function(*args, **kwargs)
            if self.device.startswith("cuda"):
                torch.cuda.synchronize(self.device)
            self.first_call_s[key] = time.perf_counter() - begin
            return result

        return timed

    def _values(self, case: Case, number: int, with_state: bool) -> Values:
        operands = build(case, draw=number, device=self.device)
        if with_state:
            operands["initial_state"] = initial_state(case, operands, draw=number, device=self.device)
        output, state = verify.contract(self.recurrence(case).definition, operands, case.shape["T"])
        full = output.new_empty(output.shape[0], case.shape["T"], *output.shape[2:])
        grad_output, grad_state = verify.draw_cotangents(full, state, seed=17 + number)
        if not with_state:
            grad_state = torch.zeros_like(grad_state)
        return Values(operands, grad_output, grad_state)


def decay_span(operands: Mapping[str, Any]) -> float:
    """Largest finite sum over time of the log gates' magnitudes, over all channels."""
    log_a = operands.get("log_a")
    if not isinstance(log_a, Tensor):
        return 0.0
    finite = torch.where(torch.isfinite(log_a), -log_a, 0.0).double()
    length = next(v.shape[1] for v in operands.values() if isinstance(v, Tensor) and v.dim() >= 3)
    over_time = finite.dim() >= 3 and finite.shape[1] == length
    return float(finite.sum(1).max()) if over_time else float(finite.max()) * length


def _clones(operands: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in operands.items()}
