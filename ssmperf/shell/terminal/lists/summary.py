"""The table of models in 80 columns: who computes each, here, on a GPU and in other packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ssmperf.engine import registry
from ssmperf.engine.machine.devices import cuda_count
from ssmperf.engine.registry.declarations import Backend, ModelEntry

FOLDED = 3  # models of one name's beginning, from which on they share a row
SEVERAL = "several"
LEGEND = (
    "here, GPU: backends that compute it on this machine, and on a GPU",
    "peers: kernels of other packages that could",
    "Next: ssmperf list MODEL    its options, sizes and every backend",
    "      ssmperf list pese_    the models of a family",
    "      ssmperf list --wide   a column per backend, and the papers",
)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model, or several whose names begin alike, with numbers of backends."""

    name: str
    recurrence: str
    gate: str
    here: str
    gpu: str
    peers: str

    @property
    def family(self) -> str:
        """What the names of models that belong together have in common, such as `pese_`."""
        separator = ":" if ":" in self.name else "_"
        return self.name.partition(separator)[0] + separator if separator in self.name else ""


def is_family(name: str) -> bool:
    """Tell whether a name is the beginning of several models' names, such as `pese_`."""
    return name.endswith(("_", ":")) and any(each.startswith(name) for each in registry.models())


def table(family: str = "") -> str:
    """Draw the table of all models, with families folded, or of the models of one family."""
    from tabulate import tabulate

    rows = [_row(entry) for name, entry in registry.models().items() if name.startswith(family)]
    rows = rows if family else folded(rows)
    cells = [(row.name, row.recurrence, row.gate, row.here, row.gpu, row.peers) for row in rows]
    headers = ("model", "recurrence", "gate", "here", "GPU", "peers")
    drawn = tabulate(cells, headers=headers, tablefmt="simple", colalign=("left",) * 3 + ("right",) * 3)
    return "\n".join((drawn, "", *LEGEND))


def folded(rows: Sequence[ModelRow]) -> list[ModelRow]:
    """Join the rows of models whose names begin alike, if there are several."""
    families: dict[str, list[ModelRow]] = {}
    for row in rows:
        families.setdefault(row.family or row.name, []).append(row)
    found = []
    for name, members in families.items():
        found += [_joined(name, members)] if len(members) >= FOLDED else members
    return sorted(found, key=lambda row: row.name)


def _joined(name: str, members: Sequence[ModelRow]) -> ModelRow:
    def common(values: Sequence[str]) -> str:
        return values[0] if len(set(values)) == 1 else SEVERAL

    def span(values: Sequence[str]) -> str:
        least, most = min(values, key=int), max(values, key=int)
        return least if least == most else f"{least}–{most}"

    return replace(
        members[0],
        name=f"{name}… ({len(members)})",
        recurrence=common([each.recurrence for each in members]),
        gate=common([each.gate for each in members]),
        here=span([each.here for each in members]),
        gpu=span([each.gpu for each in members]),
        peers=span([each.peers for each in members]),
    )


def _row(entry: ModelEntry) -> ModelRow:
    backends = [each for each in registry.backends(entry.name) if _takes(each, entry.gate)]
    own = [each for each in backends if not registry.is_peer(entry.name, each.name)]
    device = "cuda" if cuda_count() else "cpu"
    here = [each for each in backends if each.missing(device) is None]
    gpu = [each for each in own if "cuda" in each.devices]
    return ModelRow(
        entry.name, entry.recurrence, entry.gate, str(len(here)), str(len(gpu)), str(len(backends) - len(own))
    )


def _takes(backend: Backend, gate: str) -> bool:
    return backend.gates is None or gate in backend.gates
