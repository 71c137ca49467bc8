"""Context: the worker's services for a suite. Device, settings, ceilings, stopwatches, and shared values."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.judge.answer import Answer, call_backend
from ssmperf.engine.judge.calls.checks import at_taken_sizes, check_calls
from ssmperf.engine.judge.calls.probe import CallProbe, key_of
from ssmperf.engine.judge.checked import Checked
from ssmperf.engine.judge.tolerance import is_approximate
from ssmperf.engine.judge.verdict import Verdict
from ssmperf.engine.machine.host_load import HostLoad
from ssmperf.engine.measure.stopwatch import Observer, Stopwatch, Timing
from ssmperf.engine.operands.build import build_model
from ssmperf.engine.operands.contract import Contract, well_formed
from ssmperf.engine.operands.dtypes import dtype_of
from ssmperf.engine.operands.subject import Subject, subject_of
from ssmperf.engine.operands.values import Values
from ssmperf.engine.plan.command import command_that_repeats
from ssmperf.engine.plan.refusal import gate_kind
from ssmperf.engine.plan.run_options import RunOptions
from ssmperf.engine.processes.cores import one_core
from ssmperf.engine.processes.partner import Partner
from ssmperf.engine.registry.cost import Ceilings
from ssmperf.engine.registry.declarations import Backend, Recurrence
from ssmperf.engine.registry.presets import ON_CPU, PRESETS, Preset, Training
from ssmperf.engine.trial.judge import Judge
from ssmperf.engine.trial.question import Question
from ssmperf.engine.tune.tables import as_json, noted
from ssmperf.errors import Unsupported


class Asked(Protocol):
    """A judge, in this process or in one of its own."""

    def verdict(self, question: Question, answer: Answer) -> Verdict:
        """Judge an answer."""
        ...


MOST_PROBES = 4  # whose references are kept
SEARCH_SHARE = 0.25  # time per candidate of a search, relative to the longest time of a case


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure a case, and the precision at which to stop earlier.

    autotune: whether to search for configurations and time the case with the best ones, not the curated ones.
    """

    min_time_s: float = 0.02
    max_time_s: float = 0.25
    relative_width: float = 0.01
    min_samples: int = 5
    autotune: bool = False

    @classmethod
    def of(cls, scale: Preset, *, autotune: bool = False) -> Settings:
        """Take those of a preset."""
        return cls(
            scale.min_time_s, scale.max_time_s, scale.relative_width, scale.min_samples, autotune=autotune
        )


