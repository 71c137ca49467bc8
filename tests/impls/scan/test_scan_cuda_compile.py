"""The cuda scan's kernels compile without a GPU, keep everything in registers, and are cached."""

from __future__ import annotations

from pathlib import Path

import pytest
from ssmperf.impls._cuda import program
from ssmperf.impls._cuda.program import Program
from ssmperf.impls.scan._cuda import sizes
from ssmperf.impls.scan._cuda.sizes import SOURCES, Variant
from support.without_gpu import compiled_table
from support.without_gpu.compiled import SHARED_BYTES
from support.without_gpu.compiled_cases import ARCHS, CASES, CudaCase

from ssmperf import Unsupported
from ssmperf.engine.cases.failure import failure_of

SUBJECTS = [
    pytest.param(case, arch, id=f"{case.name} sm_{arch}")
    for case in CASES
    if isinstance(case, CudaCase)
    for arch in ARCHS
    if case.on(arch)
]
if reason := SUBJECTS[0].values[0].missing():
    pytest.skip(reason, allow_module_level=True)

TYPES = {2: "bfloat16", 4: "float", 8: "complex64"}


def variant(pass_: str, schedule: str, gate: int, data: int, arch: int) -> Variant:
    """List the variants for gates and data of some widths."""
    chained = schedule == "chain"
    cut = sizes.tiles(pass_, gate, data, chained=chained)
    flags = {"const": (False, False), "aligned": True, "chained": chained}
    return sizes.variant(pass_, TYPES[gate], TYPES[data], cut, **flags, shared_bytes=SHARED_BYTES[arch])


FORWARD = variant("forward", "strand", 4, 4, 90)


@pytest.mark.slow(but=("fp32 bf16 strand sm_90",))
@pytest.mark.parametrize(("case", "arch"), SUBJECTS)
def test_kernels_need_what_the_table_says(case: CudaCase, arch: int) -> None:
    differences = compiled_table.differences(compiled_table.read(), case, arch, case.usage(arch))
    assert not differences, "\n".join([*differences, f"update: {compiled_table.UPDATE}"])


@pytest.mark.parametrize("arch", SHARED_BYTES)
@pytest.mark.parametrize("key", sorted(sizes.TABLE), ids=str)
def test_tiles_fit_in_shared_memory(key: tuple[str, str, int, int], arch: int) -> None:
    assert variant(*key, arch).shared_bytes <= SHARED_BYTES[arch]


def test_fewer_slots_where_shared_memory_is_small() -> None:
    slots = {arch: [variant(*key, arch).tiles.slots for key in sorted(sizes.TABLE)] for arch in (86, 90)}
    assert sum(slots[86]) < sum(slots[90])
    assert all(few <= many for few, many in zip(slots[86], slots[90], strict=True))


def test_an_error_of_nvrtc_names_the_line_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    sources, step = program.sources(SOURCES), "int row = run() * STEPS"
    planted = sources["forward.cu"].replace(step, "int row = missing() * STEPS", 1)
    line = planted.partition("missing()")[0].count("\n") + 1
    monkeypatch.setattr(program, "sources", lambda folder: {**sources, "forward.cu": planted})
    with pytest.raises(Exception, match="NVRTC_ERROR_COMPILATION") as raised:
        FORWARD.program.compiled("sm_90")
    reason = failure_of(raised.value).reason
    assert reason.startswith('NVRTCError: identifier "missing" is undefined: `int row = missing() * STEPS')
    assert reason.replace(f"{Path.cwd()}/", "").endswith(
        f" at {SOURCES / 'forward.cu'}:{line} (replay)".replace(f"{Path.cwd()}/", "")
    )


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(Unsupported, match="does not know sm_199"):
        FORWARD.program.compiled("sm_199")


class TestCache:
    @pytest.fixture(autouse=True)
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiled = 0

        def compiled(made: Program, arch: str) -> bytes:
            self.compiled += 1
            return f"{made.file} {arch}".encode()

        monkeypatch.setattr(Program, "compiled", compiled)

    def cubin(self, folder: Path, arch: str = "sm_90") -> bytes:
        return FORWARD.program.cubin(arch, folder)

    def test_compiles_once(self, tmp_path: Path) -> None:
        folder = tmp_path / "new" / "folder"
        assert self.cubin(folder) == self.cubin(folder) == b"forward.cu sm_90"
        assert self.compiled == 1
        assert [file.suffix for file in folder.iterdir()] == [".cubin"]

    @pytest.mark.parametrize("damage", [b"", b"\0", b"\0" * 100])
    def test_a_damaged_entry_is_compiled_anew(self, tmp_path: Path, damage: bytes) -> None:
        self.cubin(tmp_path)
        (entry,) = tmp_path.iterdir()
        whole = entry.read_bytes()
        for wrong in (damage, whole[:-1], whole + b"x"):
            before = self.compiled
            entry.write_bytes(wrong)
            assert self.cubin(tmp_path) == b"forward.cu sm_90"
            assert self.compiled == before + 1
            assert entry.read_bytes() == whole

    def test_each_architecture_and_source_has_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.cubin(tmp_path)
        assert self.cubin(tmp_path, "sm_80") == b"forward.cu sm_80"
        changed = program.sources(SOURCES) | {"walk.cuh": "changed"}
        monkeypatch.setattr(program, "sources", lambda folder: changed)
        self.cubin(tmp_path)
        assert self.compiled == 3

    def test_where_nothing_can_be_kept_it_compiles(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for _ in range(2):
            assert self.cubin(tmp_path / "file" / "folder") == b"forward.cu sm_90"
        assert self.compiled == 2

    def test_follows_the_cache_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        FORWARD.program.cubin("sm_90")
        assert len(list((tmp_path / "ssmperf" / "cuda").iterdir())) == 1
