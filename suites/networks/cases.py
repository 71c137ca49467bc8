"""The networks of a selection: models, sizes, backends, and the widths inside their blocks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from ssmperf import Case, Selection, Shape, UsageError
from ssmperf.authoring import Block
from ssmperf.suitekit import PlannedSubject, Training, predicted_call_s, product, refusal, registry, sized

BYTES = 256  # the vocabulary: text is read byte by byte
TRANSFORMER = "attention"
# These have every exact backend of theirs by default, so that ours are compared with the ordinary choice.
CELLS = ("gru", "lstm")  # for which nothing but loops exists
ORDINARY = (TRANSFORMER, *CELLS)
# These have a loop over time beside the quickest backend where networks are small. At larger presets they are
# all that is trained unless models are named.
MODELS = (*ORDINARY, "hgrn", "hgrn2", "mamba", "mamba2", "gla", "retnet", "deltanet", "longhorn", "gateloop")
BASELINE = "sequential"
PASS = "forward_backward"
CALLS = 18  # of the recurrence per layer: timed, repeated, judged and traced steps
REFERENCES = (
    4  # passes of a loop over time per layer, as which two references count; segments run in parallel
)
SHORTER = 8  # of large networks, loops over time are timed at T divided by this
HIDDEN_STEP = 16  # of the width inside a channel mixing


def network_cases(selection: Selection, suite: str) -> Iterable[Case]:
    """List the cases of a selection: those of the backends named, or of few backends per model.

    A transformer is always among them, unless backends are named: the others are compared with it. A network
    is trained forward and backward, and makes the operands itself: a selection of other passes, layouts, gate
    dtypes or sources of operands has no cases.
    """
    choices = {"pass_": PASS, "layout": "channels_last", "operand_source": "model", "gate_dtype": "float32"}
    for name, only in choices.items():
        if only not in (selection.chosen(name) or (only,)):
            return []
    names = tuple(trained_models(selection))
    if not names:
        return []
    if TRANSFORMER not in names and not selection.backends:
        names = (*names, TRANSFORMER)  # with which the others are compared
    chosen = replace(selection, models=names).choosing(
        level="block", passes=(PASS,), layouts=None, regimes=None, gate_dtypes=None
    )
    cases = product(
        chosen,
        suite,
        passes=(PASS,),
        dtypes=("float32",) if selection.device.type == "cpu" else ("bfloat16",),
        cache="hot",
        about=networks(chosen),
    )
    return cases if selection.backends else (shortened(case, chosen) for case in few(cases, chosen))


def trained_models(selection: Selection) -> Iterator[str]:
    """List the models named; else all, or at larger presets those of MODELS."""
    if selection.models is not None:
        return (name for name in selection.models if name not in registry.recurrences())
    return (
        (name for name in registry.models() if ":" not in name) if selection.scale.thinned else iter(MODELS)
    )


def networks(selection: Selection) -> Iterator[PlannedSubject]:
    """List the models with the preset's sizes of a network."""
    training = selection.scale.training
    for name in selection.models or ():
        sizes = sized(name, training.step_width, selection.preset_name)
        shape = Shape({**sizes, "B": training.step_batch, "T": training.step_length})
        yield PlannedSubject(registry.recurrence_of(name), "model", (shape,), name)


def few(cases: Iterable[Case], selection: Selection) -> Iterator[Case]:
    """Choose, per model and size, the exact backend that is predicted to be the quickest, and some beside it.

    These are all exact backends of the ordinary models, and the loop over time for MODELS where networks are
    small; where they are large, for CELLS alone. Backends around foreign kernels are measured where they are
    named, or with `--peers`. A model without an exact backend that can train keeps its loop, whose refusal is
    then recorded.
    """
    groups: dict[Case, list[Case]] = {}
    for case in cases:
        groups.setdefault(replace(case, backend=""), []).append(case)
    for members in groups.values():
        sound = [case for case in members if refusal(case, selection) is None and _is_exact(case)]
        kept = set(sorted(sound, key=_predicted_s)[:1])
        for case in members:
            if case.backend == BASELINE:
                beside = not kept or case.model in (MODELS if selection.scale.thinned else CELLS)
            else:
                peer = selection.peers and registry.is_peer(case.owner, case.backend)
                beside = peer or (case.model in ORDINARY and case in sound)
            if case in kept or beside:
                yield case


