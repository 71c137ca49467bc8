"""The shapes and gates of linear attention that `attention_times.py` times, and the calls of each backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import ssmperf
from ssmperf import registry

PASSES = ("inference", "training")
OURS, FLA, SSD, MLSTM = "triton", "fla_triton", "mamba_ssd", "mlstm_kernels"
STRONG = -4.0  # a log gate of which half a chunk is beyond the range of operands in bfloat16
XL_CHUNK = "mlstm xl_chunk"  # its form with exponential gates is no case of the recurrence's signature

Given = Mapping[str, Any]
Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A shape and gate to time. subjects: backends of linear_attention, or XL_CHUNK.

    wide: where gates are strong, so that their chunks are wide (`walk.py`): in one chunk of one head ("one"),
        in two heads of each sequence ("few"), or everywhere ("all").
    """

    name: str
    gate: str
    B: int
    T: int
    H: int
    K: int
    V: int
    subjects: tuple[str, ...] = (OURS,)
    passes: tuple[str, ...] = PASSES
    wide: str = "none"

    @property
    def shape(self) -> str:
        return f"B{self.B} T{self.T} H{self.H} K{self.K} V{self.V}"


def few_heads() -> Iterator[Row]:
    """List lengths from 512 to 131,072 for few and many heads, at 16 K and 128 K tokens."""
    for H, D in ((1, 128), (4, 128), (16, 128), (64, 128), (16, 64)):
        for tokens in (1 << 14, 1 << 17):
            for T in (1 << power for power in range(9, 18, 2)):
                if tokens < T or tokens * H * D > 1 << 30:
                    continue
                for gate in ("key", "scalar"):
                    yield Row(
                        f"few-{gate}-H{H}-D{D}-{tokens >> 10}K", gate, tokens // T, T, H, D, D, (OURS, FLA)
                    )


def main_rows() -> Iterator[Row]:
    """List the rows of the table in docs/kernels/linear_attention.md."""
    first = (4, 4096, 16, 128, 128)
    yield Row("key", "key", *first, (OURS, FLA))
    yield Row("scalar", "scalar", *first, (OURS, FLA, MLSTM))
    yield Row("const", "const", *first, (OURS, FLA))
    yield Row("none", "none", *first, (OURS, FLA))
    yield Row("complex", "complex", *first)
    yield Row("both", "both", *first)
    yield Row("bonus", "bonus", *first, (OURS, FLA))
    yield Row("mlstm", "scalar", 4, 4096, 16, 128, 129, (OURS, XL_CHUNK))
    yield Row("ssd", "scalar", 8, 2048, 32, 128, 64, (OURS, SSD))
    yield Row("ssd-shared", "shared", 8, 2048, 32, 128, 64, (OURS, SSD))
    yield Row("key-long", "key", 1, 65536, 16, 128, 128, (OURS, FLA))
    yield Row("scalar-long", "scalar", 1, 65536, 16, 128, 128, (OURS, FLA))
    for gate in ("key", "scalar"):  # of fla the pass that it compiles in less than minutes
        yield Row(f"{gate}-odd", gate, 3, 5003, 5, 80, 112, (OURS, FLA), ("inference",))
        yield Row(f"{gate}-odd", gate, 3, 5003, 5, 80, 112, passes=("training",))
    yield Row("key-43884", "key", 1, 43884, 8, 128, 128, (OURS, FLA))
    for gate in ("key", "scalar", "none"):
        yield Row(f"decode-{gate}", gate, 64, 1, 16, 128, 128, (OURS, "fla_recurrent"), ("inference",))


def wide_rows() -> Iterator[Row]:
    """List shapes whose gates are mild, or strong in some heads or all."""
    for gate, *shape in (
        ("key", 4, 4096, 16, 128, 128),
        ("scalar", 4, 4096, 16, 128, 128),
        ("scalar", 4, 4096, 32, 64, 64),
        ("scalar", 8, 2048, 32, 128, 64),
        ("scalar", 1, 65536, 16, 128, 128),
        ("scalar", 4, 4096, 16, 128, 129),
        ("key", 2, 1000, 3, 80, 80),
    ):
        for wide in ("none", "one", "few", "all"):
            yield Row(f"wide-{gate}-{wide}", gate, *shape, wide=wide)


