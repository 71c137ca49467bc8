"""Workload: a layer of a model in use, with its sizes, gates and phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ssmperf.errors import UsageError

TRAINED_AT = (4096, 2)  # T and B where no source says how a layer is trained
DIVIDED = ("H", "C", "D")  # of these letters, the one that a layer has is divided over ranks


@dataclass(frozen=True, slots=True)
class Workload:
    """A layer of a model in use.

    model: the model of its recurrence, with options as `--models` takes them.
    sizes: the layer's dimensions by letter, without B and T. G, key heads, only where they differ from H.
    trained_at: T and B per GPU.
    layers: how many layers of that kind the model has, of how many; None where no source says it.
    context: the longest sequence that the model is made for, in tokens.
    gates: the published layer's formula of its gates, with its initial values.
    source: where sizes, gates and lengths were read.
    assumed: keys that a configuration lacks, with the defaults that were taken, as text.
    """

    name: str
    model: str
    sizes: Mapping[str, int]
    trained_at: tuple[int, int] = TRAINED_AT
    layers: tuple[int, int] | None = None
    context: int | None = None
    gates: str = ""
    source: str = ""
    assumed: Mapping[str, str] = field(default_factory=dict)

    def on_ranks(self, ranks: int) -> Workload:
        """Give the part of one rank under tensor parallelism: its heads, or channels.

        Key heads are divided where they divide; else each rank has all of them.

        Raises:
            UsageError: the ranks do not divide the layer.
        """
        letter = next(each for each in DIVIDED if each in self.sizes)
        whole = self.sizes[letter]
        if whole % ranks:
            raise UsageError(f"{self.name}@tp{ranks}: its {letter} = {whole} is not divisible by {ranks}")
        sizes = {**self.sizes, letter: whole // ranks}
        if "G" in sizes:
            _divide_key_heads(sizes, ranks, f"{self.name}@tp{ranks}")
        return replace(self, name=f"{self.name}@tp{ranks}", sizes=sizes)


def _divide_key_heads(sizes: dict[str, int], ranks: int, name: str) -> None:
    """Divide G where it divides; one key head per head is not named.

    Raises:
        UsageError: the heads of a rank do not share its key heads.
    """
    if sizes["G"] % ranks == 0:
        sizes["G"] //= ranks
    if sizes["H"] % sizes["G"]:
        raise UsageError(f"{name}: {sizes['H']} heads per rank do not share {sizes['G']} key heads")
    if sizes["G"] == sizes["H"]:
        del sizes["G"]
