"""The space of configurations: what a recurrence, a backend and a device declare that a call may have.

A configuration has two parts. A `FuzzClass` has what a kernel is compiled for: its sizes, gates, dtypes,
options and views. A `FuzzExample` has what changes from call to call: batch, length, values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ssmperf.engine import registry
from ssmperf.engine.cases.calls.call import CHECKPOINT, GRAD, INFERENCE, STATE, STATELESS
from ssmperf.engine.cases.calls.call import NONE as PLAIN
from ssmperf.engine.cases.calls.packing import UNPACKED, read_packing
from ssmperf.engine.cases.case import MODEL, Case
from ssmperf.engine.cases.shape import RUN_TIME, Shape, size_problem
from ssmperf.engine.operands.dtypes import differentiable
from ssmperf.engine.plan.workloads import reading
from ssmperf.engine.registry.declarations import Backend, Recurrence

SUITE = "fuzz"


@dataclass(frozen=True, slots=True)
class Budget:
    """The most work of an example.

    size: largest size of a dimension that is compiled in. steps: longest sequence; most examples are shorter
    than `usual_steps`. elements: of the states at all steps. batch: most sequences, or heads.
    of_class: examples of each class; more of them where a class is compiled, which takes most of the time.
    """

    size: int
    steps: int
    usual_steps: int
    elements: int
    batch: int
    of_class: int


BUDGETS = {
    "cpu": Budget(size=144, steps=300, usual_steps=40, elements=1 << 16, batch=6, of_class=4),
    "cuda": Budget(size=272, steps=100_000, usual_steps=4_096, elements=1 << 26, batch=40, of_class=10),
}
# programs take their turn, a tenth of a second each, and a head may have thirty of them in a call
INTERPRETED = Budget(size=144, steps=150, usual_steps=20, elements=1 << 10, batch=2, of_class=3)


def budget_of(backend: Backend, device: str) -> Budget:
    """Choose the most work of a backend's examples on a type of device."""
    return INTERPRETED if is_interpreted(backend, device) else BUDGETS[device]


def is_interpreted(backend: Backend, device: str) -> bool:
    """Tell whether kernels of a backend run on this type of device in Triton's interpreter alone."""
    return device == "cpu" and device not in backend.devices


@dataclass(frozen=True, slots=True)
class Space:
    """The configurations of one backend of a recurrence, or of a model on its own operands, on a device."""

    owner: str
    backend: Backend
    device: str
    budget: Budget
    recurrence: Recurrence = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "recurrence", registry.recurrence(registry.recurrence_of(self.owner)))

    @property
    def model(self) -> str | None:
        return None if self.owner == self.recurrence.name else self.owner

    @property
    def letters(self) -> tuple[str, ...]:
        """The dimensions of the recurrence's presets."""
        presets = self.recurrence.presets
        if self.model and registry.model(self.model).presets:
            presets = registry.model(self.model).presets
        return tuple(next(shape for shapes in presets.values() for shape in shapes))

    @property
    def compiled_letters(self) -> tuple[str, ...]:
        return tuple(letter for letter in self.letters if letter not in RUN_TIME)

    @property
    def gate_kinds(self) -> tuple[str, ...]:
        own = (registry.model(self.model).gate,) if self.model else self.recurrence.gate_kinds
        return tuple(kind for kind in own if self.backend.gates is None or kind in self.backend.gates)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that the backend and the model take, the simplest first."""
        taken = set(self.backend.dtypes)
        if self.model:
            taken &= set(registry.model(self.model).dtypes)
        return tuple(each for each in ("float32", "float64", "bfloat16", "float16") if each in taken)

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes, the simplest first. A pass `backward` is judged like one with its forward pass."""
        known = ("forward", "forward_backward", "decode")
        return tuple(
            each
            for each in known
            if each in self.backend.passes and (each != "decode" or self.recurrence.has_state)
        )

    def operands(self, gate_kind: str) -> Mapping[str, Any]:
        """Draw small operands of a kind of gate, which show what operands there are."""
        return sampled(self.recurrence.name, gate_kind)

    def tensors(self, gate_kind: str) -> tuple[str, ...]:
        """Name the tensor operands of a kind of gate, the initial state included."""
        found = [name for name, value in self.operands(gate_kind).items() if differentiable(value)]
        return (*found, STATE) if self.recurrence.has_state else tuple(found)

    @property
    def of_key_heads(self) -> tuple[str, ...]:
        """Name the operands that heads may share."""
        shapes = self.recurrence.operand_shapes.items()
        return tuple(name for name, text in shapes if self.recurrence.shares_heads and "G" in text)

    @property
    def turns(self) -> bool:
        """Whether gates of the recurrence may make its state complex."""
        return any(kind.endswith("_complex") for kind in self.recurrence.gate_kinds)

    @property
    def interpreted(self) -> bool:
        return is_interpreted(self.backend, self.device)

    @property
    def workload_sizes(self) -> tuple[Mapping[str, int], ...]:
        """The sizes of the layers in use that lower to the recurrence, without heads."""
        found = layer_sizes(self.recurrence.name, self.compiled_letters, self.budget.size)
        return tuple(
            sizes
            for sizes in found
            if math.prod(sizes.values()) <= self.budget.elements
            and not any(size_problem(*each, sizes) for each in self.backend.sizes.items())
        )


