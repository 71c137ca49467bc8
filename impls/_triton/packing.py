"""Steps of a plan, and how a launch is packed for the launcher in C: see `launcher.c`."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from .slots import Slot

INTEGER = re.compile(r"[iu](1|8|16|32|64)")
PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)")

Parameter = tuple[str, Any]  # Triton's name of its type, and the argument, maybe a slot
Packed = tuple[Any, ...]  # as the launcher takes a kernel
Places = Mapping[int, tuple[int, int]]  # by slot: a place among a call's tensors, and bytes from there


class Step:
    """One launch of a plan. uses: indices of the slots that it reads or writes."""

    uses: frozenset[int]

    def __call__(self, tensors: Sequence[Tensor | None], pointers: Sequence[int | None], stream: int) -> None:
        """Enqueue it, given the tensor and the address of every slot."""
        raise NotImplementedError

    def obstacle(self) -> str:
        """Say why it must be enqueued by itself; nothing if C may do it together with others."""
        return "a step is no kernel"

    def packed(self, places: Places) -> Packed | None:
        """Load the kernel on the current device, and pack its launch; None if it has no programs."""
        raise NotImplementedError


def pack(
    function: int,
    grid: Sequence[int],
    threads: int,
    shared: int,
    parameters: Sequence[Parameter],
    places: Places,
) -> Packed | None:
    """A launch as the launcher takes it; None if it has no programs."""
    if 0 in grid:
        return None
    addresses = b"".join(
        struct.pack("<QQQ", number, *places[value.index])
        for number, (_, value) in enumerate(parameters)
        if isinstance(value, Slot)
    )
    words = b"".join(word(kind, value) for kind, value in parameters)
    return function, tuple(grid), threads, shared, words, addresses


def word(kind: str, value: Any) -> bytes:
    """A parameter in 8 bytes, of which the driver reads the first ones; an address is filled in later."""
    if kind[0] == "*":
        return bytes(8)
    if kind in ("fp32", "fp64"):
        return struct.pack("<d" if kind == "fp64" else "<fxxxx", value)
    return struct.pack("<Q", int(value) & 0xFFFF_FFFF_FFFF_FFFF)


def obstacle(compiled: Any, parameters: Sequence[Parameter]) -> str:
    """Say why a kernel that Triton compiled must go through Triton's own launcher; nothing if it need not."""
    metadata = compiled.metadata
    if metadata.target.backend != "cuda":
        return f"{metadata.target.backend} has another driver"
    needs = {
        "num_ctas": "a cluster",
        "launch_cooperative_grid": "a cooperative launch",
        "launch_pdl": "a dependent launch",
        "global_scratch_size": "global scratch memory",
        "profile_scratch_size": "scratch memory of a profiler",
    }
    usual = {"num_ctas": 1}
    for name, text in needs.items():
        if int(getattr(metadata, name, 0)) != usual.get(name, 0):
            return f"{metadata.name} needs {text}"
    widths = []
    for kind, value in parameters:
        width = width_of(kind)
        if width is None or (kind[0] == "*") != isinstance(value, Slot):
            return f"{metadata.name} has a parameter of type {kind}"
        widths.append(width)
    declared = [int(width) for width in PARAMETER.findall(head(compiled.asm["ptx"]))]
    if declared != [*widths, 64, 64]:  # scratch memory comes last, even if there is none
        return f"{metadata.name} has other parameters than its signature says"
    return ""


def head(ptx: str) -> str:
    """The declaration of a kernel, without its body."""
    start = ptx.index(".entry")
    return ptx[start : ptx.index(")", start)]


def width_of(kind: str) -> int | None:
    """Bits of a parameter; None if it is of a kind that is not known here."""
    if kind[0] == "*" or kind == "fp64":
        return 64
    if kind == "fp32":
        return 32
    return max(8, int(kind[1:])) if INTEGER.fullmatch(kind) else None
