"""The selections of workloads: one for each form in which a phase of a layer is called."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssmperf.engine.cases.calls.packing import lengths_of, read_packing
from ssmperf.engine.cases.case import TRAINING_PASSES
from ssmperf.engine.plan.selection import Selection, WorkloadUse
from ssmperf.engine.plan.sizes import Sizes
from ssmperf.engine.plan.workloads.huggingface import of_configuration
from ssmperf.engine.plan.workloads.reading import names, of_name, read
from ssmperf.engine.plan.workloads.workload import Workload
from ssmperf.errors import UnknownName, UsageError

EVERY = "all"
TRAIN, PREFILL, DECODE = PHASES = ("train", "prefill", "decode")
USUAL = {TRAIN: TRAINING_PASSES, PREFILL: ("forward",), DECODE: (DECODE,)}  # passes
FILES = (".json", ".toml")  # a model's configuration, and a workload's file
OVERRIDES = ("B", "T")  # the sizes that may be named beside a workload
PREFILLED = 32_768  # tokens of one sequence
PACKED = ("1300,547,2048,963,271,3063", "1024x8")
DECODED = (1, 64)  # sequences of which a token is decoded
SMALL, SMALL_PACKED = 128, "60,67,0,1"  # T and packing at the preset smoke
_NAME = re.compile(r"(?P<name>.+?)(?::(?P<phase>[\w-]*))?(?:@tp(?P<ranks>[0-9]{1,4}))?")


@dataclass(frozen=True, slots=True)
class Form:
    """One way to call a layer: with which passes, and sequences of which sizes.

    passes: None for the suite's own. judged: whether suites take part that rank nothing.
    """

    passes: tuple[str, ...] | None
    B: tuple[int, ...] = (1,)
    T: tuple[int, ...] = (1,)
    packing: str | None = None
    judged: bool = True


def with_workloads(selection: Selection, texts: Sequence[str]) -> Selection:
    """Give a selection the parts of workloads: NAME[:PHASE][@tpN], or a file instead of the name, or `all`.

    Raises:
        UnknownName, UsageError: there is no such workload, its file cannot be read, the ranks do not divide
            it, the selection names what the workload decides, or a phase is left without a pass.
    """
    named = [each.name for each in selection.sizes if each.name not in OVERRIDES]
    if selection.models is not None or named:
        what = "--models" if selection.models is not None else f"the axis {named[0]}"
        raise UsageError(f"a workload has its model and sizes: leave out {what}, or --workload")
    parts = [part for text in dict.fromkeys(texts) for part in _parts(text, selection)]
    if not parts:
        raise UsageError(f"no phase of these workloads has the pass {', '.join(selection.passes or ())}")
    _check_names(parts)
    models = tuple(dict.fromkeys(model for part in parts for model in part.models or ()))
    return replace(selection, models=models, parts=tuple(parts))


def _check_names(parts: Iterable[Selection]) -> None:
    """Refuse two layers of one name, such as those of two folders' config.json, whose answers would mix."""
    layers: dict[str, Any] = {}
    for part in parts:
        assert part.use is not None
        sizes = {each.name: each.sizes for each in part.sizes if each.name not in OVERRIDES}
        if layers.setdefault(part.use.workload, (part.models, sizes)) != (part.models, sizes):
            raise UsageError(f"two workloads are named {part.use.workload}: rename the file of one")


def named(text: str) -> tuple[list[Workload], str | None]:
    """Read NAME[:PHASE][@tpN]: the workload, or all of them, and the phase if there is one.

    Raises:
        UnknownName, UsageError: as `with_workloads`.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise UsageError(f"--workload takes names such as qwen3-next-80b:decode@tp8, got {text!r:.200}")
    phase, ranks = match["phase"], int(match["ranks"] or 1)
    if phase is not None and phase not in PHASES:
        raise UnknownName("phase of a workload", phase, PHASES)
    if ranks < 1:
        raise UsageError(f"{text}: @tp takes a number of ranks from 1")
    chosen = names() if match["name"] == EVERY else [match["name"]]
    found = [workload(name) for name in chosen]
    return [each if ranks == 1 else each.on_ranks(ranks) for each in found], phase


def are_workloads(text: str) -> bool:
    """Tell whether comma-separated names, such as qwen3-next-80b:decode, begin with that of a workload."""
    match = _NAME.fullmatch(text.partition(",")[0].strip())
    return match is not None and (match["name"] in names() or match["name"].endswith(FILES))


def workload(text: str) -> Workload:
    """Find a workload by its name, or read it from a model's configuration or from a file like ours.

    Raises:
        UnknownName, UsageError: there is none, or the file does not say what a layer is.
    """
    if text.endswith(FILES[0]):
        return of_configuration(Path(text))
    return read(Path(text)) if text.endswith(FILES[1]) else of_name(text)


def _parts(text: str, selection: Selection) -> Iterator[Selection]:
    layers, only = named(text)
    for layer, phase in itertools.product(layers, PHASES if only is None else (only,)):
        forms = list(forms_of(phase, layer, selection, named=only is not None))
        if only is not None and not forms:
            raise UsageError(f"{text}: one token cannot be packed")
        for form in forms:
            yield _part(layer, phase, form, selection)


def _part(layer: Workload, phase: str, form: Form, selection: Selection) -> Selection:
    sizes = [Sizes(letter, (size,)) for letter, size in layer.sizes.items()]
    choices = dict(selection.choices)
    if form.passes is not None:
        choices["pass_"] = form.passes
    if form.packing is not None:
        choices["packing"] = form.packing
    return replace(
        selection,
        models=(layer.model,),
        sizes=(*sizes, Sizes("B", form.B), Sizes("T", form.T)),
        choices=choices,
        use=WorkloadUse(layer.name, phase, form.judged),
    )


def forms_of(phase: str, layer: Workload, selection: Selection, *, named: bool) -> Iterable[Form]:
    """List the forms of a phase. T, B, packing and passes of the selection stand instead of the phase's.

    named: whether the phase is. Else it has no other passes than are usual in it.
    """
    asked = {each.name: each.sizes for each in selection.sizes}
    small = selection.scale.thinned
    passes = USUAL[phase] if selection.passes is None else selection.passes
    if not named:
        passes = tuple(each for each in passes if each in USUAL[phase])
    if not passes or (phase == DECODE and selection.packing is not None):
        return
    own = None if phase == TRAIN and selection.passes is None else passes
    if phase == DECODE:
        yield Form(own, asked.get("B", (1,) if small else DECODED))
        return
    if selection.packing is not None:
        yield _packed(own, selection.chosen("packing"))
        return
    T, B = (PREFILLED, 1) if phase == PREFILL else layer.trained_at
    if small:
        T, B = SMALL, 1
    several = phase == PREFILL and not asked
    yield Form(own, asked.get("B", (B,)), asked.get("T", (T,)), judged=not several)
    if several:
        for packing in (SMALL_PACKED,) if small else PACKED:
            yield _packed(own, packing)


def _packed(passes: tuple[str, ...] | None, packing: str) -> Form:
    packing = read_packing(packing)
    return Form(passes, T=(sum(lengths_of(packing) or ()),), packing=packing)
