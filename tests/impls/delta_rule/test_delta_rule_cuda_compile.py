"""The cuda delta rule's kernels compile without a GPU, and the compiler lets their products run on."""

from __future__ import annotations

import functools
import re
import subprocess
import threading
from pathlib import Path

import pytest
from ssmperf.impls._cuda.program import Program
from ssmperf.impls.delta_rule._cuda import program as programs
from ssmperf.impls.delta_rule._cuda.program import ARCH, KERNELS
from support.without_gpu import compiled_table
from support.without_gpu.compiled import SHARED_BYTES, cuobjdump
from support.without_gpu.compiled_cases import CASES, FULL, HopperCase

(CASE,) = (case for case in CASES if isinstance(case, HopperCase))
if reason := CASE.missing():
    pytest.skip(reason, allow_module_level=True)

STATIC = 1024  # bytes that alignment may take before the rest
FILES = sorted({each.file for each in KERNELS})


@pytest.mark.slow
def test_kernels_need_what_the_table_says() -> None:
    found = CASE.usage(FULL)
    assert not compiled_table.differences(compiled_table.read(), CASE, FULL, found), compiled_table.UPDATE
    for kernel in KERNELS:
        assert found[kernel.name].shared <= SHARED_BYTES[FULL], kernel
        assert found[kernel.name].registers * kernel.threads <= 1 << 16, kernel


def listing_of(file: str, tmp_path: Path) -> str:
    (program,) = {each.program for each in KERNELS if each.file == file}
    cubin = tmp_path / "code.cubin"
    cubin.write_bytes(program.compiled(ARCH))
    disassembler = cuobjdump().with_name("nvdisasm")
    return subprocess.run([disassembler, "-c", cubin], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow(but=("chunks.cu", "walk.cu"))
@pytest.mark.parametrize("file", FILES)
def test_the_compiler_puts_no_wait_behind_each_product(file: str, tmp_path: Path) -> None:
    """Where it cannot follow a product's sums, ptxas waits for each product before the next."""
    listing = listing_of(file, tmp_path)
    products, waits = listing.count("HGMMA"), listing.count("WARPGROUP.DEPBAR")
    assert products >= 8 or file == "carry.cu"
    assert waits <= products // 4


@pytest.mark.slow(but=("walk_back_wide.cu",))
@pytest.mark.parametrize("file", [each for each in FILES if each not in ("carry.cu", "chunks.cu")])
def test_groups_ask_for_more_registers_than_they_have_or_give_some_away(file: str, tmp_path: Path) -> None:
    """To take fewer, or to give away and have more, is an illegal instruction."""
    (begun,) = {(1 << 16) // each.threads // 8 * 8 for each in KERNELS if each.file == file}
    asked = re.findall(r"USETMAXREG\.(TRY_ALLOC|DEALLOC)\S* .*?(0x[0-9a-f]+)", listing_of(file, tmp_path))
    assert len(asked) >= 3
    for way, count in asked:
        assert (int(count, 16) > begun) == (way == "TRY_ALLOC"), (way, count)


def test_programs_are_compiled_beside_each_other_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    imported: list[bool] = []
    both = threading.Barrier(2, timeout=60)

    def cubin(program: Program, arch: str) -> bytes:
        assert imported  # or threads would import the compiler at once
        begun.append(program.file)
        both.wait()  # which nothing passes alone
        return program.file.encode()

    monkeypatch.setattr(programs, "_codes", {})
    monkeypatch.setattr(programs, "import_compiler", lambda: imported.append(True))
    monkeypatch.setattr(Program, "cubin", cubin)
    monkeypatch.setattr(programs, "load", lambda code, *given: code)
    names = {each.file: each.program for each in KERNELS}
    wanted = ["chunks.cu", "walk.cu", "walk.cu", "chunks.cu"]
    assert [each.result() for each in [programs.compiling(names[file]) for file in wanted]] == [
        file.encode() for file in wanted
    ]
    assert sorted(begun) == ["chunks.cu", "walk.cu"]


def test_a_program_that_failed_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([MemoryError("no room"), b"code"])

    def cubin(program: Program, arch: str) -> bytes:
        if isinstance(given := next(found), Exception):
            raise given
        return given

    monkeypatch.setattr(programs, "_codes", {})
    monkeypatch.setattr(Program, "cubin", cubin)
    monkeypatch.setattr(programs, "load", lambda code, *given: code)
    monkeypatch.setattr(programs, "loaded", functools.cache(programs.loaded.__wrapped__))
    with pytest.raises(MemoryError):
        programs.loaded(KERNELS[0], 0)
    assert programs.loaded(KERNELS[0], 0) == b"code"
