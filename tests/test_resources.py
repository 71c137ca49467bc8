"""The table of what kernels need: whole, and compared so that nothing slips through."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.without_gpu import compiled_table
from support.without_gpu.compiled import Usage
from support.without_gpu.compiled_cases import ARCHS, CASES, Case
from support.without_gpu.compiled_table import Row, Table, differences, faults, read, updated, write

ROOT = Path(__file__).parent.parent
PLAIN, SPILLING = Usage(128, 0, 4096), Usage(128, 24, 0)


class Known(Case):
    """A case of the table, said to be made by one version of a compiler."""

    compiler = "triton 1.0"

    def missing(self) -> None:
        return None

    def usage(self, arch: int) -> dict[str, Usage]:
        return {"kernel": PLAIN}


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    known = Known("scan/triton", "fp32 strand")
    monkeypatch.setattr(compiled_table, "CASES", (known,))
    return known


def table(*kernels: tuple[str, Usage], reason: str = "", compiler: str = "triton 1.0") -> Table:
    return {
        ("scan/triton", "fp32 strand", name, compiler): Row({90: usage}, reason) for name, usage in kernels
    }


def test_the_committed_table_is_whole() -> None:
    assert not faults(read())


def test_every_case_has_rows_of_every_compiler() -> None:
    committed = read()
    for case in CASES:
        same = [
            other.backend
            for other in CASES
            if other.backend.partition("/")[2] == case.backend.partition("/")[2]
        ]
        compilers = {key[3] for key in committed if key[0] in same}
        assert compilers
        for compiler in compilers:
            rows = [
                row
                for key, row in committed.items()
                if (*key[:2], key[3]) == (case.backend, case.name, compiler)
            ]
            assert {arch for row in rows for arch in row.cells} == {
                arch for arch in ARCHS if case.on(arch)
            }, f"{case.backend} {case.name}: {compiled_table.UPDATE}, with {compiler}"


def entries(folder: Path) -> set[str]:
    """Triton functions in a folder that no other one uses: kernels."""
    functions = [
        node
        for file in folder.glob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(x) for x in node.decorator_list)
    ]
    used = {node.id for function in functions for node in ast.walk(function) if isinstance(node, ast.Name)}
    return {function.name for function in functions} - used


@pytest.mark.parametrize("recurrence", sorted(file.parent.name for file in ROOT.glob("impls/*/triton.py")))
def test_every_triton_kernel_is_compiled_for_every_architecture(recurrence: str) -> None:
    least = {(case.backend, case.name): case.least for case in CASES}
    archs: dict[str, set[int]] = {}
    wanted: dict[str, set[int]] = {}
    for (backend, case, kernel, _), row in read().items():
        if backend == f"{recurrence}/triton":
            name = kernel.partition(" ")[0]
            archs.setdefault(name, set()).update(row.cells)
            able = {arch for arch in ARCHS if arch >= least[backend, case]}
            wanted.setdefault(name, set()).update(able)
    kernels = entries(ROOT / "impls" / recurrence / "_triton")
    assert kernels
    missing = {kernel for kernel in kernels if archs.get(kernel, set()) != wanted.get(kernel, set(ARCHS))}
    assert not missing, (
        "add a case to tests/support/without_gpu/compiled_cases.py, one for every architecture"
    )


def test_written_and_read_again_it_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    write(read(), file)
    assert file.read_text() == compiled_table.FILE.read_text()


def told(lines: Iterable[str], *words: str) -> bool:
    return any(all(word in line for word in words) for line in lines)


class TestDifferences:
    def test_none_where_all_is_the_same(self, case: Case) -> None:
        assert differences(table(("kernel", PLAIN)), case, 90, {"kernel": PLAIN}) == []

    def test_another_number(self, case: Case) -> None:
        for other in (Usage(127, 0, 4096), Usage(128, 0, 4095), SPILLING):
            assert told(
                differences(table(("kernel", PLAIN)), case, 90, {"kernel": other}), str(other), str(PLAIN)
            )

    def test_a_kernel_that_is_not_in_the_table(self, case: Case) -> None:
        found = {"kernel": PLAIN, "kernel 2": PLAIN}
        assert told(differences(table(("kernel", PLAIN)), case, 90, found), "kernel 2", "not in the table")
        assert told(
            differences(table(("kernel", PLAIN)), case, 80, {"kernel": PLAIN}), "sm_80", "not in the table"
        )

    def test_a_row_that_nothing_makes(self, case: Case) -> None:
        rows = table(("kernel", PLAIN), ("old", PLAIN))
        assert told(differences(rows, case, 90, {"kernel": PLAIN}), "old", "not launched")

    def test_a_version_without_rows(self, case: Case) -> None:
        rows = table(("kernel", PLAIN), compiler="triton 0.9")
        assert told(differences(rows, case, 90, {"kernel": PLAIN}), "no rows of triton 1.0")

    def test_a_spill_needs_a_reason(self, case: Case) -> None:
        found = {"kernel": SPILLING}
        assert told(differences(table(("kernel", SPILLING)), case, 90, found), "spills 24 bytes")
        assert differences(table(("kernel", SPILLING), reason="four blocks fit"), case, 90, found) == []


class TestFaults:
    def test_spills_and_reasons_come_together(self, case: Case) -> None:
        assert told(faults(table(("kernel", SPILLING))), "gives no reason")
        assert told(faults(table(("kernel", PLAIN), reason="why not")), "has none")
        assert faults(table(("kernel", SPILLING), reason="four blocks fit")) == []

    def test_cases_that_are_no_more(self, case: Case) -> None:
        assert told(
            faults({("scan/triton", "old", "kernel", "triton 1.0"): Row({90: PLAIN})}), "no such case"
        )
        rows = {("scan/triton", "fp32 strand", "kernel", "triton 1.0"): Row({80: PLAIN})}
        assert told(faults(rows), "not compiled for all")


class TestUpdate:
    def test_replaces_its_own_rows_and_keeps_other_versions(self, case: Case) -> None:
        other = table(("old", PLAIN), compiler="triton 0.9")
        new = updated(table(("old", PLAIN)) | other, {(case, 90): {"kernel": PLAIN}})
        assert new == table(("kernel", PLAIN)) | other

    def test_forgets_cases_that_are_no_more(self, case: Case) -> None:
        old = {("scan/triton", "old", "kernel", "triton 0.9"): Row({90: PLAIN})}
        assert updated(old, {(case, 90): {"kernel": PLAIN}}) == table(("kernel", PLAIN))

    def test_a_reason_stays_as_long_as_the_spill(self, case: Case) -> None:
        before = table(("kernel", SPILLING), reason="four blocks fit")
        assert updated(before, {(case, 90): {"kernel": SPILLING}}) == before
        assert updated(before, {(case, 90): {"kernel": PLAIN}}) == table(("kernel", PLAIN))

    def test_another_version_inherits_the_reason(self, case: Case) -> None:
        before = table(("kernel", SPILLING), reason="four blocks fit", compiler="triton 0.9")
        after = updated(before, {(case, 90): {"kernel": SPILLING}})
        assert after == before | table(("kernel", SPILLING), reason="four blocks fit")
