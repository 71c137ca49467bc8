"""Fixed cases: the edges that random sizes seldom meet. They are judged first, and are not shrunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ssmperf.authors.fuzzing.configurations.space import FuzzClass, FuzzExample, Space, case_of
from ssmperf.engine.cases.case import LAYOUTS, Case
from ssmperf.engine.cases.pattern import parse

PROGRAMS = 65_535  # the most of a CUDA grid's second and third axis
BLOCK = 128  # channels, or steps, that one program may take
SMALL = 16
BATCH = FuzzExample(batch=2, lengths=(33,), heads=2)
PACKINGS = ((0, 5, 3), (5, 3, 0), (0, 0, 4, 0), (1, 1, 1))  # empty sequences first, last, beside each other


@dataclass(frozen=True, slots=True)
class FixedCases:
    """The fixed cases of a space. gate_kind: the kind of gate that they have."""

    space: Space
    gate_kind: str

    def __iter__(self) -> Iterator[Case]:
        small, unit = self._class(SMALL), self._class(1)
        yield case_of(unit, FuzzExample())
        yield from self._small_in_half_precision()  # the cheapest first
        yield case_of(small, replace(BATCH, lengths=(1,)))
        if self.space.recurrence.packs:
            for lengths in PACKINGS:
                yield case_of(small, FuzzExample(lengths=lengths, packed=True, heads=2))
        if self.space.recurrence.shares_heads and not self.space.model:
            yield case_of(replace(small, shared=2 if self.space.interpreted else 8), BATCH)
        for words in self._far():
            yield case_of(replace(small, words=(words,)), BATCH)
        if not self.space.interpreted:  # there a grid has no largest axis, and takes hours
            yield from self._many_programs(unit)

    def _small_in_half_precision(self) -> Iterator[Case]:
        """Draw values near the edge of half precision, at an even and an odd size, for each kind of gate."""
        dtype = next((each for each in ("float16", "bfloat16") if each in self.space.dtypes), None)
        if dtype is None or self.space.model:
            return
        for gate_kind in self.space.gate_kinds:
            for size, length in ((2, 5), (3, 1)):
                kind = replace(self._class(size), gate_kind=gate_kind, dtype=dtype, gate_dtype="float32")
                yield case_of(kind, FuzzExample(lengths=(length,), source="small"))

    def _many_programs(self, unit: FuzzClass) -> Iterator[Case]:
        """Make more programs than a grid's axis may have: of sequences, heads, channels and steps."""
        most = PROGRAMS + 2
        yield case_of(unit, FuzzExample(batch=most, lengths=(2,)))
        if "H" in self.space.letters:
            yield case_of(unit, FuzzExample(heads=most, lengths=(2,)))
        on_gpu = self.space.device == "cuda"
        for letter in ("C", "D"):
            if letter in self.space.compiled_letters and not self._squares(letter):
                channels = most * BLOCK if on_gpu else most
                sizes = tuple((each, channels if each == letter else 1) for each, _ in unit.sizes)
                yield case_of(replace(unit, sizes=sizes), FuzzExample(lengths=(2,)))
        longest = self.space.recurrence.longest
        if on_gpu and not self.space.recurrence.grows and longest is None:
            yield case_of(replace(unit, pass_=self.space.passes[0]), FuzzExample(lengths=(most * SMALL,)))

    def _far(self) -> Iterator[str]:
        """Lay one operand after another beyond the offsets that 32 bits hold."""
        for name in self.space.tensors(self.gate_kind):
            if self.space.recurrence.operand_shapes.get(name, "").startswith("B "):
                yield f"{name}:far"

    def _squares(self, letter: str) -> bool:
        """Tell whether an operand has a dimension on two axes, and is too large where that is long."""
        patterns = map(parse, self.space.recurrence.operand_shapes.values())
        alternatives = (axes for each in patterns for axes in each.alternatives)
        return any([axis.letter for axis in axes].count(letter) > 1 for axes in alternatives)

    def _class(self, size: int) -> FuzzClass:
        space = self.space
        sizes = tuple((letter, self._legal(letter, size)) for letter in space.compiled_letters)
        pass_ = next(each for each in ("forward_backward", *space.passes) if each in space.passes)
        dtype = space.dtypes[0]
        gate_dtype = "float64" if dtype == "float64" else "float32"
        return FuzzClass(space, sizes, self.gate_kind, pass_, dtype, gate_dtype, LAYOUTS[0], 1, ())

    def _legal(self, letter: str, size: int) -> int:
        """Give the size next to one, from above, that the backend takes."""
        legal = self.space.backend.sizes.get(letter, (size,))
        return min((each for each in legal if each >= size), default=max(legal))


def fixed_cases(spaces: Sequence[Space], most: int | None = None) -> list[Case]:
    """List the fixed cases of spaces, each with one kind of gate; at most `most`."""
    found = [case for space in spaces for case in FixedCases(space, space.gate_kinds[0])]
    return found[:most]
