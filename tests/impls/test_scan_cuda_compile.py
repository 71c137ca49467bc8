"""The cuda scan's kernels compile without a GPU, keep everything in registers, and are cached."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from ssmperf.impls.scan._cuda import program, sizes
from ssmperf.impls.scan._cuda.sizes import Variant

from ssmperf import Unsupported, registry

if reason := registry.backend("scan", "cuda").missing("cuda"):
    pytest.skip(reason, allow_module_level=True)
try:
    program.compiler()
except Unsupported as refusal:
    pytest.skip(str(refusal), allow_module_level=True)

triton = pytest.importorskip("triton", reason="its cuobjdump reads what a kernel uses")

# Shared memory that a block can have.
DEVICES = {"sm_80": 163 << 10, "sm_86": 99 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}
TYPES = [
    ("float", "float"),
    ("float", "bfloat16"),
    ("bfloat16", "bfloat16"),
    ("float16", "float16"),
    ("bfloat16", "float"),
]


def variant(pass_: str, types: tuple[str, str], arch: str, **flags: bool) -> Variant:
    flags = {"const": False, "aligned": True, "chained": False} | flags
    return sizes.variant(pass_, *types, **flags, shared_bytes=DEVICES[arch])


def usage(cubin: bytes, folder: Path) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    command = [str(tool), "--dump-resource-usage", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {key: int(re.search(rf"\b{key}:(\d+)", text)[1]) for key in ("REG", "STACK", "LOCAL")}


@pytest.mark.slow
@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_compiles_without_spills(tmp_path: Path, pass_: str, types: tuple[str, str], arch: str) -> None:
    for const, aligned, chained in [
        (False, True, False),
        (False, True, True),
        (True, True, True),
        (False, False, True),
    ]:
        made = variant(pass_, types, arch, const=const, aligned=aligned, chained=chained)
        assert made.shared_bytes <= DEVICES[arch]
        found = usage(program.compiled(made, arch), tmp_path)
        assert found["STACK"] == found["LOCAL"] == 0, (made, found)
        assert found["REG"] * made.tiles.threads * made.tiles.blocks <= 1 << 16


def test_fewer_slots_where_shared_memory_is_small() -> None:
    types = ("bfloat16", "bfloat16")
    assert variant("forward", types, "sm_86").tiles.slots < variant("forward", types, "sm_90").tiles.slots


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(Unsupported, match="does not know sm_199"):
        program.compiled(variant("forward", ("float", "float"), "sm_90"), "sm_199")


class TestCache:
    SUBJECT = variant("forward", ("float", "float"), "sm_90")

    @pytest.fixture(autouse=True)
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiled = 0

        def compiled(variant: Variant, arch: str) -> bytes:
            self.compiled += 1
            return f"{variant.pass_} {arch}".encode()

        monkeypatch.setattr(program, "compiled", compiled)

    def cubin(self, folder: Path, arch: str = "sm_90") -> bytes:
        return program.cubin(self.SUBJECT, arch, folder)

    def test_compiles_once(self, tmp_path: Path) -> None:
        folder = tmp_path / "new" / "folder"
        assert self.cubin(folder) == self.cubin(folder) == b"forward sm_90"
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
            assert self.cubin(tmp_path) == b"forward sm_90"
            assert self.compiled == before + 1
            assert entry.read_bytes() == whole

    def test_each_architecture_and_source_has_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.cubin(tmp_path)
        assert self.cubin(tmp_path, "sm_80") == b"forward sm_80"
        changed = dict(program.sources()) | {"walk.cuh": "changed"}
        monkeypatch.setattr(program, "sources", lambda: changed)
        self.cubin(tmp_path)
        assert self.compiled == 3

    def test_where_nothing_can_be_kept_it_compiles(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for _ in range(2):
            assert self.cubin(tmp_path / "file" / "folder") == b"forward sm_90"
        assert self.compiled == 2

    def test_follows_the_cache_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        program.cubin(self.SUBJECT, "sm_90")
        assert len(list((tmp_path / "ssmperf" / "cuda").iterdir())) == 1
