"""Reasons why a planned case is not run: limits of its backend, its model or the device."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.calls.call import CHECKPOINT, DEVICE, GRAPH, INFERENCE, STATELESS, STREAM, parse
from ssmperf.engine.cases.calls.call import NONE as PLAIN
from ssmperf.engine.cases.calls.packing import UNPACKED, lengths_of
from ssmperf.engine.cases.case import DECAY, Case, decay_of, split_source
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.plan.selection import Selection, is_own, is_regime
from ssmperf.engine.registry.declarations import Backend, Recurrence

LONGEST_CALL_S = 1.0
LONGEST_CHOSEN_S = 10.0  # where sizes were chosen but no backends
SECONDS_PER_LAUNCH = 8e-6
SECONDS_PER_REPLAYED_LAUNCH = 2e-6  # of a kernel in a CUDA graph
SECONDS_PER_SERIAL_STEP = 4e-7  # of a kernel that reads one step after another, on an H200
BYTES_PER_SECOND = 1.5e12  # memory traffic of an unfused kernel on a large GPU
CPU_BYTES_PER_SECOND = 4e9  # the same on a core
OF_CUDA = {
    STREAM: "it is a stream of CUDA, which clocks choose",
    GRAPH: "it is a graph of CUDA, which clocks capture",
    DEVICE: "it is one of several GPUs, which runs share out",
}  # words for circumstances
BACKWARD_FACTOR = 2.5  # workspace of a forward and backward pass, relative to the forward pass
BACKWARD_LAUNCHES = 5.0  # launches of an autograd backward pass over a loop, per forward launch
PASSES_OVER_WORKSPACE = 4  # how often a call is assumed to read or write its workspace
MEMORY_SHARE = 0.6  # of the device's memory; operands, gradients and the oracle take the rest


def gate_kind(case: Case) -> str | None:
    """Name the kind of gate that a case's operands hold; None if only the operands themselves show it."""
    if not _known(case.operand_source):
        return None
    return registry.model(case.model).gate if case.model else split_source(case.operand_source)[1]


def _cost_gate(case: Case) -> str:
    """Name the kind of gate by which a backend declares what a case's call takes; empty if none is known."""
    kind = gate_kind(case)
    other = registry.model(case.model).cost_gate if kind and case.model else None
    return other or kind or ""


def _known(source: str) -> bool:
    """Tell whether operands of a source have the gate kind that the model or the source names."""
    return is_own(source) or is_regime(source)


def refusal(case: Case, selection: Selection) -> str | None:
    """Say why a case cannot run on the selection's device, or return None."""
    problem = registry.import_problem(case.owner, case.backend)
    if problem:
        return problem
    backend = registry.backend(case.owner, case.backend)
    confined = _confined(case, backend)
    if confined:
        return confined
    model = registry.model(case.model) if case.model else None
    if model and case.dtype not in model.dtypes:
        return f"no {case.dtype}: the model takes {', '.join(model.dtypes)}"
    if case.decodes and not registry.recurrence(case.recurrence).has_state:
        return f"no decode pass: {case.recurrence} has no state to continue from"
    problem = form_problem(case, registry.recurrence(case.recurrence)) or _slopes_problem(case)
    if problem:
        return problem
    if case.level == "block" and case.decodes:
        return "no decode pass at level block: a block is run from the beginning of its sequence"
    if case.level == "block" and case.layout != "channels_last":
        return f"no {case.layout} layout at level block: a block lays out the operands itself"
    if case.model and not is_regime(case.operand_source):
        sizes = case.shape.with_(B=1, T=1)  # as workers build it: B and T enter no parameter
        problem = _shape_problem(registry.model(case.model).cls, sizes, block=case.level == "block")
        if problem:
            return problem
    gate = gate_kind(case)
    return (
        backend.refusal(
            device=case.device,
            dtype=case.dtype,
            pass_=case.pass_,
            gate_kind=gate,
            length=case.shape["T"],
            shape=case.shape,
            capability=selection.device.capability,
            layout=case.layout,
        )
        or _unaffordable(backend, case, selection)
        or _too_long(case, selection)
    )


