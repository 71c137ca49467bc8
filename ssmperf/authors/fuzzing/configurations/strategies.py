"""Strategies of hypothesis for classes and examples, ordered so that hypothesis shrinks to the simplest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from ssmperf.authors.fuzzing.configurations.space import FuzzClass, FuzzExample, Space
from ssmperf.engine.cases.calls.call import (
    AUTOCAST,
    CHECKPOINT,
    COMPLEX,
    DEVICE,
    DS,
    DY,
    GRAPH,
    INFERENCE,
    SHIFTS,
    STATE,
    STATELESS,
    STREAM,
)
from ssmperf.engine.cases.case import LAYOUTS, RESET, STEEP
from ssmperf.engine.machine.devices import cuda_count
from ssmperf.engine.registry.regimes import REGIMES

# sizes at which tiles, vectors and masks begin or end, and primes
EDGES = (
    1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 15, 16, 17, 23, 24, 31, 32, 33, 47, 48, 61, 63, 64, 65, 80, 96, 97, 100,
    113, 127, 128, 129, 160, 191, 192, 193, 251, 255, 256, 257, 509, 511, 512, 513, 1021, 1023, 1024, 1025,
    2047, 2048, 2049, 4093, 4095, 4096, 4097, 8191, 8193, 16_384, 32_767, 65_536, 65_537, 99_991,
)  # fmt: skip
OPERAND_VIEWS = ("sliced", "strided", "transposed", "expanded", *SHIFTS)
# half of them not shifted
VIEWS = st.one_of(st.sampled_from(OPERAND_VIEWS[:4]), st.sampled_from(OPERAND_VIEWS))
GRADIENT_VIEWS = (*OPERAND_VIEWS, "missing")
OF_CUDA = (STREAM, GRAPH)  # words of how a call is made that mean nothing on a CPU
SHARED = (1, 2, 3, 4, 8)  # heads per key head
FEW_SHARED = SHARED[:2]  # in Triton's interpreter
HALF = ("bfloat16", "float16")
SEEDS = 8  # values differ by class anyway, and a small number is shrunk in few steps


def often(usual: Any, *others: Any, weight: int = 3) -> st.SearchStrategy[Any]:
    """Choose the usual value `weight` times as often as all others together."""
    return st.sampled_from((usual,) * max(1, weight * len(others)) + others)


def sizes(most: int, legal: Sequence[int] | None = None) -> st.SearchStrategy[int]:
    """Draw a size of at most `most`: any, or one at which a kernel's tiles begin or end.

    legal: the sizes that a backend takes; the least of them if all are above `most`.
    """
    edges = [size for size in EDGES if size <= most]
    if legal is None:
        return st.one_of(st.integers(1, min(most, 16)), st.sampled_from(edges))
    small = [size for size in sorted(legal)[:16] if size <= most]
    kinds = [small, [size for size in edges if size in legal]]
    return st.one_of(*(st.sampled_from(found) for found in [*filter(None, kinds)] or [[min(legal)]]))


@st.composite
def classes(draw: Any, space: Space) -> FuzzClass:
    """Draw a class of a space."""
    gate_kind = draw(st.sampled_from(space.gate_kinds))
    # in the interpreter, a pass with gradients takes ten times as long as another
    weight = 0 if space.interpreted else 2
    pass_ = draw(often(*_mostly("forward_backward", space.passes), weight=weight))
    dtype = draw(st.sampled_from(space.dtypes))
    gate_dtype = "float64" if dtype == "float64" else draw(often(*_gate_dtypes(dtype)))
    layouts = [each for each in LAYOUTS if each in space.backend.layouts]
    layout = draw(often(*layouts)) if layouts else LAYOUTS[0]
    shares = space.recurrence.shares_heads and space.model is None
    return FuzzClass(
        space,
        draw(compiled_sizes(space)),
        gate_kind,
        pass_,
        dtype,
        gate_dtype,
        layout,
        draw(often(*(FEW_SHARED if space.interpreted else SHARED), weight=1)) if shares else 1,
        tuple(draw(class_words(space, gate_kind, pass_, dtype, layout))),
    )


@st.composite
def compiled_sizes(draw: Any, space: Space) -> tuple[tuple[str, int], ...]:
    """Draw the sizes that are compiled in: each by itself, or those of a layer in use."""
    letters, budget = space.compiled_letters, space.budget
    found, left = [], budget.elements
    for letter in letters:
        size = draw(sizes(max(1, min(budget.size, left)), space.backend.sizes.get(letter)))
        found.append((letter, size))
        left //= size
    # drawn last, so that a layer's sizes are shrunk to those by themselves
    if space.workload_sizes and draw(often(False, True)):
        return tuple(draw(st.sampled_from(space.workload_sizes)).items())
    return tuple(found)


@st.composite
def class_words(draw: Any, space: Space, gate_kind: str, pass_: str, dtype: str, layout: str) -> list[str]:
    """Draw the words of a call that decide what is compiled."""
    words: list[str] = draw(often("", *space.recurrence.calls, weight=1)).split() if not space.model else []
    names, gradients = space.tensors(gate_kind), pass_ == "forward_backward"
    typed = {word.partition(":")[0] for word in words if ":" in word}
    if layout == LAYOUTS[0] and draw(often(False, True, weight=1)):
        views = VIEWS if dtype in HALF else st.one_of(VIEWS, st.just("negated"))
        words += [f"{name}:{draw(views)}" for name in draw(some_of(names))]
    elif layout == LAYOUTS[0] and space.of_key_heads and draw(often(False, True, weight=2)):
        words += [f"{name}:one_head" for name in space.of_key_heads]
    if dtype in HALF and "float32" in space.dtypes and draw(often(False, True)):
        cast = [name for name in draw(some_of(names)) if gradients or name != STATE]
        words += [f"{name}:float32" for name in cast if name not in typed]
    if not gradients and dtype != "float64" and space.turns and draw(often(False, True, weight=2)):
        others = COMPLEX[1:] if gate_kind.endswith("_complex") else COMPLEX
        words.append(f"{STATE}:{draw(st.sampled_from(others))}")  # a call with phases may have left it
    if gradients and draw(often(False, True, weight=2)):
        words.append(f"grad={','.join(draw(some_of(names)))}")
    return words


@st.composite
def examples(draw: Any, kind: FuzzClass) -> FuzzExample:
    """Draw an example of a class."""
    space, budget = kind.space, kind.space.budget
    packs = space.recurrence.packs and kind.pass_ != "decode"
    packed = draw(often(False, True)) if packs else False
    steps = kind.steps if draw(often(False, True, weight=9)) else min(kind.steps, budget.usual_steps)
    lengths = draw(packed_lengths(steps)) if packed else (draw(sizes(steps)),)
    left = max(1, budget.elements // (kind.state_size * sum(lengths)))
    batch = 1 if packed else draw(sizes(min(budget.batch, left)))
    left = max(1, left // (batch * kind.shared))
    heads = draw(sizes(min(budget.batch, left))) if "H" in space.letters else 1
    past = draw(sizes(min(64, budget.usual_steps))) if space.recurrence.grows else 1
    words = draw(example_words(kind))
    return FuzzExample(
        batch,
        lengths,
        packed,
        heads,
        past,
        draw(sources(kind)),
        draw(st.integers(0, SEEDS - 1)),
        tuple(words),
    )


def packed_lengths(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw lengths of packed sequences, some without steps and some of one, with `most` steps in all."""
    each = max(1, most // 4)
    length = st.one_of(st.integers(0, min(each, 8)), st.sampled_from([0, 1]), sizes(each))
    return st.lists(length, min_size=1, max_size=6).map(tuple).filter(lambda found: 1 <= sum(found) <= most)


@st.composite
def example_words(draw: Any, kind: FuzzClass) -> list[str]:
    """Draw the words of a call that change nothing that is compiled."""
    words = []
    if kind.pass_ == "forward_backward" and kind.layout == LAYOUTS[0]:
        ends = (DY, DS) if kind.space.recurrence.has_state else (DY,)
        missing = False
        for end in ends if draw(often(False, True, weight=2)) else ():
            view = draw(st.sampled_from((None, *GRADIENT_VIEWS)))
            if view is None or (view == "missing" and (missing or len(ends) == 1)):
                continue
            missing = missing or view == "missing"
            words.append(f"{end}:{view}")
    if kind.space.recurrence.has_state and draw(often(False, True, weight=2)):
        words.append(STATELESS)
    circumstance = draw(often(None, *circumstances(kind), weight=4))
    return [*words, circumstance] if circumstance else words


def circumstances(kind: FuzzClass) -> tuple[str, ...]:
    """List the words of where and how a call of a class may run."""
    own = CHECKPOINT if kind.pass_ == "forward_backward" else INFERENCE
    several = (DEVICE,) if kind.space.device == "cuda" and cuda_count() > 1 else ()
    casts = (AUTOCAST,) if kind.dtype != "float16" else ()  # torch's operations refuse it beside bfloat16
    return (*casts, own, *(OF_CUDA if kind.space.device == "cuda" else ()), *several)


def sources(kind: FuzzClass) -> st.SearchStrategy[str]:
    """Choose the distribution of the gates."""
    if kind.space.model:
        return often("model", f"decay/{STEEP}", f"decay/{RESET}", "decay/0")
    return st.sampled_from(REGIMES)


def some_of(names: Sequence[str]) -> st.SearchStrategy[list[str]]:
    """Choose one or several names."""
    return st.lists(st.sampled_from(names), min_size=1, max_size=min(3, len(names)), unique=True).map(sorted)


def _mostly(usual: str, known: Sequence[str]) -> tuple[str, ...]:
    """Put the usual one first, if it is known."""
    return (*((usual,) if usual in known else ()), *(each for each in known if each != usual))


def _gate_dtypes(dtype: str) -> tuple[str, ...]:
    return ("float32", dtype) if dtype in HALF else ("float32",)
