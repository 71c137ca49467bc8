"""Block sizes of the kernels, by the widths of the operands, of keys and of values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from triton import next_power_of_2

from ssmperf.authoring import Table

LEAST = 16  # width of a tile that goes into a product


@dataclass(frozen=True, slots=True)
class Tiles:
    """Block sizes of the kernels.

    chunk: steps of a chunk, a power of two ≥ 16.
    key, value: widths of the tiles of K and V that a program owns; inner: of those that a product sums over.
    pair_key: width of the tiles of K in the pairwise gradient kernel, run by one warp.
    carry: elements of the state that one program carries over the chunks.
    precision: of float32 products: "ieee" (FMA units) or "tf32x3" (three tensor-core passes).
    walk: width of the strip of values with which a program walks through the chunks of a head; 0 computes
        all chunks beside each other and keeps what they add to the state. walk_warps, walk_stages: of that
        program; both sizes shrink to the device's shared memory. fill: programs per multiprocessor below
        which heads are cut into segments of time. keeping: width of the strip of gated heads that fill the
        device while states are kept, with eight warps and two stages; 0 is that of walk.
    grad_key, grad_warps, grad_stages: width of the tiles of K in the gradients after a walk, of both parts of
        complex channels together under key gates; of that program.
    """

    chunk: int = 64
    key: int = 64
    value: int = 64
    inner: int = 64
    warps: int = 4
    stages: int = 2
    pair_key: int = 32
    carry: int = 1024
    precision: str = "ieee"
    walk: int = 0
    walk_warps: int = 4
    walk_stages: int = 3
    fill: int = 1
    keeping: int = 0
    grad_key: int = 64
    grad_warps: int = 4
    grad_stages: int = 3

    def __post_init__(self) -> None:
        widths = (self.chunk, self.key, self.value, self.inner, self.pair_key, self.grad_key)
        walks = (self.walk, self.keeping, self.walk_warps, self.grad_warps)
        powers = (*widths, *walks, self.warps, self.carry)
        least = min(*widths, self.walk or 16, self.keeping or 16)
        if any(size & (size - 1) for size in powers) or least < 16:
            raise ValueError("sizes are powers of two, and widths and the chunk at least 16")
        stages = (self.stages, self.walk_stages, self.grad_stages)
        counts = (*stages, self.warps, self.carry, self.walk_warps, self.grad_warps, self.fill)
        if min(counts) < 1 or self.precision not in ("ieee", "tf32x3"):
            raise ValueError("all counts are above 0, and precision is ieee or tf32x3")


def row(widths: str, K: int, V: int) -> Tiles:
    if widths == "float32":
        return Tiles(chunk=32, key=32, value=32, inner=16, stages=1)
    cut = Tiles(key=min(K, 128), value=V, warps=8 if max(K, V) > 64 else 4, walk=64)
    return cut if K <= 128 else replace(cut, walk=32, keeping=64)


WALKS = ((32, 4, 2), (32, 4, 3), (64, 4, 2), (64, 4, 3), (64, 8, 3), (128, 8, 2))  # width, warps, stages
CURATED = {
    (widths, K, V): row(widths, K, V)
    for widths in ("float32", "half")
    for K in (64, 128, 256)
    for V in (64, 128)
}


def candidates(widths: str, K: int, V: int) -> Iterator[Tiles]:
    """List the configurations that differ from the curated one in one size; for half types mostly walks."""
    cut = CURATED[widths, K, V]
    yield from (replace(cut, chunk=chunk) for chunk in (cut.chunk // 2, 2 * cut.chunk))
    if widths == "half":
        for width, warps, stages in WALKS:
            if width <= V:
                yield replace(cut, walk=width, walk_warps=warps, walk_stages=stages)
        yield replace(cut, fill=2)
        yield replace(cut, grad_stages=2)
        yield replace(cut, grad_key=32)
        yield replace(cut, walk=0)
        if cut.keeping:
            yield replace(cut, keeping=0)
    else:
        yield from (replace(cut, warps=warps) for warps in (cut.warps // 2, 2 * cut.warps) if warps <= 8)
        yield from (replace(cut, key=key) for key in (cut.key // 2, 2 * cut.key) if 16 <= key <= K)
        yield from (
            replace(cut, value=value) for value in (cut.value // 2, 2 * cut.value) if 16 <= value <= V
        )
        yield from (replace(cut, stages=stages) for stages in (2, 3))
        yield replace(cut, carry=2 * cut.carry)


TILES = Table("linear_attention/triton", Tiles, CURATED, candidates)


def tiles(K: int, V: int, *, wide: bool) -> Tiles:
    """Block sizes for key and value widths, of float32 operands (`wide`) or of half ones."""
    key = 64 if K <= 64 else 128 if K <= 128 else 256
    return TILES["float32" if wide else "half", key, 128 if V > 64 else 64]


def width_of(size: int, most: int) -> int:
    """Width of the tiles of a dimension: a power of two, at least what a product takes."""
    return max(LEAST, min(most, next_power_of_2(size)))


def values_at_once(V: int, BK: int, most: int) -> int:
    """Width of the tiles of values over which a program with BK keys sums their gradients.

    Beside fewer than 64 keys, V takes at least two passes, or one of 16 values. Triton 3.6 folds the loop of
    a single wider pass, and the kernel that it then makes for Hopper reads outside of shared memory.
    """
    BV = width_of(V, most)
    return BV // 2 if V <= BV and BK < 64 and BV > LEAST else BV