def form_problem(case: Case, recurrence: Recurrence) -> str | None:
    """Say why a case's packing, words or key heads mean nothing for it, or return None."""
    call = parse(case.call)
    lengths = lengths_of(case.packing)
    if case.level == "block" and (case.packing != UNPACKED or case.call != PLAIN):
        return "no packing or words at level block: the block makes the operands"
    if case.level == "block" and "G" in case.shape and not _projects_key_heads(case):
        return f"no key heads at level block: the block of {case.model} has as many as heads"
    if lengths is not None:
        if not recurrence.packs:
            return f"{recurrence.name} packs no sequences"
        if case.decodes:
            return "no decode pass of packed sequences: each would have one token"
        if case.shape["B"] != 1 or case.shape["T"] != sum(lengths):
            return f"packing {case.packing} needs B = 1 and T = {sum(lengths)}"
    if "G" in case.shape and not recurrence.shares_heads:
        return f"{recurrence.name} has as many key heads as heads"
    return recurrence.call_problem(call) or _circumstance_problem(case, call.circumstances)


def _circumstance_problem(case: Case, words: tuple[str, ...]) -> str | None:
    """Say why a case's call cannot run in the circumstances of its words, or return None."""
    for word, what in OF_CUDA.items():
        if word in words and case.device == "cpu":
            return f"no {word} on a CPU: {what}"
        if word in words and not _only_judges(case.suite):
            return f"no {word} in {case.suite}, which measures calls: {what}"
    if INFERENCE in words and case.gradients:
        return f"no {INFERENCE} in a {case.pass_} pass: it has no gradients"
    if CHECKPOINT in words and not case.gradients:
        return f"no {CHECKPOINT} in a {case.pass_} pass: nothing is computed again without gradients"
    if STATELESS in words and case.decodes:
        return f"no {STATELESS} in a {case.pass_} pass: it continues from a state"
    return None


def _only_judges(suite: str) -> bool:
    known = registry.suites().get(suite)
    return known is None or known.section.judges


def _slopes_problem(case: Case) -> str | None:
    """Refuse another decay for a model whose gates are constants, unless the suite's question is decay."""
    constant = "const" in (gate_kind(case) or "")
    if case.model and constant and decay_of(case.operand_source) is not None and not probes_decay(case.suite):
        return f"{case.model} has no other slopes than its own: its log gates are constants"
    return None


def probes_decay(suite: str) -> bool:
    """Tell whether a suite changes the decay of models by itself, also to what their formulas cannot give."""
    known = registry.suites().get(suite)
    return known is not None and DECAY in known.sources


def _projects_key_heads(case: Case) -> bool:
    model: Any = registry.model(case.model).cls if case.model else None
    return model is not None and model.projects_key_heads


@functools.lru_cache(maxsize=4096)
def _shape_problem(model: type[Any], shape: Shape, *, block: bool) -> str | None:
    problem: str | None = model.shape_problem(shape, block=block)
    return problem


def _confined(case: Case, backend: Backend) -> str | None:
    things = [("recurrence", case.recurrence), ("backend", f"{backend.of}/{backend.name}")]
    things += [("model", case.model)] if case.model else []
    return next(filter(None, (registry.hidden_from_workers(kind, label) for kind, label in things)), None)


def _too_long(case: Case, selection: Selection) -> str | None:
    """Refuse a preset's case that is longer than the recurrence's reference can be made."""
    longest = registry.recurrence(case.recurrence).longest
    if longest is None or case.shape["T"] <= longest or selection.names_sizes:
        return None
    how = _how_to_try(case, selection)
    return f"the work of its reference grows faster than T, so T ends at {longest} ({how})"


