"""How fast is each backend? Forward and backward, timed only after the case passed the oracle."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ssmperf import PASSES, Case, Record, Selection, Status
from ssmperf.authoring import Cost, Spec, tuned
from ssmperf.suitekit import (
    Chart,
    Context,
    Judging,
    Section,
    TimedPass,
    Timing,
    Values,
    Verdict,
    fell_back,
    floor_s,
    launched_kernels,
    limit,
    pass_of,
    peak_bytes,
    product,
    specs,
    subjects,
    suite,
)

from .growth.lengths import (
    baselines_at_one_length,
    curve,
    forward_curves,
    middle,
    runs_in,
    without_slow_baselines,
    without_slow_lengths,
)

SECTION = Section(
    title="Throughput",
    question="How fast is each backend?",
    columns=(
        "latency_s",
        "speedup",
        "tokens_per_s",
        "copy_fraction",
        "limit_fraction",
        "peak_bytes",
        "first_call_s",
        "prepare_s",
        "finish_s",
    ),
    rank="latency_s",
    charts=(Chart(x="T", y="latency_s", title="Time against length"),),
)

MOST_ABOVE_PARTS = 1.5  # forward and backward together, over the sum of the two
LOOKS = 2  # for hidden work, if the first one sees some
MANY = 60  # samples of a case whose calls of two kinds seem to take different times
MOST_TRACED = 1000  # launches of a call; tracing more takes long


@suite(
    "throughput",
    section=SECTION,
    levels=("op", "block"),
    passes=PASSES,
    same_operands=True,
    compiles_ahead=True,
    case_s={"cuda": 1.1},
)
class Throughput:
    """One case per shape, dtype and pass: the backend's latency and its meaning.

    The lengths of a shape's curve have the same number of tokens, so that it shows how the time of a token
    depends on the length. At smoke, where a run shall be short, the curve is that of the forward pass. A loop
    over time, whose launches grow with T, and a call that is predicted to be long are timed at the shortest
    length alone, unless the backend is named or the model has nothing quicker.

    If all models are measured, the run shall be short, too: curves are those of the forward pass; baselines
    in plain torch are timed at the shortest length alone and, where shapes are large, they and loops in the
    forward pass alone, without those that compute another function. Models whose operands have the same specs
    are timed once, and shown "as" the first of them. Members of families, such as the LCSM grid, are timed
    only where they are named: they share their recurrences' kernels and differ in their gates.

    The pass `decode` continues from a random initial state, and its final state is judged; the other passes
    start without a state.

    A block has no cost model: its record gives tokens per second, but no fraction of a limit.
    """

    name: str
    section: Section
    driver_times = True  # calls of foreign backends, by its own clock
    least_judgements = 4  # two before the time is taken, one of an untimed variation, and a timed call

    def cases(self, selection: Selection) -> Iterable[Case]:
        on_cpu = selection.device.type == "cpu"
        planned = partial(
            product,
            selection,
            self.name,
            passes=("forward", "backward"),
            dtypes=("float32",) if on_cpu else ("bfloat16",),
            cache="hot" if on_cpu else "cold",
            peers=selection.peers,
        )
        about = list(subjects(selection, families=False))
        curves = planned(about=about, shapes=partial(curve, factor=selection.scale.growth))
        found = self._thinned((case for case in curves if not case.decodes), selection)
        if "decode" not in (selection.passes or ()):
            return found
        tokens = planned(about=about, shapes=middle)  # one token has no length, so it has no curve
        return itertools.chain(found, (case for case in tokens if case.decodes))

    def _thinned(self, found: Iterable[Case], selection: Selection) -> Iterable[Case]:
        """Leave out cases that take long and answer little, unless they were asked for."""
        if selection.sizes:
            return found
        runs = runs_in(selection)
        every_model = selection.models is None
        if selection.passes is None and (selection.scale.thinned or every_model):
            found = forward_curves(found)
        if selection.backends:
            return found
        found = without_slow_lengths(found, runs)
        if every_model:
            found = baselines_at_one_length(found, runs)
        if every_model and selection.passes is None and not selection.scale.thinned:
            found = without_slow_baselines(found, runs)
        return found

    def measure(self, case: Case, context: Context) -> Record:
        judging = Judging(case, context, with_state=case.decodes)
        verdict, buffers = judging.first()
        if verdict.status is not Status.OK:
            return context.record(case, verdict)
        with tuned(judging, buffers) as tuning:
            return _timed(judging, verdict, buffers, tuning)


def _timed(judging: Judging, verdict: Verdict, buffers: Values, tuning: Mapping[str, Any]) -> Record:
    """Time a case that is right, and judge it again. tuning: numbers of a search, for the record."""
    case, context = judging.case, judging.context
    measured = pass_of(case, context.backend(case), context.function(case), buffers)
    kernels = _kernels(case, context, measured.call)
    problem = fell_back(context.backend(case).kernels, kernels) if kernels is not None else None
    if problem:
        return context.record(case, Verdict(Status.WRONG, problem, verdict.errors, verdict.tolerances))
    memory, memory_reason = peak_bytes(measured.call, context.device)
    timing, after, uneven = _trusted(judging, measured, buffers, memory)
    if after.status is Status.OK and uneven:
        if case.pass_ != "backward":  # whose operands are part of a graph, and have not changed
            judging.restore(buffers)
        earlier = timing
        timing, after, uneven = _trusted(judging, measured, buffers, memory, samples=MANY)
        if timing is not None and earlier is not None:
            timing = replace(timing, window_s=(earlier.window_s or 0.0) + (timing.window_s or 0.0))
    if timing is None or after.status is not Status.OK:
        reason = f"when it was timed: {after.reason}"
        return context.record(case, replace(after, reason=reason, output=None))
    reads = measured.specs
    extra = _native_steps(judging, measured, buffers)
    hidden, hidden_s = _hidden_work(judging, buffers)
    doubts = [*_small_peak(case, memory, buffers), *hidden, *([uneven] if uneven else [])]
    extra |= {"hidden_s": hidden_s} if hidden_s else {}
    del measured  # and the ready-made graph
    return timed_record(
        case,
        context,
        verdict,
        buffers,
        timing,
        {"peak_bytes": memory, "peak_bytes_reason": memory_reason, "kernels": kernels, **extra, **tuning},
        reads=reads,
        doubts=doubts,
    )


def _trusted(
    judging: Judging, measured: TimedPass, buffers: Values, memory: int | None, samples: int | None = None
) -> tuple[Timing | None, Verdict, str | None]:
    """Time calls and check their answers; give the timing, the verdict on them, and any uncertainty."""
    answers = judging.timed_answers(measured, buffers)
    verdict = answers.prepare()
    if verdict.status is not Status.OK:
        return None, verdict, None
    timing = judging.context.time(
        judging.case,
        measured.call,
        touched=measured.touched,
        peak_bytes=memory,
        observer=answers,
        samples=samples,
    )
    judging.context.confirm(judging.case, measured.call, answers.freshen, timing, memory or 0)
    return timing, answers.verdict(timing.every_s), answers.uneven


def _native_steps(judging: Judging, measured: TimedPass, buffers: Values) -> dict[str, float]:
    """Time the steps around a native call, each on fresh values: a step could keep its results, too."""
    if not measured.steps:
        return {}
    case = judging.case
    if case.pass_ != "backward":  # whose operands are part of a graph
        judging.restore(buffers)
    for step in measured.steps.values():
        step.ready()  # a clock calls a step before the first values, to learn how long the host needs
    fresh = partial(judging.fresh_values, measured, buffers)
    return {
        f"{name}_s": judging.context.median_s(case, step.call, touched=(), observer=fresh(step.ready))
        for name, step in measured.steps.items()
    }


def _small_peak(case: Case, peak: int | None, values: Values) -> list[str]:
    """Doubt a forward call whose memory could not hold its output, which has the size of a gradient at it."""
    least = values.grad_output.nbytes
    if case.gradients or case.level != "op" or peak is None or peak >= least:
        return []
    return [f"its peak memory is {peak} bytes, its output has {least}"]


def _hidden_work(judging: Judging, values: Values) -> tuple[list[str], float | None]:
    """Look for work of a backward pass in the making of its graph; give a doubt, and its seconds.

    Only foreign backends are looked at: a look takes about as long as the measurement. What is seen once may
    be chance, and is looked at again.
    """
    case = judging.case
    if not judging.context.is_guest(case) or not case.gradients:
        return [], None
    for _ in range(LOOKS):
        parts_s, together_s = _look(judging, values)
        if together_s <= MOST_ABOVE_PARTS * parts_s:
            return [], None
    doubt = (
        f"forward and backward together take {together_s:.3g} s, apart {parts_s:.3g} s: "
        "work may be hidden in the making of the graph"
    )
    return [doubt], together_s - parts_s if case.pass_ == "backward" else None


def _look(judging: Judging, values: Values) -> tuple[float, float]:
    """Time forward and backward briefly, each call on values of its own: their sum, and both together."""
    case, context = judging.case, judging.context
    seconds = {}
    for pass_ in ("forward", "backward", "forward_backward"):
        judging.restore(values)
        look = pass_of(replace(case, pass_=pass_), context.backend(case), context.function(case), values)
        observer = judging.look(pass_, look, values)
        seconds[pass_] = context.median_s(case, look.call, touched=look.touched, observer=observer)
    return seconds["forward"] + seconds["backward"], seconds["forward_backward"]


def timed_record(
    case: Case,
    context: Context,
    verdict: Verdict,
    values: Values,
    timing: Timing,
    extra: dict[str, Any],
    reads: Mapping[str, Spec] | None = None,
    doubts: Sequence[str] = (),
) -> Record:
    """Make the record of a timed case: `wrong` if no correct call can be this fast.

    doubts: suspicions that may have an innocent cause.
    reads: the specs of the call's inputs, by operand; those of `values` if None.
    """
    cost = None
    if case.level == "op":
        cost = context.recurrence(case).cost(
            context.operand_shape(case), reads or specs(values.tensors), case.pass_
        )
    latency = timing.latency_s
    ceilings = context.ceilings
    floor = floor_s(cost, ceilings, case.dtype, ceilings.cache_bytes) if cost else 0.0
    if latency is not None and latency < floor:
        reason = f"{latency:.3g} s is below the floor of {floor:.3g} s: it cannot have done the work"
        return context.record(case, Verdict(Status.WRONG, reason, verdict.errors, verdict.tolerances))
    rates = _rates(case, context, cost, latency)
    if (rates.get("limit_fraction") or 0.0) > 1.0:
        doubts = [*doubts, "it is faster than the limit of the device says"]
    return context.record(
        case,
        verdict,
        **timing.to_json(),
        **rates,
        **extra,
        doubts=list(doubts),
        first_call_s=context.first_call_s(case),
    )


def _rates(case: Case, context: Context, cost: Cost | None, latency: float | None) -> dict[str, Any]:
    """Relate the latency to the tokens, to the least bytes and operations, and to the device's limits."""
    rates: dict[str, Any] = {
        "least_bytes": cost.bytes if cost else None,
        "least_flops": cost.least_flops if cost else None,
    }
    if not latency:
        return rates
    rates["tokens_per_s"] = case.shape["B"] * case.shape["T"] / latency
    if cost is None:
        return rates
    rates["bandwidth_bytes_per_s"] = cost.bytes / latency
    cache = case.cache if context.device.startswith("cuda") else "hot"  # a CPU's is never flushed
    binding, seconds = limit(cost, context.ceilings, case.dtype, cache)
    rates["limit"] = binding
    rates["limit_fraction"] = seconds / latency
    rates["copy_fraction"] = rates["bandwidth_bytes_per_s"] / context.ceilings.copy_bytes_per_s
    return rates


def _kernels(case: Case, context: Context, call: Callable[[], Any]) -> dict[str, int] | None:
    """Count the kernels that one call launches; None on a CPU, or if tracing would take long."""
    backend = context.backend(case)
    launches = backend.launches(case.shape) if backend.launches else 0.0
    if not context.device.startswith("cuda") or (launches > MOST_TRACED and not backend.kernels):
        return None
    return dict(Counter(launched_kernels(call)))
