"""The table of what kernels need, tests/impls/resources.csv: a line for each kernel of a case and compiler.

A cell holds registers of a thread / bytes that it spills / bytes of shared memory of a block. It is empty for
an architecture that the case is not compiled for. A line whose kernel spills says why that is worth it.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.without_gpu.compiled import Usage
from support.without_gpu.compiled_cases import ARCHS, CASES, Case

FILE = Path(__file__).parents[2] / "impls" / "resources.csv"
KEY = ("backend", "case", "kernel", "compiler")
CELLS = tuple(f"sm_{arch}" for arch in ARCHS)
UPDATE = "python ci/resources.py --write"

Key = tuple[str, str, str, str]


@dataclass
class Row:
    cells: dict[int, Usage] = field(default_factory=dict)
    reason: str = ""


Table = dict[Key, Row]


def read(file: Path = FILE) -> Table:
    table: Table = {}
    with file.open(newline="") as lines:
        for line in csv.DictReader(lines):
            cells = {
                arch: Usage.parse(line[name]) for arch, name in zip(ARCHS, CELLS, strict=True) if line[name]
            }
            backend, case, kernel, compiler = (line[name] for name in KEY)
            table[backend, case, kernel, compiler] = Row(cells, line["reason"])
    return table


def write(table: Table, file: Path = FILE) -> None:
    """Write in the order of cases, then of launches; versions of a compiler stand side by side."""
    places = {(case.backend, case.name): place for place, case in enumerate(CASES)}
    kernels = {key[:3]: place for place, key in reversed(list(enumerate(table)))}
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow([*KEY, *CELLS, "reason"])
        for key in sorted(table, key=lambda key: (places[key[:2]], kernels[key[:3]], key[3])):
            row = table[key]
            writer.writerow([*key, *(str(row.cells.get(arch, "")) for arch in ARCHS), row.reason])


def updated(table: Table, found: Mapping[tuple[Case, int], Mapping[str, Usage]]) -> Table:
    """The table with new findings for all cases of some backends, by the compilers installed here.

    Rows of other backends and versions stay, but for those of cases that are no more. A reason stays with a
    kernel that spills; another version's kernel of the same name inherits it.
    """
    made = {(case.backend, case.compiler) for case, _ in found}
    known = {(case.backend, case.name) for case in CASES}
    reasons = {key[:3]: row.reason for key, row in table.items() if row.reason}
    fresh: Table = {}
    for (case, arch), kernels in found.items():
        for kernel, usage in kernels.items():
            key = (case.backend, case.name, kernel, case.compiler)
            fresh.setdefault(key, Row()).cells[arch] = usage
    for key, row in fresh.items():
        if any(usage.spilled for usage in row.cells.values()):
            row.reason = table[key].reason if key in table else reasons.get(key[:3], "")
    kept = {key: row for key, row in table.items() if (key[0], key[3]) not in made and key[:2] in known}
    return fresh | kept


def differences(table: Table, case: Case, arch: int, found: Mapping[str, Usage]) -> list[str]:
    """How the needs of one case's kernels differ from the table."""
    if not any(key[3] == case.compiler for key in table):
        return [f"no rows of {case.compiler}"]
    rows = {
        key[2]: row
        for key, row in table.items()
        if (*key[:2], key[3]) == (case.backend, case.name, case.compiler)
    }
    listed = {kernel: row.cells[arch] for kernel, row in rows.items() if arch in row.cells}
    lines = [f"{kernel} is not in the table: {found[kernel]}" for kernel in found.keys() - listed.keys()]
    lines += [f"{kernel} is in the table but is not launched" for kernel in listed.keys() - found.keys()]
    for kernel in found.keys() & listed.keys():
        if found[kernel] != listed[kernel]:
            lines.append(f"{kernel} needs {found[kernel]}, in the table it is {listed[kernel]}")
        if found[kernel].spilled and not rows[kernel].reason:
            lines.append(f"{kernel} spills {found[kernel].spilled} bytes, and its line gives no reason")
    return [f"{case.backend} {case.name} sm_{arch} {case.compiler}: {line}" for line in sorted(lines)]


def faults(table: Table) -> list[str]:
    """List the faults of the table itself: cases that are not, spills without a reason, reasons without."""
    cases = {(case.backend, case.name): case for case in CASES}
    lines = []
    for key, row in table.items():
        case = cases.get(key[:2])
        spills = any(usage.spilled for usage in row.cells.values())
        if case is None:
            lines.append(f"{' '.join(key)}: there is no such case")
        elif any(not case.on(arch) for arch in row.cells):
            lines.append(f"{' '.join(key)}: it is not compiled for all of these architectures")
        if spills and not row.reason:
            lines.append(f"{' '.join(key)}: it spills, and its line gives no reason")
        if row.reason and not spills:
            lines.append(f"{' '.join(key)}: it gives a reason for spills and has none")
    return lines
