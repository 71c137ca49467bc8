"""The calls whose kernels are compiled, for the table of what they need (tests/impls/resources.csv)."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from ssmperf import Unsupported
from ssmperf.engine.tune import tables as configurations
from ssmperf.suitekit import registry
from support.without_gpu.compiled import (
    Usage,
    cuobjdump,
    launched,
    launched_cuda,
    multiprocessors,
    triton_version,
)

ARCHS = (80, 90, 100)
FULL = 90  # has all cases, the others the main ones
ONE, MANY = 1, 10_000  # multiprocessors: with many, time is cut as well
FLOAT, BFLOAT, HALF, COMPLEX = torch.float32, torch.bfloat16, torch.float16, torch.complex64
SHORT = {FLOAT: "fp32", BFLOAT: "bf16", HALF: "fp16", COMPLEX: "complex"}

Operand = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True, eq=False)
class Case(ABC):
    """A forward and a backward call of a backend.

    main: compiled for every architecture from `least` on that runs such a call, not for one alone.
    """

    backend: str  # recurrence/backend
    name: str
    main: bool = field(default=False, kw_only=True)
    least: int = field(default=ARCHS[0], kw_only=True)

    def on(self, arch: int) -> bool:
        return arch == FULL or (self.main and arch >= self.least)

    @abstractmethod
    def missing(self) -> str | None:
        """Reason why it cannot be compiled here."""

    @property
    @abstractmethod
    def compiler(self) -> str:
        """The compiler and its version."""

    @abstractmethod
    def usage(self, arch: int) -> dict[str, Usage]:
        """Give the resources of each of its kernels, by name."""


@dataclass(frozen=True, eq=False)
class TritonCase(Case):
    """decode: forward alone, with no gradient wanted. time_last: (B, T, C) with T innermost in memory.

    changes: fields of the backend's configurations that are not the curated ones.
    """

    operands: Mapping[str, Operand]
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    processors: int = field(default=ONE, kw_only=True)
    decode: bool = field(default=False, kw_only=True)
    time_last: bool = field(default=False, kw_only=True)
    changes: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def missing(self) -> str | None:
        if importlib.util.find_spec("triton") is None:
            return "needs triton"
        from triton import knobs

        return "Triton interprets kernels in this process" if knobs.runtime.interpret else None

    @property
    def compiler(self) -> str:
        return triton_version()

    @contextmanager
    def calling(self) -> Iterator[Callable[[], None]]:
        """A call of the backend, with the configurations of the case in force until the block ends."""
        recurrence, _, name = self.backend.partition("/")
        entry = registry.backend(recurrence, name)
        folder = f"ssmperf.impls.{recurrence}._{name}."

        def call() -> None:
            operands = drawn(self.operands, gradients=not self.decode, time_last=self.time_last)
            outputs = entry.function(**operands, **self.options)
            if not self.decode:
                both_passes(outputs)

        rows = configurations.changed(self.backend, self.changes)
        with multiprocessors(folder, self.processors), configurations.using(rows), called_alone():
            yield call

    def kernels(self, arch: int) -> dict[str, Any]:
        """Compiled kernels by name, as they would be launched on a device."""
        with self.calling() as call:
            return launched(call, arch)

    def usage(self, arch: int) -> dict[str, Usage]:
        return {name: Usage.of_triton(kernel) for name, kernel in self.kernels(arch).items()}


def called_alone() -> AbstractContextManager[object]:
    """Plan the call itself, and none that is expected to follow."""
    from ssmperf.impls._triton.plan import Plan

    return mock.patch.object(Plan, "expect", lambda *_, **__: None)


class OfNvrtc(Case):
    """A case that NVRTC compiles."""

    def missing(self) -> str | None:
        recurrence, _, name = self.backend.partition("/")
        if reason := registry.backend(recurrence, name).missing("cuda"):
            return reason
        from ssmperf.impls._cuda import program

        try:
            program.compiler()
        except Unsupported as refusal:
            return str(refusal)
        return None if cuobjdump().exists() else "needs cuobjdump, which triton brings"

    @property
    def compiler(self) -> str:
        from ssmperf.impls._cuda import program

        return "nvrtc {}.{}".format(*program.compiler())


@dataclass(frozen=True, eq=False)
class CudaCase(OfNvrtc):
    """A case of scan's `cuda` backend; operands: as Scan.apply takes them, None where there is none."""

    operands: Mapping[str, Operand]
    processors: int = field(default=ONE, kw_only=True)

    def usage(self, arch: int) -> dict[str, Usage]:
        from ssmperf.impls.scan._cuda import function

        operands = drawn(self.operands)
        order = ("log_a", "phase", "b", "initial_state")
        with multiprocessors("ssmperf.impls.scan._cuda.", self.processors):
            launched = launched_cuda(
                function, lambda: both_passes(function.Scan.apply(*map(operands.get, order))), arch
            )
        found = {}
        for variant, cubin in launched:
            needs = Usage.of(cubin, variant.shared_bytes)
            # The tiles promise so many blocks at once on a multiprocessor.
            assert needs.registers * variant.tiles.threads * variant.tiles.blocks <= 1 << 16, variant
            found[f"cuda_scan_{variant.pass_}"] = needs
        return found


