"""ThreadSanitizer watches the threads that stand in for a Hopper's, in each kernel of the cuda delta rule."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from ssmperf.impls._triton import plan
from ssmperf.impls.delta_rule import cuda
from ssmperf.impls.delta_rule._cuda import function
from ssmperf.impls.delta_rule._cuda.program import KERNELS, SOURCES, Kernel
from support.without_gpu.cuda_host import COMPILER, compile
from support.without_gpu.hopper_host import HERE, OPTIONS

pytestmark = [pytest.mark.slow, pytest.mark.skipif(COMPILER is None, reason="needs g++")]

ROOM = 1 << 21  # words of each operand, more than any has
# 'p' stands for an operand, all of whose numbers are 0.1, in float32 and in bfloat16.
MAIN = """
int main(int count, char** words) {
    std::vector<long long> given;
    for (int i = 2; i < count; ++i) {
        if (*words[i] != 'p') {
            given.push_back(std::atoll(words[i]));
            continue;
        }
        auto* room = new std::vector<unsigned>(%d, 0x3dcd3dcd);
        given.push_back((long long)room->data() + 15 & ~15);
    }
    run_%s(std::atoi(words[1]), given.data());
}
"""
CHUNKS, STATE = 5, 128

# A kernel, lines of its file, and what is left out of them.
FREE = "wait_at(FREE, parity ^ 1)"
FAULTS = {
    "blocks on the diagonal": (
        "chunks.cu",
        "cuda_delta_chunks",
        "invert_blocks();\n        barrier()",
        "barrier()",
    ),
    "room of `halved`": ("gradients.cu", "cuda_delta_gradients", FREE + ";\n    unsigned", FREE),
    "the state of an edge": ("carry.cu", "cuda_delta_carry", "x[i]);\n        barrier()", "barrier()"),
}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Kernel, int, list[int]]]:
    """Grid and arguments of all kernels, of calls in which none of them runs."""
    found: dict[str, tuple[Kernel, int, list[int]]] = {}

    def launch(kernel: Kernel, grid: int, arguments: list[int], device: int, stream: int) -> None:
        found.setdefault(kernel.name, (kernel, grid, arguments))

    monkeypatch.setattr(function, "launch", launch)
    monkeypatch.setattr(function, "RESIDENT", 1)
    monkeypatch.setattr(function, "processors", lambda device: 1)  # so that a block takes all chunks
    T = 64 * (CHUNKS - 1) + 5
    q, k, v = (torch.zeros(1, T, 1, STATE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    rates = torch.zeros(1, T, 1)
    for wide in (False, True):
        for segments in (1, 3):
            plan.forget()
            monkeypatch.setattr(function, "waves", lambda *blocks, wide=wide: (1, wide))
            monkeypatch.setattr(function, "segments_of", lambda *sizes, segments=segments: segments)
            o, _ = cuda.cuda(q, k, v, rates, rates)
            o.sum().backward()
    plan.forget()
    return found


def races(kernel: Kernel, grid: int, arguments: list[int], folder: Path, fault: str | None = None) -> bool:
    sources, source, program = folder / "sources", folder / "main.cpp", folder / "program"
    shutil.copytree(SOURCES, sources)
    if fault is not None:
        file, _, before, left_out = FAULTS[fault]
        text = (sources / file).read_text()
        assert text.count(before) == 1
        (sources / file).write_text(text.replace(before, before.replace(left_out, "")))
    run = f"RUN({kernel.name}, {kernel.threads}, {kernel.shared_bytes})"
    source.write_text(f'#include "{kernel.file}"\n{run}\n{MAIN % (ROOM, kernel.name)}')
    options = [each for each in OPTIONS if each not in ("-shared", "-fPIC")]
    compile([*options, "-g", "-fsanitize=thread", f"-I{HERE}", f"-I{sources}", str(source)], program)
    words = ["p" if each > ROOM else str(each) for each in arguments]
    done = subprocess.run([program, str(grid), *words], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0 or "data race" in done.stderr, done.stderr[:2000]
    return "data race" in done.stderr


@pytest.mark.parametrize("name", [each.name for each in KERNELS])
def test_threads_do_not_race(
    name: str, launched: dict[str, tuple[Kernel, int, list[int]]], tmp_path: Path
) -> None:
    assert not races(*launched[name], tmp_path)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_missing_barrier_is_noticed(
    fault: str, launched: dict[str, tuple[Kernel, int, list[int]]], tmp_path: Path
) -> None:
    assert races(*launched[FAULTS[fault][1]], tmp_path, fault)
