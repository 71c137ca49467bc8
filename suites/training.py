"""How fast does a whole network train, and in how much memory? One step: forward, loss, backward, update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ssmperf import Case, Record, Selection, Status, Unsupported
from ssmperf.suitekit import (
    ROUNDED_INSIDE,
    Chart,
    Context,
    Judging,
    Section,
    Timing,
    Training,
    Values,
    Verdict,
    call_of,
    dtype_of,
    fell_back,
    judge_answer,
    judge_call,
    launched_kernels,
    make_reference,
    peak_bytes,
    suite,
    trace,
)

from .networks.answers import AMONG, StepAnswers
from .networks.cases import PASS, forecast_s, length_reason, network_cases, parameters_of
from .networks.subject import NetworkSubject
from .networks.text import Batch, draw
from .networks.trainee import Trainee, nbytes

SECTION = Section(
    title="Training",
    question="How fast does a whole network train, and in how much memory?",
    columns=(
        "latency_s",
        "tokens_per_s",
        "peak_bytes",
        "kept_bytes",
        "mixer_share",
        "parameters",
        "layers",
        "width",
        "first_loss",
        "last_loss",
        "loss_finite",
    ),
    rank="latency_s",
    charts=(
        Chart(
            x="T",
            y="tokens_per_s",
            series="network",
            facet="dtype",
            title="Tokens per second by model and backend",
        ),
    ),
)

UPDATES = 3  # one after another, before the time is taken
BEFORE, TIMED, UPDATED = range(3)  # batches that all backends of a run share
DRAWS = 8  # of low-precision evaluations, where the first finds a backend wrong
MOST_BOUND = 0.5  # to which the bound of one layer may grow in several


@suite("training", section=SECTION, levels=("op", "block"), passes=(PASS,))
class TrainingStep:
    """One case per model, backend, shape and dtype: a step of a network of its blocks on bytes of text.

    The network has an embedding, blocks that know their depth, a norm, and a head over 256 bytes. All models
    have the same number of layers (`--layers`) and, where their sizes allow it, the same width. Channel
    mixings whose width a block lets choose are as wide as gives the block the parameters of a transformer's;
    blocks without one have those of their paper's layer, and `parameters` says how many. Weights, gradients
    and AdamW's moments have the case's dtype, without automatic casting.

    latency_s: of a step: forward, cross entropy, backward, update. tokens_per_s: B·T in that time.
    peak_bytes: the most that a step holds at once, beyond parameters and the optimiser's state.
    kept_bytes: held between forward and backward.
    mixer_share: estimate of the recurrences' share of a step, from the time of one alone, forward and
        backward on the first layer's operands, times the number of layers.
    length_reason: why a loop over time has shorter sequences than the other cases.
    first_loss, last_loss: of a few updates on one batch (nats per byte). loss_finite: theirs, and the timed
        steps'.

    Before the time is taken, the log-probabilities of all bytes and the gradients of all parameters are
    compared with those of the same network around the definition in float64, on one row; so are those of a
    timed step on a whole batch, and of one after the time. `networks/answers.py` says what the other timed
    steps answer for. The references are made in the worker's own process. Other people's backends are judged
    by a judge apart, too, in one layer.
    """

    name: str
    section: Section

    def cases(self, selection: Selection) -> Iterable[Case]:
        return network_cases(selection, self.name)

    def forecast_s(self, case: Case, training: Training) -> float | None:
        """Forecast the seconds of a case."""
        return forecast_s(case, training)

    def measure(self, case: Case, context: Context) -> Record:
        if case.dtype == "float16":
            raise Unsupported("no float16: squares of gradients, of which AdamW keeps a mean, are 0 in it")
        return TrainingMeasurement(case, context).record()


class TrainingMeasurement:
    """The measurement of one case."""

    def __init__(self, case: Case, context: Context) -> None:
        self.case, self.context = case, context
        self.backend = context.backend(case)
        self.layers = context.training.step_layers
        self.definition = (
            context.recurrence(case).definition if self.backend.equivalent else self.backend.own_definition()
        )
        self.trainee = Trainee.of(case, self.backend.function, self.layers, self.batch(UPDATED))
        self.numbers: dict[str, Any] = {
            "network": f"{case.model} {case.backend}",  # one line of the chart
            "layers": self.layers,
            "width": self.trainee.network.embedding.embedding_dim,
            "parameters": parameters_of(self.trainee.network),
            "parameter_bytes": nbytes(self.trainee.initial),
            "optimizer": type(self.trainee.optimizer).__name__,
        }
        if reason := length_reason(case, context.training, specific=context.specific):
            self.numbers["length_reason"] = reason

    def record(self) -> Record:
        """Judge, measure, time, and judge again."""
        verdict = self.judged_before()
        if verdict.status is not Status.OK:
            return self.ended(verdict)
        losses = self.updated()
        if not all(map(math.isfinite, losses)):
            return self.ended(self.diverged(losses))
        self.measure_memory()
        problem = self.wrong_kernels()
        if problem:
            return self.ended(replace(verdict, status=Status.WRONG, reason=problem))
        answers = StepAnswers(self.trainee, self.batch(TIMED))
        timing = self.context.time(
            self.case,
            self.trainee.step,
            touched=(),
            peak_bytes=self.numbers["peak_bytes"],
            observer=answers,
            samples=AMONG,
        )
        self.numbers["loss_finite"] = all(map(math.isfinite, answers.losses))
        after = self.judged_after(answers)
        if after.status is not Status.OK:
            return self.ended(replace(after, reason=f"when it was timed: {after.reason}"))
        return self.ended(verdict, timing)

    def batch(self, which: int) -> Batch:
        """Get one of the batches that all backends of a run share. That for BEFORE has one row."""
        shape = self.case.shape
        rows = 1 if which == BEFORE else shape["B"]
        seed = (1000003 * (self.context.nonce + which) + self.case.seed) % 2**63
        batch: Batch = self.context.memoised(
            self.case, ("batch", which), lambda: draw(rows, shape["T"], seed, self.context.device)
        )
        return batch

    def subject(self, which: int) -> NetworkSubject:
        """Get the network on one of the shared batches."""
        return NetworkSubject(self.case, self.trainee, self.batch(which))

    def reference(self, which: int, draws: int = 1) -> Any:
        """Get the answer of the network around the definition in float64, shared by all backends of a run.

        draws: number of evaluations in a low precision, from whose errors the tolerances follow.
        """

        def make() -> Any:
            self.context.on_progress("computing a reference of the network")
            subject = self.subject(which)
            made = make_reference(subject, self.definition, subject.values(), gradients=True, draws=draws)
            return replace(
                made,
                low_errors=_with_inner_rounding(made.low_errors),
                low_row_errors=_with_inner_rounding(made.low_row_errors),
            )

        key = ("network", which, draws, self.layers, self.definition)
        return self.context.memoised(self.case, key, make)

    @property
    def bound(self) -> float | None:
        """The error that the backend declares, with those of all layers added up; None for an exact one."""
        if self.backend.error_bound is None:
            return None
        values = self.context.values(self.case, 0, with_state=False)
        bound = Judging(self.case, self.context).bound(values.operands)
        return None if bound is None else max(bound, min(bound * math.sqrt(self.layers), MOST_BOUND))

    def judged_before(self) -> Verdict:
        """Judge a call of the network, with its gradients, and the recurrence inside its first layer."""
        if self.context.is_guest(self.case):
            verdict, _ = Judging(self.case, self.context).first()
            if verdict.status is not Status.OK:
                return replace(verdict, output=None)
        subject, dtype = self.subject(BEFORE), dtype_of(self.case.dtype)
        function = subject.function(self.backend.function, dtype)
        values = subject.values()

        def judged(reference: Any) -> Verdict:
            return judge_call(function, values, reference, dtype=dtype, gradients=True, bound=self.bound)

        return replace(self.judged_by(judged, BEFORE), output=None)

    def judged_by(self, judge: Callable[[Any], Verdict], which: int) -> Verdict:
        """Judge by a reference; if that finds a fault, judge again by one with several low precisions.

        In a network a few outputs of a recurrence are small differences, which norms then amplify. There
        one evaluation may happen to err ten times less than another.
        """
        verdict = judge(self.reference(which))
        return judge(self.reference(which, DRAWS)) if verdict.status is Status.WRONG else verdict

    def judged_after(self, answers: StepAnswers) -> Verdict:
        """Judge the timed step on the shared batch, the repeated ones, and one after the time."""
        if not self.numbers["loss_finite"]:
            return self.diverged(answers.losses)
        if answers.kept is None:
            return Verdict(Status.WRONG, "no timed step was seen")
        verdict = self.judged(TIMED, *answers.kept)
        answers.kept = None
        if verdict.status is not Status.OK:
            return verdict
        problem = answers.problem()
        if problem:
            return Verdict(Status.WRONG, problem)
        self.trainee.restore()
        self.trainee.batch = self.batch(BEFORE)
        _, logits = self.trainee.step()
        return self.judged(BEFORE, logits, self.trainee.gradients)

    def judged(self, which: int, logits: Any, gradients: Any) -> Verdict:
        """Judge a step on one of the shared batches."""
        answer = self.trainee.answer(logits, gradients)
        dtype = dtype_of(self.case.dtype)
        return self.judged_by(
            lambda reference: judge_answer(answer, reference, dtype=dtype, bound=self.bound), which
        )

    def updated(self) -> list[float]:
        """Train for a few steps on one batch; return their losses."""
        losses = [float(self.trainee.step()[0]) for _ in range(UPDATES)]
        self.trainee.restore()
        self.numbers |= {
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "loss_finite": all(map(math.isfinite, losses)),
            "optimizer_bytes": nbytes(
                [each for state in self.trainee.optimizer.state.values() for each in state.values()]
            ),
        }
        return losses

    def diverged(self, losses: list[float]) -> Verdict:
        """Say which of some losses is not finite."""
        place = next(place for place, loss in enumerate(losses, start=1) if not math.isfinite(loss))
        return Verdict(Status.NAN, f"the loss of step {place} of {len(losses)} is {losses[place - 1]}")

    def measure_memory(self) -> None:
        """Measure the memory of a step, and the bytes held between its forward and backward pass."""
        self.trainee.optimizer.zero_grad()
        self.numbers["peak_bytes"], self.numbers["peak_bytes_reason"] = peak_bytes(
            self.trainee.step, self.context.device
        )
        self.trainee.restore()
        held: list[Any] = []
        kept, reason = trace(lambda: held.append(self.trainee.forward()), self.context.device)
        held.clear()
        self.numbers["kept_bytes"] = None if kept is None else kept.left_bytes
        self.numbers["kept_bytes_reason"] = reason

    def wrong_kernels(self) -> str | None:
        """Say that a step launches none of the kernels that the backend declares, or return None."""
        if not self.context.device.startswith("cuda") or not self.backend.kernels:
            return None
        return fell_back(self.backend.kernels, launched_kernels(self.trainee.step))

    def mixer_share(self, latency_s: float) -> float | None:
        """Compare the recurrences alone, forward and backward in all layers, with a step.

        Each call is taken to last as long as the first one.
        """
        subject = self.subject(TIMED)
        inner: Values | None = subject.inner(subject.values())
        if inner is None:
            return None
        call = call_of(PASS, self.backend.function, inner)
        calls = subject.count_calls(self.backend.function)
        return calls * self.context.median_s(self.case, call, touched=()) / latency_s

    def ended(self, verdict: Verdict, timing: Timing | None = None) -> Record:
        """Make the record, with times if the step was timed and is right."""
        if timing is None:
            return self.context.record(self.case, verdict, **self.numbers)
        found = {**self.numbers, **timing.to_json()}
        latency_s = timing.latency_s
        if latency_s:
            found["tokens_per_s"] = self.case.shape["B"] * self.case.shape["T"] / latency_s
            found["mixer_share"] = self.mixer_share(latency_s)
        return self.context.record(self.case, verdict, **found)


def _with_inner_rounding(errors: Mapping[str, float]) -> dict[str, float]:
    """Enlarge the errors of a low-precision evaluation for what fused kernels round inside."""
    return {name: ROUNDED_INSIDE * error for name, error in errors.items()}