@dataclass(frozen=True, eq=False)
class HopperCase(OfNvrtc):
    """All kernels of the delta rule's `cuda` backend, which are compiled for Hopper alone."""

    def usage(self, arch: int) -> dict[str, Usage]:
        from ssmperf.impls.delta_rule._cuda import program

        codes = {each.program: each.program.compiled(program.ARCH) for each in program.KERNELS}
        return {
            each.name: Usage.of(codes[each.program], each.shared_bytes, each.name) for each in program.KERNELS
        }


def drawn(
    operands: Mapping[str, Operand], *, gradients: bool = True, time_last: bool = False
) -> dict[str, torch.Tensor]:
    found = {}
    for name, (shape, dtype) in operands.items():
        if time_last and len(shape) == 3:
            found[name] = torch.zeros(shape[0], shape[2], shape[1], dtype=dtype).transpose(1, 2)
        else:
            found[name] = torch.zeros(shape, dtype=dtype)
        found[name].requires_grad_(gradients)
    return found


def both_passes(outputs: tuple[torch.Tensor, ...]) -> None:
    torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])


def scan_cases() -> Iterator[Case]:
    def case(gate: torch.dtype, data: torch.dtype, kind: str, *, main: bool = False) -> Case:
        """kind: strand, chain, decode or time_last (few: rows); with const or odd before it."""
        B, T, C = (1, 1021, 61) if "odd" in kind else (8, 1, 64) if kind == "decode" else (1, 1024, 64)
        state = COMPLEX if data is COMPLEX else FLOAT
        gates = ((B, 1 if "const" in kind else T, C), gate)
        operands = {"log_a": gates, "b": ((B, T, C), data), "initial_state": ((B, C), state)}
        if data is COMPLEX:
            operands["phase"] = gates
        name = f"{SHORT[gate]} {SHORT[data]} {kind}"
        more: dict[str, Any] = {"processors": MANY if kind.endswith(("chain", "few")) else ONE, "main": main}
        more |= {"decode": kind == "decode", "time_last": "time_last" in kind}
        return TritonCase("scan/triton", name, operands, **more)

    for gate, data in ((FLOAT, FLOAT), (FLOAT, BFLOAT), (BFLOAT, BFLOAT), (FLOAT, COMPLEX)):
        for kind in ("strand", "chain", "time_last"):
            yield case(gate, data, kind, main=data is BFLOAT and gate is FLOAT)
    for kind in ("const strand", "odd strand", "odd time_last", "time_last few", "decode"):
        yield case(FLOAT, BFLOAT, kind, main=kind == "decode")
    for kind in ("const strand", "decode"):
        yield case(FLOAT, COMPLEX, kind)


