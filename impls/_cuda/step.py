"""A step of a plan that launches a kernel of CUDA C++, whose arguments have 64 bits each."""

from __future__ import annotations

from collections.abc import Sequence

from .._triton.slots import Parameter, Slot, Step


class CudaStep(Step):
    """A kernel's arguments: slots that it reads and writes, of which some may be missing, and sizes."""

    def __init__(self, slots: Sequence[Slot | None], sizes: Sequence[int]) -> None:
        self.slots, self.sizes = tuple(slots), list(sizes)
        self.indices = [None if slot is None else slot.index for slot in slots]
        self.uses = frozenset(index for index in self.indices if index is not None)
        self.device = next(slot.device for slot in slots if slot is not None)

    def given(self, pointers: Sequence[int | None]) -> list[int]:
        """The arguments of a call whose slots lie at these addresses."""
        return [0 if index is None else pointers[index] or 0 for index in self.indices] + self.sizes

    def parameters(self) -> list[Parameter]:
        slots: list[Parameter] = [("i64", 0) if slot is None else ("*i8", slot) for slot in self.slots]
        return [*slots, *(("i64", size) for size in self.sizes)]

    def obstacle(self) -> str:
        try:
            from .._triton import together

            if not together.on_gpu(self.device):
                return "it runs on no GPU"
            together.launcher()
        except Exception as problem:  # no Triton, or no compiler of C
            return f"the launcher cannot be compiled: {type(problem).__name__}: {problem}"
        return ""