def _how_to_try(case: Case, selection: Selection) -> str:
    """Say how a user asks for a case that a preset or a workload leaves out."""
    if selection.use is None:
        return "choose a shape with --axis to try"
    form = "shape with --models and --axis"
    if case.packing != UNPACKED:
        form = f"form with --models, --axis and --packing {case.packing}"
    return f"choose its model and {form}, not --workload, to try"


def _unaffordable(backend: Backend, case: Case, selection: Selection) -> str | None:
    """Refuse a case on a GPU if its call is predicted to take too long or, of a preset, too much memory.

    A backend that is named is tried at sizes that are chosen, whatever is predicted.
    """
    if case.device == "cpu" or not _known(case.operand_source):
        return None
    seconds = predicted_call_s(case)
    if selection.names_sizes:
        if selection.backends or seconds <= LONGEST_CHOSEN_S:
            return None
        return (
            f"predicted {seconds:,.0f} s per call is more than {LONGEST_CHOSEN_S:.0f} s "
            "(name it with --backends to try)"
        )
    memory_bytes = _workspace_bytes(backend, case, _cost_gate(case))
    memory = selection.device.memory_bytes
    if memory is not None and memory_bytes > MEMORY_SHARE * memory:
        return (
            f"predicted workspace {memory_bytes / 2**30:.0f} GiB is more than {MEMORY_SHARE:.0%} of the "
            f"device's {memory / 2**30:.0f} GiB ({_how_to_try(case, selection)})"
        )
    if seconds > LONGEST_CALL_S:
        return (
            f"predicted {seconds:.1f} s per call is more than the preset's {LONGEST_CALL_S:.0f} s "
            f"({_how_to_try(case, selection)})"
        )
    return None


def predicted_call_s(case: Case, *, launch_s: float = SECONDS_PER_LAUNCH) -> float:
    """Predict the seconds of a call from its backend's declarations of launches, serial steps and workspace.

    It is 0 for a known answer, whose shape may be that of another recurrence. launch_s: of each launch.
    """
    if case.model is None and not is_regime(case.operand_source):
        return 0.0
    backend = registry.backend(case.owner, case.backend)
    launches = _launches(backend, case)
    kind = _cost_gate(case)
    serial = backend.serial_steps(case.shape, kind) if backend.serial_steps and case.device == "cuda" else 0.0
    traffic = PASSES_OVER_WORKSPACE * _workspace_bytes(backend, case, kind)
    factor = BACKWARD_LAUNCHES if case.gradients else 1.0
    rate = CPU_BYTES_PER_SECOND if case.device == "cpu" else BYTES_PER_SECOND
    serial_s = (BACKWARD_FACTOR if case.gradients else 1.0) * serial * SECONDS_PER_SERIAL_STEP
    return factor * launches * launch_s + serial_s + traffic / rate


def _launches(backend: Backend, case: Case) -> float:
    """Predict the launches of a forward call; a backend that declares them takes packed sequences in turn."""
    if backend.launches is None:
        return 0.0
    lengths = lengths_of(case.packing) or (case.shape["T"],)
    counts = Counter(length for length in lengths if length)
    return sum(count * backend.launches(case.shape.with_(T=T)) for T, count in counts.items())


def declared_bytes(case: Case) -> float | None:
    """Predict the bytes of a call beyond operands and results from its backend's declarations.

    Workspace and, in a pass with gradients, what is kept for backward. None if no workspace is declared.
    """
    backend = registry.backend(case.owner, case.backend)
    return None if backend.workspace is None else _workspace_bytes(backend, case, _cost_gate(case))


def _workspace_bytes(backend: Backend, case: Case, gate: str) -> float:
    itemsize = 8 if case.dtype == "float64" or gate.endswith("_complex") else 4
    forward = backend.workspace(case.shape, itemsize, gate) if backend.workspace else 0.0
    if not case.gradients:
        return forward
    if backend.saved is not None:
        return forward + backend.saved(case.shape, itemsize, gate)
    return BACKWARD_FACTOR * forward