@functools.cache
def sampled(recurrence: str, gate_kind: str) -> Mapping[str, Any]:
    """Draw the operands of a kind of gate at the smallest sizes."""
    entry = registry.recurrence(recurrence)
    letters = next(shape for shapes in entry.presets.values() for shape in shapes)
    shape = Shape(dict.fromkeys(letters, 2))
    options = {"gate_kind": gate_kind} if gate_kind else {}
    generator = torch.Generator().manual_seed(0)
    found = entry.sample(shape, regime="sigmoid", generator=generator, **options)
    return {name: value for name, value in found.items() if value is not None}


@functools.cache
def layer_sizes(recurrence: str, letters: tuple[str, ...], most: int) -> tuple[Mapping[str, int], ...]:
    """List the sizes of workloads in these letters, as far as none is too large."""
    found: dict[tuple[int, ...], Mapping[str, int]] = {}
    for name in reading.names():
        layer = reading.of_name(name)
        sizes = {letter: layer.sizes[letter] for letter in letters if letter in layer.sizes}
        same = registry.recurrence_of(layer.model) == recurrence
        if same and len(sizes) == len(letters) and max(sizes.values(), default=0) <= most:
            found.setdefault(tuple(sizes.values()), sizes)
    return tuple(found[key] for key in sorted(found))


@dataclass(frozen=True, slots=True)
class FuzzClass:
    """The part of a configuration for which kernels are compiled.

    sizes: of the dimensions by letter, without those of the run time. shared: heads per key head.
    words: of the call.
    """

    space: Space
    sizes: tuple[tuple[str, int], ...]
    gate_kind: str
    pass_: str
    dtype: str
    gate_dtype: str
    layout: str
    shared: int
    words: tuple[str, ...]

    @property
    def state_size(self) -> int:
        """The elements of the state of a head."""
        return math.prod(size for _, size in self.sizes)

    @property
    def steps(self) -> int:
        """The most steps that a sequence may have."""
        budget = self.space.budget
        return 1 if self.pass_ == "decode" else max(1, min(budget.steps, budget.elements // self.state_size))


@dataclass(frozen=True, slots=True)
class FuzzExample:
    """The part of a configuration that changes from call to call.

    heads: key heads. lengths: of packed sequences, or of the only one. past: steps before a decoded one, in a
    state that grows.
    """

    batch: int = 1
    lengths: tuple[int, ...] = (1,)
    packed: bool = False
    heads: int = 1
    past: int = 1
    source: str = "sigmoid"
    seed: int = 0
    words: tuple[str, ...] = ()


def case_of(kind: FuzzClass, example: FuzzExample) -> Case:
    """Make the case of a class and an example, which may have been drawn for another class."""
    space = kind.space
    packed = example.packed and space.recurrence.packs and kind.pass_ != "decode" and sum(example.lengths) > 0
    sizes: dict[str, int] = dict(kind.sizes)
    sizes["B"] = 1 if packed else example.batch
    sizes["T"] = 1 if kind.pass_ == "decode" else sum(example.lengths) or 1
    if "H" in space.letters:
        sizes["H"] = example.heads * kind.shared
        if kind.shared > 1:
            sizes["G"] = example.heads
    if kind.pass_ == "decode" and space.recurrence.grows:
        sizes["S"] = example.past
    return Case(
        SUITE,
        space.recurrence.name,
        space.backend.name,
        Shape(sizes),
        space.model,
        dtype=kind.dtype,
        gate_dtype=kind.gate_dtype,
        layout=kind.layout,
        operand_source=source_of(kind, example.source),
        device=space.device,
        pass_=kind.pass_,
        seed=example.seed,
        packing=read_packing(example.lengths) if packed else UNPACKED,
        call=" ".join(words_of(kind, example)) or PLAIN,
    )


def words_of(kind: FuzzClass, example: FuzzExample) -> list[str]:
    """Join the words of a class and an example, as far as they mean something together."""
    gradients = kind.pass_ == "forward_backward"
    apart = {INFERENCE} if gradients else {CHECKPOINT}
    own = [word for word in example.words if word not in apart and (gradients or ":" not in word)]
    if kind.pass_ == "decode" or STATELESS not in own:
        return [*kind.words, *(word for word in own if word != STATELESS)]
    return [*filter(None, map(_without_state, kind.words)), *own]


def _without_state(word: str) -> str:
    """Give a word without the initial state; empty if it is about nothing else."""
    if word.startswith(f"{GRAD}="):
        names = [name for name in word.removeprefix(f"{GRAD}=").split(",") if name != STATE]
        return f"{GRAD}={','.join(names)}" if names else ""
    return "" if word.startswith(f"{STATE}:") else word


def source_of(kind: FuzzClass, source: str) -> str:
    """Name the source of operands: a regime with the class's kind of gate, or the model's own."""
    if kind.space.model:
        return source if source.startswith("decay/") else MODEL
    regime = source if source != "phase" or kind.gate_kind.endswith("_complex") else "sigmoid"
    return f"{regime}/{kind.gate_kind}"