def shortened(case: Case, selection: Selection) -> Case:
    """Shorten the sequences of a large network around a loop over time, unless sizes were chosen."""
    T = case.shape["T"]
    if case.backend != BASELINE or selection.scale.thinned or selection.sizes or T % SHORTER:
        return case
    return replace(case, shape=case.shape.with_(T=T // SHORTER))


def length_reason(case: Case, training: Training, *, specific: bool) -> str | None:
    """Say that a case was shortened, or return None: where backends or sizes were named, none is."""
    T = case.shape["T"]
    if specific or case.backend != BASELINE or training.step_length != SHORTER * T:
        return None
    return (
        f"a loop over time, whose time per token does not depend on T: {T} instead of {training.step_length}"
    )


def _is_exact(case: Case) -> bool:
    """Whether a backend is ours, and computes the recurrence with an error that no decay makes larger."""
    backend = registry.backend(case.owner, case.backend)
    ours = not registry.foreign("backend", f"{backend.of}/{backend.name}")
    ours = ours and not registry.is_peer(case.owner, case.backend)
    return ours and backend.equivalent and (backend.error_bound is None or case.model in ORDINARY)


def _predicted_s(case: Case) -> tuple[bool, float, str]:
    """Order backends by the predicted time of a call, those that declare nothing last."""
    backend = registry.backend(case.owner, case.backend)
    declares = backend.kernels or (backend.launches is not None and backend.workspace is not None)
    return not declares, predicted_call_s(case), case.backend


def forecast_s(case: Case, training: Training) -> float:
    """Forecast the seconds of a case: its steps, and the references, which loops over time are."""
    known = registry.backend_names(case.owner)
    loop = predicted_call_s(replace(case, backend=BASELINE)) if BASELINE in known else 0.0
    fixed_s = {"cpu": 0.4, "cuda": 4.0}[case.device]
    return fixed_s + training.step_layers * (CALLS * predicted_call_s(case) + REFERENCES * loop)


@functools.cache
def block_options(model: str, shape: Shape) -> Mapping[str, Any]:
    """Choose the width of a block's channel mixing with which it has as many parameters as a transformer's.

    Blocks without a channel mixing whose width can be chosen have the parameters of their paper's layer.
    """
    cls: Any = registry.model(model).cls
    if model == TRANSFORMER or "hidden" not in inspect.signature(cls.block).parameters:
        return {}
    sizes = shape.with_(B=1, T=1)
    narrow, wide = (_layer(model, sizes, hidden=factor * HIDDEN_STEP) for factor in (1, 2))
    wanted = _transformer(narrow.width)
    per_step = parameters_of(wide) - parameters_of(narrow)
    if not per_step or wanted is None:
        return {}
    return {"hidden": HIDDEN_STEP * max(1, 1 + round((wanted - parameters_of(narrow)) / per_step))}


def parameters_of(module: Any) -> int:
    """Count the parameters of a module, each shared one once."""
    return sum(parameter.numel() for parameter in module.parameters())


@functools.cache
def _transformer(width: int) -> int | None:
    """Count the parameters of a transformer's layer of a width; None if it takes no such width."""
    try:
        return parameters_of(_layer(TRANSFORMER, {"H": 1, "K": width, "V": width}))
    except UsageError:
        return None


def _layer(model: str, sizes: Mapping[str, int], **options: Any) -> Block:
    """Build one layer of a network, without the parts that depend on its depth."""
    cls: Any = registry.model(model).cls
    with torch.random.fork_rng(devices=[]):
        mixer = cls(sizes)
        block: Block = mixer.block(mixer, **options)
    return block
