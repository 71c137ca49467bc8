"""A step of a plan that launches a kernel of CUDA C++, whose arguments have 64 bits each."""

from __future__ import annotations

from collections.abc import Sequence

from .._triton.slots import Packed, Parameter, Places, Slot, Step, pack


class CudaStep(Step):
    """A grid, and a kernel's arguments: slots that it reads and writes, some maybe missing, and sizes."""

    def __init__(self, grid: int, slots: Sequence[Slot | None], sizes: Sequence[int]) -> None:
        self.grid, self.slots, self.sizes = grid, tuple(slots), list(sizes)
        self.indices = [None if slot is None else slot.index for slot in slots]
        self.uses = frozenset(index for index in self.indices if index is not None)
        self.device = next(slot.device for slot in slots if slot is not None)

    def kernel_needs(self) -> tuple[int, int, int]:
        """The kernel's handle on the current device, where it is loaded, its threads and shared bytes."""
        raise NotImplementedError

    def packed(self, places: Places) -> Packed | None:
        if not self.grid:
            return None
        handle, threads, shared = self.kernel_needs()
        return pack(handle, (self.grid, 1, 1), threads, shared, self.parameters(), places)

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