def selective_scan_cases() -> Iterator[Case]:
    def case(gate: str, data: torch.dtype, kind: str = "whole", N: int = 16, *, main: bool = False) -> Case:
        """options: with all that the kernel can fuse before and after the scan."""
        B, T, D = {"odd": (1, 1009, 2001), "decode": (8, 1, 2048)}.get(kind, (1, 1024, 2048))
        operands = {"x": ((B, T, D), data), "delta": ((B, T, D), FLOAT)}
        operands |= dict.fromkeys("kq", ((B, T, N), data)) | {"initial_state": ((B, D, N), FLOAT)}
        options: dict[str, Any] = {"gate": gate}
        if gate == "exp":
            operands["A"] = ((D, N), FLOAT)
        if "options" in kind:
            operands |= dict.fromkeys(("skip", "delta_bias"), ((D,), FLOAT)) | {
                "output_gate": ((B, T, D), data)
            }
            options["delta_softplus"] = True
        if "packed" in kind:
            options["cu_seqlens"] = torch.tensor([0, 700, T])
            operands["initial_state"] = ((2, D, N), FLOAT)
        if "zoh" in kind:
            options["discretization"] = "zoh"
        name = f"{gate} {SHORT[data]} N{N} {kind}"
        more: dict[str, Any] = {"processors": MANY if kind in ("spans", "odd") else ONE}
        more |= {"options": options, "decode": kind == "decode", "main": main}
        return TritonCase("selective_scan/triton", name, operands, **more)

    yield case("exp", FLOAT)
    yield case("exp", BFLOAT)
    yield case("implicit", BFLOAT)
    yield case("exp", BFLOAT, "spans", main=True)
    yield case("implicit", BFLOAT, "odd", main=True)
    for kind in ("options", "packed options", "zoh"):
        yield case("exp", BFLOAT, kind, main="packed" in kind)
    for N in (64, 256):
        yield case("exp", BFLOAT, N=N)
    for gate in ("exp", "implicit"):
        yield case(gate, BFLOAT, "decode", main=gate == "exp")


def ratio_scan_cases() -> Iterator[Case]:
    def case(data: torch.dtype, kind: str, *, main: bool = False, least: int = ARCHS[0]) -> Case:
        B, T, C = {"odd": (1, 1009, 2001), "decode": (8, 1, 2048)}.get(kind, (1, 1024, 2048))
        operands = {"log_w": ((C,), FLOAT), "k": ((B, T, C), data), "v": ((B, T, C), data)}
        if kind != "plain":
            operands |= {"initial_state": ((B, 3, C), FLOAT), "bonus": ((C,), FLOAT)}
        more: dict[str, Any] = {"processors": MANY if kind in ("spans", "odd") else ONE, "main": main}
        more |= {"decode": kind == "decode", "least": least}
        more |= {"changes": {"stages": 4 if kind == "streamed" else 0}}
        return TritonCase("ratio_scan/triton", f"{SHORT[data]} {kind}", operands, **more)

    for data in (FLOAT, BFLOAT):
        yield case(data, "whole")
        yield case(data, "spans", main=data is BFLOAT)
    yield case(BFLOAT, "streamed", main=True, least=90)  # where there are tensor descriptors
    for kind in ("plain", "odd", "decode"):
        yield case(BFLOAT, kind, main=kind == "decode")


def linear_attention_cases() -> Iterator[Case]:
    B, T, H = 1, 128, 2
    packed = {"cu_seqlens": torch.tensor([0, 50, T])}
    main = {("bf16", gate) for gate in ("key", "key complex", "scalar", "key value complex")}
    main |= {("fp32", "key packed")}
    for K, V, data, gate in (
        (128, 128, BFLOAT, "key"),
        (128, 128, BFLOAT, "key complex"),
        (128, 64, BFLOAT, "scalar"),
        (128, 129, BFLOAT, "scalar"),
        (128, 64, BFLOAT, "scalar shared"),
        (64, 64, BFLOAT, "scalar complex"),
        (128, 128, BFLOAT, "key value"),
        (128, 128, BFLOAT, "key value complex"),
        (64, 64, HALF, "none"),
        (128, 128, FLOAT, "key"),
        (64, 64, FLOAT, "scalar"),
        (128, 128, BFLOAT, "key packed"),
        (64, 64, BFLOAT, "key complex packed"),
        (128, 129, BFLOAT, "scalar packed"),
        (64, 64, BFLOAT, "key value packed"),
        (64, 64, FLOAT, "key packed"),
    ):
        heads, options = 1 if "shared" in gate else H, {}
        operands: dict[str, Operand] = dict.fromkeys("qk", ((B, T, heads, K), data))
        operands |= {"v": ((B, T, H, V), data), "initial_state": ((B, H, K, V), FLOAT)}
        if gate != "none":
            operands["log_a"] = ((B, T, H) if "scalar" in gate else (B, T, H, K), FLOAT)
        if "value" in gate:
            operands["log_b"] = ((B, T, H, V), FLOAT)
        if "complex" in gate:
            operands["phase"] = ((B, T, H, K), FLOAT)
        if "packed" in gate:
            operands["initial_state"] = ((2, H, K, V), FLOAT)
            options = packed
        yield TritonCase(
            "linear_attention/triton",
            f"{SHORT[data]} K{K} V{V} {gate}",
            operands,
            options=options,
            main=(SHORT[data], gate) in main,
            processors=H * V // 64,  # more programs than these have fewer stages
        )
        if gate in ("key", "scalar", "scalar shared") and data is BFLOAT and V % 2 == 0:
            name = f"{SHORT[data]} K{K} V{V} {gate} chunks"
            every = gate != "scalar"
            yield TritonCase("linear_attention/triton", name, operands, main=every, changes={"walk": 0})
        if data is BFLOAT and gate == "key":
            one = dict.fromkeys("qkv", ((B, 1, H, K), data))
            one |= {"log_a": ((B, 1, H, K), FLOAT), "initial_state": operands["initial_state"]}
            yield TritonCase("linear_attention/triton", f"{SHORT[data]} decode", one, main=True, decode=True)
    before = dict.fromkeys("qkv", ((B, T, H, 128), BFLOAT)) | {"bonus": ((H, 128), FLOAT)}
    options = {"read": "pre"}
    yield TritonCase("linear_attention/triton", "bf16 K128 V128 bonus", before, options=options, main=True)
    name = "bf16 K128 V128 bonus packed"
    yield TritonCase("linear_attention/triton", name, before, options=options | packed)
    before = dict.fromkeys("qkv", ((B, T, H, 64), BFLOAT)) | {"initial_state": ((B, H, 64, 64), FLOAT)}
    yield TritonCase("linear_attention/triton", "bf16 K64 V64 pre", before, options=options)