@dataclass
class Context:
    """The worker's services for `Suite.measure`, and the values that cases share.

    device: torch device string, such as "cuda:1". env_id: the environment's id.
    on_phase: called with "oracle" before a reference is made, since that time does not count against the
        backend, with "timing" before calls are timed, and with "backend" after both. Between calls that are
        timed, "waiting" begins a partner's turn, which counts for nothing, and "timing" ends it.
    on_progress: called with a text about the next step of something long; the time allowed for a case then
        starts again.
    on_windows: called with a timed call of a foreign backend, with what writes fresh values for it, to do
        both as often as the driver asks, and with whether the call is the replay of a graph.
    options: those of the run. words: for the command that repeats a case.
    nonce: the run's secret, added to the number of every draw of values.
    judge: judges answers; None for a judge in this process.
    host_load: tells how other processes used the CPU while calls were being timed.
    graphs: whether calls may be captured in CUDA graphs; a failed capture can leave the process unusable.
    training: how networks are trained.
    partner: takes samples in turns with this process; None if there is none.
    unfinished: folder for `kept`; None if nothing is to be kept.
    specific: whether the run names backends or sizes; a suite then leaves out nothing to save time.
    spoiled: set by a suite whose case may have damaged this process, or left memory behind.
    first_calls_s: seconds of each backend's first calls in this process, compilation included.
    """

    device: str
    env_id: str
    settings: Settings
    ceilings: Ceilings
    on_phase: Callable[[str], None] = lambda phase: None
    on_progress: Callable[[str], None] = lambda text: None
    on_windows: Callable[[Callable[[], Any], Callable[[], None], bool], None] = lambda *_: None
    options: RunOptions = RunOptions()
    words: tuple[str, ...] = ()
    nonce: int = 0
    judge: Asked | None = None
    host_load: HostLoad = field(default_factory=HostLoad)
    graphs: bool = True
    training: Training = PRESETS[ON_CPU].training
    partner: Partner | None = None
    unfinished: Path | None = None
    specific: bool = False
    spoiled: bool = False
    first_calls_s: dict[tuple[object, ...], float] = field(default_factory=dict)
    _waited_s: float = 0.0  # for the partner
    _shared: dict[Hashable, Any] = field(default_factory=dict)
    _shared_by: tuple[object, ...] | None = None  # the operand key of everything in _shared
    _stopwatches: dict[str, Stopwatch] = field(default_factory=dict)
    _probes: dict[tuple[object, ...], CallProbe] = field(default_factory=dict)
    _calls: dict[tuple[object, ...], list[Checked]] = field(default_factory=dict)

    def kept(self, case: Case) -> Path | None:
        """The folder in which a case keeps what it needs to continue, if its process is killed.

        The run deletes it when the case has ended, unless it ran out of time: then a resumed run continues.
        """
        return None if self.unfinished is None else self.unfinished / case.id

    def recurrence(self, case: Case) -> Recurrence:
        return registry.recurrence(case.recurrence)

    def backend(self, case: Case) -> Backend:
        return registry.backend(case.owner, case.backend)

    def is_guest(self, case: Case) -> bool:
        """Whether the case's backend is other people's code."""
        backend = self.backend(case)
        return registry.foreign("backend", f"{backend.of}/{backend.name}")

    def subject(self, case: Case) -> Subject:
        """Make the operation or layer that the case is about."""
        return subject_of(case, self.device)

    def operand_shape(self, case: Case) -> Shape:
        """The sizes of the case's operands: those of its shape unless an option of the model changes them."""
        if case.model is None:
            return case.shape
        sizes = build_model(case.model, case.shape.with_(B=1, T=1), case.seed).shape
        return case.shape.with_(
            **{letter: sizes[letter] for letter in case.shape if letter not in ("B", "T")}
        )

    def function(self, case: Case) -> Callable[..., Any]:
        """Make the function that the case calls with its operands: the backend, or a block around it."""
        return self.subject(case).function(self.backend(case).function, dtype_of(case.dtype))

    def values(self, case: Case, number: int, *, with_state: bool) -> Values:
        """Get the case's values by number (0, 1, ...), shared by all cases with the same operands."""
        values: Values = self.memoised(
            case,
            ("values", number, with_state),
            lambda: self.subject(case).values(self.nonce + number, with_state=with_state),
        )
        return values

    def ask(self, question: Question, answer: Answer) -> Verdict:
        """Ask the judge about an answer. Its time does not count as the backend's."""
        if self.judge is None:
            self.judge = Judge(self.device)
        self.on_phase("oracle")
        try:
            return self.judge.verdict(question, answer)
        finally:
            self.host_load.read()
            self.on_phase("backend")

    def calls_judged(self, case: Case, bound: Callable[..., float | None]) -> Sequence[Checked]:
        """Judge the further promises of a case's backend, once for all cases of one kind of operands.

        bound: operands -> the error that the backend declares for them.
        """
        backend = self.backend(case)
        if backend.of != case.recurrence:  # it may know the operands of its model alone
            return []
        return at_taken_sizes(lambda sizes: self._checked(case, backend, bound, own_sizes=sizes))

    def _checked(
        self, case: Case, backend: Backend, bound: Callable[..., float | None], *, own_sizes: bool
    ) -> list[Checked]:
        kind = key_of(case, own_sizes=own_sizes)
        if (kind, backend.name) not in self._calls:
            self.on_phase("oracle")
            if kind not in self._probes:
                while len(self._probes) >= MOST_PROBES:
                    self._probes.pop(next(iter(self._probes)))
                self._probes[kind] = CallProbe(case, self.device, own_sizes=own_sizes)
            few = backend.compiles_per_shape and case.device == "cuda" and not self.specific
            found = check_calls(backend, self._probes[kind], bound, few_shapes=few)
            self._calls[kind, backend.name] = list(found)
            self.on_phase("backend")
        return self._calls[kind, backend.name]

    def memoised(self, case: Case, key: Hashable, make: Callable[[], Any]) -> Any:
        """Call `make` once for all cases with the same operands; its time does not count as the backend's.

        A refusal (Unsupported) is remembered too, and raised again.

        key: distinguishes the objects that are made for the same operands.
        """
        if self._shared_by != case.operand_key:
            self._shared.clear()
            self._shared_by = case.operand_key
        if key not in self._shared:
            self.on_phase("oracle")
            try:
                self._shared[key] = make()
            except Unsupported as refusal:
                self._shared[key] = refusal
            self.on_phase("backend")
        value = self._shared[key]
        if isinstance(value, Unsupported):
            raise value
        return value

    @property
    def broken(self) -> bool:
        """Whether this process must run no further case."""
        return self.spoiled or any(stopwatch.broken for stopwatch in self._stopwatches.values())

    def time(
        self,
        case: Case,
        call: Callable[[], Any],
        *,
        touched: Sequence[Tensor],
        peak_bytes: int | None,
        observer: Observer | None = None,
        samples: int | None = None,
    ) -> Timing:
        """Time a call with the device's clocks, in the case's cache state; see `Stopwatch.time`.

        samples: take at least so many; None means as many as the run does.
        """
        with noted() as consulted:
            call()
        settings = self.settings
        self.on_phase("timing")
        began_s, waited_s = time.monotonic(), self._waited_s
        with one_core(self._shared_core()):
            timing = self._stopwatch(case).time(
                call,
                touched=touched,
                min_time_s=settings.min_time_s,
                max_time_s=settings.max_time_s,
                relative_width=settings.relative_width,
                min_samples=max(settings.min_samples, samples or 0),
                peak_bytes=peak_bytes or 0,
                observer=observer,
                hand_over=self._hand_over,
            )
        window_s = time.monotonic() - began_s - (self._waited_s - waited_s)
        self.on_phase("backend")
        busy = (*self.host_load.busy_since(began_s), *timing.busy)
        return replace(timing, configuration=as_json(consulted) or None, window_s=window_s, busy=busy)

    def confirm(
        self, case: Case, call: Callable[[], Any], fresh: Callable[[], None], timing: Timing, peak_bytes: int
    ) -> None:
        """Let the driver time a foreign backend's call by its own clock, and replays if it can be captured.

        fresh: writes values for a call.
        """
        takes_turns = self.partner is not None and self.partner.pair is not None
        if takes_turns or not self.is_guest(case):
            return
        graph = None if timing.graph_s is None else self._stopwatch(case).graph
        replay = None if graph is None else graph.replayed(call, peak_bytes)
        try:
            if replay is not None:
                self.on_windows(replay, fresh, True)
        finally:
            if graph is not None:
                graph.release()
        self.on_windows(call, fresh, False)
        self.on_phase("backend")

    def _shared_core(self) -> int | None:
        """Choose the core for calls of one thread whose samples alternate with a partner's.

        Two cores of a virtual machine can differ by a factor of 2, and a process seldom changes its core.
        """
        if self.partner is None or torch.get_num_threads() > 1:
            return None
        return self.partner.pair

    def _hand_over(self, *, finished: bool) -> bool:
        """Let the partner take its samples; see `Partner.hand_over`."""
        if self.partner is None or self.partner.pair is None:
            return False
        self.on_phase("waiting")
        began_s = time.monotonic()
        away = self.partner.hand_over(finished=finished)
        self._waited_s += time.monotonic() - began_s
        self.on_phase("timing")
        return away

    def median_s(
        self,
        case: Case,
        call: Callable[[], Any],
        *,
        touched: Sequence[Tensor],
        observer: Observer | None = None,
    ) -> float:
        """Time a call briefly, in the case's cache state. observer: gives each call its values."""
        max_time_s = SEARCH_SHARE * self.settings.max_time_s
        return self._stopwatch(case).median_s(call, touched=touched, max_time_s=max_time_s, observer=observer)

    def time_first_call(self, case: Case, values: Values, expected: Contract) -> Answer | None:
        """Time the backend's first call on operands of this kind and shape, backward pass included.

        Returns:
            Its answer; None if it was called before in this process.

        Raises:
            BrokenContract: the result is not as `expected`, which a backward pass could not start from.
        """
        key = _kind(case)
        if key in self.first_calls_s:
            return None
        compute = well_formed(self.backend(case).function)  # for a layer, which takes the result apart
        function = well_formed(self.subject(case).function(compute, dtype_of(case.dtype)), expected=expected)
        begin = time.perf_counter()
        answer = call_backend(function, values, expected, gradients=case.gradients, poison=False)
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
        self.first_calls_s[key] = time.perf_counter() - begin
        return answer

    def first_call_s(self, case: Case) -> float | None:
        """Give the seconds of the backend's first call on operands of a case's kind and shape."""
        return self.first_calls_s.get(_kind(case))

    def record(self, case: Case, verdict: Verdict, /, **numbers: Any) -> Record:
        """Make a record with the verdict's errors and tolerances, and the command that repeats the case.

        It also has the backend's declarations, by which reports decide whether it competes: `declared_bound`,
        its error bound for the values judged; `approximate`, whether that bound grows with the decay span;
        `own_definition`, whether it computes another function than the recurrence. Where it is wrong,
        `diagnosis` lists the fault of each object, the worst first.
        """
        backend = self.backend(case)
        errors = dict(verdict.errors)
        gradients = [value for name, value in errors.items() if name.startswith("gradient")]
        judged: dict[str, Any] = {
            "error_output": errors.get("output"),
            "error_final_state": errors.get("final_state"),
            "error_gradients": max(gradients, default=None),
            "errors": errors,
            "tolerances": dict(verdict.tolerances),
            "row_errors": dict(verdict.row_errors),
            "row_tolerances": dict(verdict.row_tolerances),
            "declared_bound": verdict.bound,
            "approximate": is_approximate(backend, case.dtype),
            "own_definition": not backend.equivalent,
            "command": self.command(case),
        }
        if verdict.diagnosis:
            judged["diagnosis"] = list(verdict.diagnosis)
        return Record(case, verdict.status, verdict.reason, self.env_id, {**judged, **numbers})

    def command(self, case: Case) -> str:
        """Compose the command that repeats a case."""
        return command_that_repeats(case, self.words)

    def _stopwatch(self, case: Case) -> Stopwatch:
        if case.cache not in self._stopwatches:
            self._stopwatches[case.cache] = Stopwatch.of(self.device, case.cache, graphs=self.graphs)
        return self._stopwatches[case.cache]


def _kind(case: Case) -> tuple[object, ...]:
    """Give the key of a backend's calls that need the same kernels: other values need nothing new."""
    source = gate_kind(case) or case.operand_source
    return (case.backend, replace(case, operand_source=source).operand_key, case.pass_)
