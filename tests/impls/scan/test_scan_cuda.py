"""The cuda scan against the definition in float64: its kernels on a CPU by way of g++, and on a GPU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ssmperf.impls.scan._cuda import function, sizes
from ssmperf.impls.scan._cuda.sizes import SOURCES, Tiles, Variant
from support.kernels.kernel_check import kernel_check, outcome
from support.without_gpu.cuda_host import COMPILER, GROUP, Host, build, made_once, of_sources
from torch import Tensor

from ssmperf import REGIMES, Unsupported, UsageError
from ssmperf.authoring import log_gates
from ssmperf.suitekit import registry

ENTRY = registry.backend("scan", "cuda")
DEFINITION = registry.recurrence("scan").definition
NAMES = ("log_a", "b", "initial_state", "phase")
SMALL = Tiles(steps=2, warps=2, vector=2, lanes=32, slots=3, blocks=1, group=GROUP)  # 4 steps × 64 channels
TILE = SMALL.length

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++")
needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(ENTRY.missing("cuda") is not None, reason=str(ENTRY.missing("cuda"))),
]


def operands(
    B: int, T: int, C: int, *,
    regime: str = "sigmoid", log_a: tuple[int, ...] | None = None, state: bool = True,
    dtype: torch.dtype = torch.float32, gate_dtype: torch.dtype = torch.float32, device: str = "cpu",
    phase: tuple[int, ...] | None = None,
) -> dict[str, Tensor | None]:  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    wide = torch.float32 if phase is None else torch.complex64
    drawn = {
        "log_a": log_gates(regime, log_a or (B, T, C), generator).to(gate_dtype),
        "b": torch.randn(B, T, C, generator=generator, dtype=wide).to(dtype if phase is None else wide),
        "initial_state": torch.randn(B, C, generator=generator, dtype=wide) if state else None,
        "phase": None if phase is None else (4 * torch.randn(phase, generator=generator)).to(gate_dtype),
    }
    return {name: x if x is None else x.to(device) for name, x in drawn.items()}


def check(compute: Callable[..., Any], given: dict[str, Tensor | None], tolerance: float = 0.0) -> None:
    kernel_check("scan", compute, given, tolerance)


@pytest.fixture(scope="module")
def kernels(pytestconfig: pytest.Config) -> Path:
    """A folder of compiled kernels, which all test runs share until a source or the compiler changes."""
    folders = pytestconfig.cache.mkdir("kernels-on-host")
    folder = folders / of_sources(Path(__file__))
    folder.mkdir(exist_ok=True)
    for other in folders.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


@pytest.fixture(scope="module")
def host(kernels: Path) -> Host:
    """Three blocks run at once: fewer than the tiles of a chain."""
    return Host(kernels, resident=3)


@pytest.fixture
def scan(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """The backend as it stands, but for launches, which run on the CPU, with small tiles."""
    monkeypatch.setattr(sizes, "TABLE", dict.fromkeys(sizes.TABLE, SMALL))
    monkeypatch.setattr(function, "processors", lambda device: 0)
    host.install(function, sizes.variant, monkeypatch)
    host.launched.clear()

    def on_host(
        log_a: Tensor, b: Tensor, initial_state: Tensor | None, phase: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if phase is not None:
            phase = cuda_gate("phase", phase, b.shape)
        return function.Scan.apply(cuda_gate("log_a", log_a, b.shape), phase, b.contiguous(), initial_state)

    from ssmperf.impls.scan.cuda import _gate as cuda_gate

    yield on_host


@pytest.fixture(params=["strand", "chain"])
def schedule(request: pytest.FixtureRequest, scan: object, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(function, "processors", lambda device: 10_000 if request.param == "chain" else 0)
    return str(request.param)


@needs_compiler
class TestOnHost:
    """The kernels' own source, every thread of it."""

    @pytest.mark.slow(but=("strand-64-1", "chain-64-5", "chain-72-39"))
    @pytest.mark.parametrize("T", [1, TILE - 1, TILE + 1, (2 * GROUP + 1) * TILE + 3])
    @pytest.mark.parametrize("C", [5, 64, 72])
    def test_agrees_with_the_definition(
        self, scan: Callable[..., Any], host: Host, schedule: str, T: int, C: int
    ) -> None:
        check(scan, operands(2, T, C, regime="reset"))
        assert {v.chained for v in host.launched} == {schedule == "chain" and T > TILE}
        assert {v.aligned for v in host.launched} == {C % 4 == 0}

    @pytest.mark.parametrize(
        ("gate_dtype", "dtype"),
        [
            (torch.float32, torch.bfloat16),
            (torch.bfloat16, torch.bfloat16),
            (torch.bfloat16, torch.float32),
            (torch.float32, torch.float16),
        ],
        ids=str,
    )
    def test_dtypes(self, scan: Callable[..., Any], gate_dtype: torch.dtype, dtype: torch.dtype) -> None:
        check(scan, operands(1, 3 * TILE + 1, 72, dtype=dtype, gate_dtype=gate_dtype))

    @pytest.mark.parametrize(
        "log_a", [(8,), (1, 1, 8), (2, 1, 8), (2, 1, 1), (1, 19, 8), (2, 19, 1), (1,)], ids=str
    )
    def test_gates_that_broadcast(
        self, scan: Callable[..., Any], host: Host, schedule: str, log_a: tuple[int, ...]
    ) -> None:
        check(scan, operands(2, 19, 8, log_a=log_a), tolerance=5e-5)
        assert {v.const for v in host.launched} == {19 not in log_a}

    @pytest.mark.slow(but=("chain-(8,)-(2, 1)",))
    @pytest.mark.parametrize(
        ("log_a", "phase"), [((2, 1), (1, 1)), ((8,), (2, 1, 8)), ((8,), (2, 1)), ((2, 1), (8,))], ids=str
    )
    def test_complex_gates(
        self, scan: Callable[..., Any], schedule: str, log_a: tuple[int, ...], phase: tuple[int, ...]
    ) -> None:
        """Each a number of steps and channels, or constant in time; b is complex."""
        T = (GROUP + 1) * TILE + 3 if schedule == "chain" else 3
        shapes = [(shape[0], T, shape[1]) if len(shape) == 2 else shape for shape in (log_a, phase)]
        given = operands(2, T, 8, regime="reset", log_a=shapes[0], phase=shapes[1])
        check(scan, given, tolerance=5e-5)

    @pytest.mark.slow
    def test_where_shared_memory_is_small(
        self, scan: Callable[..., Any], host: Host, schedule: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Fewer slots, and then fewer steps: the plan and the kernel agree on it."""
        monkeypatch.setattr(sizes, "TABLE", dict.fromkeys(sizes.TABLE, replace(SMALL, steps=8)))
        monkeypatch.setattr(host, "shared_bytes", 8_000 if schedule == "chain" else 17_000)
        check(scan, operands(1, 70, 64))
        assert {v.tiles.steps < 8 for v in host.launched} == {True}

    def test_no_initial_state_and_only_wanted_gradients(
        self, scan: Callable[..., Any], schedule: str
    ) -> None:
        given = operands(1, 3 * TILE, 8, state=False)
        check(scan, given)
        b = given["b"].requires_grad_()
        h, final = scan(given["log_a"], b, None)
        want = DEFINITION(given["log_a"], b, None)
        for got, wanted in ((h, want[0]), (final, want[1])):
            (gradient,) = torch.autograd.grad(got.sum(), [b], retain_graph=True)
            torch.testing.assert_close(gradient, torch.autograd.grad(wanted.sum(), [b], retain_graph=True)[0])

    @pytest.mark.parametrize("name", NAMES[:3])
    def test_refuses_second_derivatives(self, scan: Callable[..., Any], name: str) -> None:
        given = operands(1, 5, 4)
        x = given[name].requires_grad_()
        (gradient,) = torch.autograd.grad(scan(**given)[0].square().sum(), x, create_graph=True)
        with pytest.raises(Unsupported, match=r"^scan/cuda: its backward pass .*: use one of blelloch"):
            torch.autograd.grad(gradient.sum(), x)

    def test_segments_joined_by_the_state_equal_the_whole(
        self, scan: Callable[..., Any], schedule: str
    ) -> None:
        given = operands(1, 4 * TILE, 8)
        whole, final = scan(**given)
        parts, state = [], given["initial_state"]
        for span in (slice(0, 5), slice(5, None)):
            part, state = scan(given["log_a"][:, span], given["b"][:, span], state)
            parts.append(part)
        torch.testing.assert_close(torch.cat(parts, dim=1), whole)
        torch.testing.assert_close(state, final)

    def test_same_bits_twice_and_bitwise_causal(self, scan: Callable[..., Any], schedule: str) -> None:
        given = operands(1, (GROUP + 2) * TILE, 8)
        first, second = outcome(scan, given), outcome(scan, given)
        assert all(torch.equal(first[name], second[name]) for name in first)
        later = given["b"].clone()
        later[:, TILE + 3 :] = torch.nan
        changed, _ = scan(given["log_a"], later, given["initial_state"])
        assert torch.equal(first["output"][:, : TILE + 3], changed[:, : TILE + 3].double())

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "cut",
        [
            Tiles(steps=3, warps=2, vector=1, lanes=32, slots=2, blocks=1),
            Tiles(steps=1, warps=2, vector=8, lanes=4, slots=4, blocks=1),
            Tiles(steps=4, warps=2, vector=4, lanes=8, slots=2, blocks=1),
        ],
        ids=str,
    )
    def test_other_tiles(self, scan: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, cut: Tiles) -> None:
        monkeypatch.setattr(sizes, "TABLE", dict.fromkeys(sizes.TABLE, cut))
        monkeypatch.setattr(function, "processors", lambda device: 0 if cut.steps == 4 else 10_000)
        check(scan, operands(1, 6 * cut.length + 5, 40, dtype=torch.bfloat16))


# Barriers without which threads race, as lines of walk.cuh and what to leave of them.
BARRIERS = {
    "composing": (
        "        compose(pass, slot(n), now, shared.warps, held, before);\n",
        "        barrier();\n",
    ),
    "starting": ("        wait_copies<SLOTS - 1 - !EARLY>();\n", "        barrier();\n"),
    "sharing": ("    shared.earlier[found.share][found.c] = earlier;\n", "    barrier();\n"),
    "looking back": ("        shared.entry[found.c] = entry;\n    }\n", "    barrier();\n"),
    "replaying": (
        "        if (run() == 0 && now.order == sizes.tiles() - 1) pass.finish(now, state);\n",
        "        barrier();\n",
    ),
}
RACES = [
    (pass_, schedule, fault)
    for pass_ in ("forward", "backward")
    for schedule, faults in {
        "strand": (None, "composing", "starting"),
        "chain": (None, "sharing", "looking back"),
    }.items()
    for fault in faults
] + [("forward", "chain", "replaying")]  # backward sums over the steps, behind a barrier of its own
RACING = Tiles(steps=2, warps=2, vector=2, lanes=16, slots=2, blocks=1, group=GROUP)


@pytest.fixture(scope="module")
def racing(kernels: Path) -> Callable[[str, str], Path]:
    """Programs for ThreadSanitizer to watch; their argument: which of BARRIERS is left out, from 1 on."""

    def numbered(to: Path) -> None:
        shutil.copytree(SOURCES, to)
        text = (to / "walk.cuh").read_text()
        for number, (before, barrier) in enumerate(BARRIERS.values(), 1):
            assert text.count(before + barrier) == 1
            text = text.replace(before + barrier, before + barrier.replace("()", f"({number})"))
        (to / "walk.cuh").write_text(text)

    def program(pass_: str, schedule: str) -> Path:
        def make(to: Path) -> None:
            sources = to.with_suffix(".sources")
            numbered(sources)
            cut = replace(RACING, slots=1) if schedule == "chain" else RACING
            variant = Variant(pass_, "float", "float", True, False, True, schedule == "chain", cut)
            build(variant, to, "-fsanitize=thread", "-DMAIN", sources=sources)

        return made_once(kernels / f"racing-{pass_}-{schedule}", make)

    return program


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("pass_", "schedule", "fault"), RACES, ids=str)
def test_threads_do_not_race(
    racing: Callable[[str, str], Path], pass_: str, schedule: str, fault: str | None
) -> None:
    """ThreadSanitizer notices when a barrier is left out."""
    number = 0 if fault is None else 1 + list(BARRIERS).index(fault)
    command = [racing(pass_, schedule), str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert (done.returncode == 0 and "data race" not in done.stderr) == (fault is None), done.stderr[:2000]


def test_refuses_what_it_does_not_compute() -> None:
    given = operands(1, 3, 5)
    log_a, b = given["log_a"], given["b"]
    with pytest.raises(Unsupported, match=r"b of dtype .*float64"):
        ENTRY.function(log_a, b.double())
    with pytest.raises(Unsupported, match=r"log_a of dtype .*float64"):
        ENTRY.function(log_a.double(), b)
    with pytest.raises(Unsupported, match=r"phase of dtype .*float64"):
        ENTRY.function(log_a, b, phase=log_a.double())
    with pytest.raises(UsageError, match="does not broadcast"):
        ENTRY.function(log_a[:, :2], b)
    for state in (None, torch.zeros(1, 5, dtype=torch.complex64)):
        with pytest.raises(Unsupported, match="cuda only"):
            ENTRY.function(log_a, b, state)


def test_says_why_it_cannot_run() -> None:
    reason = ENTRY.refusal(device="cpu")
    assert reason is not None
    assert "cuda" in reason
    if ENTRY.missing("cuda") is None:
        assert "time_last" in str(ENTRY.refusal(device="cuda", layout="time_last"))
        assert "7.5" in str(ENTRY.refusal(device="cuda", capability=(7, 5)))


class TestOnDevice:
    """The shipped tiles on a GPU."""

    pytestmark = needs_gpu

    @pytest.fixture(autouse=True, params=["strand", "chain"])
    def on_schedule(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(function, "ENOUGH", 0.0 if request.param == "strand" else 1e6)

    @pytest.mark.parametrize("regime", REGIMES)
    def test_regimes(self, regime: str) -> None:
        check(ENTRY.function, operands(2, 1037, 96, regime=regime, device="cuda"), tolerance=5e-5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("gate_dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_dtypes(self, dtype: torch.dtype, gate_dtype: torch.dtype) -> None:
        given = operands(2, 512, 64, regime="gla", dtype=dtype, gate_dtype=gate_dtype, device="cuda")
        check(ENTRY.function, given)

    @pytest.mark.parametrize("shape", [(1, 1, 1), (3, 129, 1), (2, 128, 33), (5, 1023, 130), (8, 640, 1536)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_shapes(self, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
        check(ENTRY.function, operands(*shape, dtype=dtype, device="cuda"))

    @pytest.mark.parametrize("log_a", [(96,), (2, 1, 96), (1, 1037, 96), (2, 1037, 1)], ids=str)
    def test_gates_that_broadcast(self, log_a: tuple[int, ...]) -> None:
        check(ENTRY.function, operands(2, 1037, 96, log_a=log_a, device="cuda"), tolerance=2e-4)

    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("const", [(False, False), (True, True), (False, True), (True, False)], ids=str)
    def test_complex_gates(self, regime: str, const: tuple[bool, bool]) -> None:
        shapes = [(96,) if each else (2, 1037, 96) for each in const]
        given = operands(2, 1037, 96, regime=regime, log_a=shapes[0], phase=shapes[1], device="cuda")
        check(ENTRY.function, given, tolerance=2e-4)

    def test_without_phases_it_reads_the_real_part_of_a_state(self) -> None:
        given = operands(2, 300, 33, device="cuda")
        want = outcome(ENTRY.function, given)
        both = torch.complex(given["initial_state"], torch.ones_like(given["initial_state"]))
        found = outcome(ENTRY.function, given | {"initial_state": both})
        assert all(torch.equal(found[name].real, want[name]) for name in want)

    def test_same_bits_whoever_arrives_first(self) -> None:
        given = operands(1, 43_884, 1536, regime="hgrn_top", device="cuda")
        first = outcome(ENTRY.function, given)
        for _ in range(10):
            again = outcome(ENTRY.function, given)
            assert all(torch.equal(first[name], again[name]) for name in first)

    def test_replays_in_a_graph(self) -> None:
        given = operands(1, 4096, 128, device="cuda")
        want, _ = ENTRY.function(**given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got, _ = ENTRY.function(**given)
        for _ in range(3):
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(got, want)