def delta_rule_cases() -> Iterator[Case]:
    B, T, H = 1, 128, 2
    for K, V, data, kind in (
        (128, 128, BFLOAT, "scalar"),
        (96, 192, BFLOAT, "none packed"),
        (64, 64, FLOAT, "scalar"),
        (128, 128, BFLOAT, "decode"),
        (128, 128, BFLOAT, "scalar segments"),
    ):
        steps, decode = (1, True) if kind == "decode" else (T, False)
        cut: dict[str, Any] = {}
        if "segments" in kind:
            steps, cut = 64 * T, {"processors": MANY}
        operands: dict[str, Operand] = dict.fromkeys("qk", ((B, steps, H, K), data))
        operands |= {"v": ((B, steps, H, V), data), "beta": ((B, steps, H), FLOAT)}
        operands["initial_state"] = ((2 if "packed" in kind else B, H, K, V), FLOAT)
        if "none" not in kind:
            operands["log_a"] = ((B, steps, H), FLOAT)
        options = {"cu_seqlens": torch.tensor([0, 50, T])} if "packed" in kind else {}
        name = f"{SHORT[data]} K{K} V{V} {kind}"
        main = data is BFLOAT and "packed" not in kind
        yield TritonCase(
            "delta_rule/triton", name, operands, options=options, main=main, decode=decode, **cut
        )


def cuda_cases() -> Iterator[Case]:
    B, T, C = 1, 1024, 64

    def case(gate: torch.dtype, data: torch.dtype, kind: str, C: int = C, *, main: bool = False) -> Case:
        gates = (B, 1 if "const" in kind else T, C)
        state = COMPLEX if data is COMPLEX else FLOAT
        operands = {"log_a": (gates, gate), "b": ((B, T, C), data), "initial_state": ((B, C), state)}
        if data is COMPLEX:
            operands["phase"] = (gates, gate)
        name = f"{SHORT[gate]} {SHORT[data]} {kind}"
        return CudaCase("scan/cuda", name, operands, processors=MANY if "chain" in kind else 0, main=main)

    for gate, data in ((FLOAT, FLOAT), (FLOAT, BFLOAT), (BFLOAT, BFLOAT), (BFLOAT, FLOAT), (FLOAT, COMPLEX)):
        for kind in ("strand", "chain"):
            yield case(gate, data, kind, main=data is BFLOAT and gate is FLOAT)
    for data in (FLOAT, BFLOAT, COMPLEX):
        yield case(FLOAT, data, "const chain")
    yield case(FLOAT, BFLOAT, "unaligned chain", C=61)
    yield case(HALF, HALF, "chain")


CASES = (
    *scan_cases(),
    *cuda_cases(),
    *selective_scan_cases(),
    *delta_rule_cases(),
    HopperCase("delta_rule/cuda", "bf16"),
    *ratio_scan_cases(),
    *linear_attention_cases(),
)