ROWS = (*main_rows(), *few_heads(), *wide_rows())


def operands(row: Row, device: str) -> dict[str, Any]:
    """Draw the operands of a row. Under `bonus`, which is RWKV6's, the read comes before the write."""
    B, T, H, K, V = row.B, row.T, row.H, row.K, row.V
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16, generator=generator)

    def gates(*shape: int) -> Tensor:
        drawn = torch.randn(shape, device=device, generator=generator)
        return functional.logsigmoid(drawn) / 16

    found: dict[str, Any] = {"q": normal(B, T, H, K), "k": normal(B, T, H, K), "v": normal(B, T, H, V)}
    if row.gate == "shared":
        found |= {name: normal(B, T, 1, K) for name in "qk"}
    if V % 2:
        found["v"][..., -1] = 1  # the column of the normaliser
    by_key = dict.fromkeys(("key", "complex", "both", "bonus"), (B, T, H, K))
    shape = {**by_key, "const": (H,), "none": None}.get(row.gate, (B, T, H))
    if shape is not None:
        found["log_a"] = gates(*shape)
        if row.wide == "one":
            found["log_a"][0, T // 2 : T // 2 + 64, 0] = STRONG
        elif row.wide == "few":
            found["log_a"][:, :, :2] = STRONG
        elif row.wide == "all":
            found["log_a"][:] = STRONG
    if row.gate == "complex":
        found["phase"] = torch.randn(B, T, H, K, device=device, generator=generator)
    if row.gate == "both":
        found["log_b"] = gates(B, T, H, V)
    if row.gate == "bonus":
        found |= {"bonus": torch.randn(H, K, device=device, generator=generator), "read": "pre"}
    if T == 1:
        found["initial_state"] = torch.randn(B, H, K, V, device=device, generator=generator)
    return found


def function_of(subject: str, given: Given) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Find what a subject calls, and with which operands, in its own layout."""
    if subject == XL_CHUNK:
        return _xl_chunk(given)
    entry = registry.backend("linear_attention", subject)
    if reason := entry.missing("cuda"):
        raise ssmperf.Unsupported(reason)
    if entry.prepare is None:
        return entry.function, dict(given)
    assert entry.native is not None
    native, prepared = entry.native, entry.prepare(**given)
    return lambda **named: native(*named.values()), {
        str(place): operand for place, operand in enumerate(prepared.operands)
    }


def _xl_chunk(given: Given) -> tuple[Callable[..., Any], dict[str, Any]]:
    """mLSTM with exponential input gates and its normaliser, without the column of ones."""
    from mlstm_kernels.torch.chunkwise import mlstm_chunkwise__xl_chunk

    q, k, v = (given[name].transpose(1, 2).contiguous() for name in "qkv")
    forget = given["log_a"].mT.contiguous()
    opened = torch.zeros_like(forget)

    def call(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Any:
        return mlstm_chunkwise__xl_chunk(
            q, k, v, i, f, return_last_states=True, chunk_size=256, autocast_kernel_dtype=torch.bfloat16
        )

    return call, {"q": q, "k": k, "v": v[..., :-1].contiguous(), "i": opened, "f": forget}


def call_of(subject: str, given: Given, pass_: str) -> Call:
    """Build the call to time."""
    if pass_ == "inference":
        with torch.no_grad():
            function, named = function_of(subject, given)

        def infer() -> Any:
            with torch.no_grad():
                return function(**named)

        return infer
    leaves = {
        name: x.detach().requires_grad_() if isinstance(x, Tensor) and x.dim() > 1 else x
        for name, x in given.items()
    }
    function, named = function_of(subject, leaves)
    named = {
        name: x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
        for name, x in named.items()
    }
    wanted = [x for x in named.values() if isinstance(x, Tensor) and x.requires_grad]
    cotangents: list[Tensor] = []  # made in the first call, which so compiles nothing but its own kernels

    def train() -> Any:
        output = tensors(function(**named))[0]
        if not cotangents:
            cotangents.append(torch.randn_like(output))
        return torch.autograd.grad(output, wanted, cotangents[0], allow_unused=True)

    return train


def tensors(result: Any) -> list[Tensor]:
    """List the tensors of a result, those of tuples inside it included."""
    if isinstance(result, Tensor):
        return [result]
    return [x for each in result if each is not None for x in tensors(each)]
