"""Other people's kernels for the delta rule: which function is called, with what, and what is refused.

Stand-ins take the packages' place without a GPU. Tests on a GPU call the packages.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.kernels.delta_stand_ins import RESULT, Declined, kimi_delta_attention, prefill, step
from support.kernels.kernel_check import doubled, kernel_check
from support.processes.quick_processes import command
from torch import Tensor
from torch.nn.functional import normalize

from ssmperf import Unsupported
from ssmperf.engine.measure.provenance import fell_back, launched_kernels
from ssmperf.suitekit import registry

NAME = "delta_rule"
FLA = ("none", "scalar", "key", "dplr_key")
KINDS = {
    "fla": FLA,
    "fla_triton": FLA,
    "fla_recurrent": FLA,
    "flash_qla": ("scalar",),
    "cudnn": ("key",),
    "flashinfer": ("none", "scalar"),
}
WITHOUT_BACKWARD = {("fla_recurrent", kind) for kind in FLA[1:]} | {
    ("flashinfer", kind) for kind in KINDS["flashinfer"]
}
ROWS = [(name, kind) for name, kinds in KINDS.items() for kind in kinds]
LAYOUTS = ("dense", "from_zero", "packed", "with_empty", "shared")
CASES = [
    (*row, layout) for row in ROWS for layout in LAYOUTS if (row[0], layout) != ("flash_qla", "with_empty")
]
TRAINED = [case for case in CASES if case[:2] not in WITHOUT_BACKWARD]


def operands(
    kind: str, layout: str = "dense", *, T: int = 13, K: int = 128, V: int = 128, device: str = "cpu"
) -> dict[str, Any]:
    """Draw operands in bfloat16 with float32 gates, unit keys and β between 0 and 1."""
    torch.manual_seed(1)
    packed = {"packed": [0, T // 3, T // 2, T], "with_empty": [0, T // 3, T // 3, T]}.get(layout)
    B, H, G = 1 if packed else 2, 4, 2 if layout == "shared" else 4
    k, beta = normalize(torch.randn(B, T, G, K), dim=-1), torch.rand(B, T, H)
    given = {"q": torch.randn(B, T, G, K) * K**-0.5, "k": k, "v": torch.randn(B, T, H, V), "beta": beta}
    if kind.endswith("key"):
        given["log_a"] = -0.2 * torch.rand(B, T, H, K)
    elif kind != "none":
        given["log_a"] = -0.2 * torch.rand({"scalar": (B, T, H), "const": (H,)}[kind])
    if kind.startswith("dplr"):
        r = normalize(torch.randn(B, T, H, K), dim=-1)
        given |= {"r": r, "p": -0.9 * beta.unsqueeze(-1) * r}
    given = {name: each if name == "log_a" else each.bfloat16() for name, each in given.items()}
    if layout != "from_zero":
        given["initial_state"] = torch.randn(len(packed) - 1 if packed else B, H, K, V)
    if packed:
        given["cu_seqlens"] = torch.tensor(packed, dtype=torch.int32)
    return {name: each.to(device) for name, each in given.items()}


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    def module(name: str, **contents: Any) -> None:
        made = ModuleType(name)
        vars(made).update(contents)
        monkeypatch.setitem(sys.modules, name, made)

    for name in ("fla", "fla.ops", "cudnn.linear_attention", "flashinfer"):
        module(name)
    plain = {"shares": False, "half": True, "gates": 0}
    module("fla.backends", _DISPATCH_DISABLED=False)
    module("fla.utils", TRITON_ABOVE_3_4_0=True, TRITON_ABOVE_3_7_1=False, IS_NVIDIA_HOPPER=False)
    delta = functools.partial(step, **plain)
    module(
        "fla.ops.delta_rule",
        chunk_delta_rule=delta(backward=True),
        fused_recurrent_delta_rule=delta(backward=True),
    )
    dplr = functools.partial(step, **{**plain, "gates": 4}, gate="gk")
    module(
        "fla.ops.generalized_delta_rule",
        chunk_dplr_delta_rule=dplr(backward=True),
        fused_recurrent_dplr_delta_rule=dplr(backward=False),
    )
    gated, kda = (functools.partial(step, shares=True, half=False, gates=axes) for axes in (3, 4))
    module(
        "fla.ops.gated_delta_rule",
        chunk_gated_delta_rule=gated(backward=True),
        fused_recurrent_gated_delta_rule=gated(backward=False),
    )
    module("fla.ops.kda", chunk_kda=kda(backward=True), fused_recurrent_kda=kda(backward=False))
    module("flash_qla", chunk_gated_delta_rule=gated(backward=True))
    module(
        "cudnn", cudnnGraphNotSupportedError=Declined, linear_attention=sys.modules["cudnn.linear_attention"]
    )
    kda_ops = ModuleType("cudnn.linear_attention.ops.kda")
    vars(kda_ops).update(kimi_delta_attention=kimi_delta_attention, fprop_cache={})
    monkeypatch.setitem(sys.modules, kda_ops.__name__, kda_ops)
    module("cudnn.linear_attention.ops", kda=kda_ops)
    module("flashinfer.gdn_prefill", chunk_gated_delta_rule=prefill)


def assert_forward(compute: Callable[..., RESULT], given: dict[str, Any], tolerance: float = 2**-7) -> None:
    """Compare output and final state, without gradients, with the definition in double precision."""
    with torch.no_grad():
        found = compute(**given)
        exact = {name: each if name == "cu_seqlens" else doubled(each) for name, each in given.items()}
        wanted = registry.recurrence(NAME).definition(**exact)
    assert [each.dtype for each in found] == [given["v"].dtype, torch.float32]
    for got, right in zip(found, wanted, strict=True):
        assert got.shape == right.shape
        assert (got.double() - right).norm() <= tolerance * right.norm()


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(("name", "kind", "layout"), [case for case in CASES if case[0] != "fla_triton"])
def test_every_gate_reaches_the_right_function(name: str, kind: str, layout: str) -> None:
    function, given = registry.backend(NAME, name).function, operands(kind, layout)
    assert_forward(function, given)
    if (name, kind) not in WITHOUT_BACKWARD:
        kernel_check(NAME, function, given)


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("kind", ["scalar", "key"])
def test_fla_takes_float32_where_it_has_gates_without_a_low_rank_term(kind: str) -> None:
    given = {name: each.float() for name, each in operands(kind).items()}
    kernel_check(NAME, registry.backend(NAME, "fla").function, given)


@pytest.mark.usefixtures("stand_ins")
def test_operands_of_two_dtypes_meet_in_the_wider_one() -> None:
    given = operands("scalar")
    given["q"] = given["q"].float()
    assert_forward(registry.backend(NAME, "fla").function, given)


@pytest.mark.usefixtures("stand_ins")
def test_a_write_without_a_rate_has_rate_one() -> None:
    given = {**operands("dplr_key"), "beta": None}
    kernel_check(NAME, registry.backend(NAME, "fla").function, given)


def refusals() -> dict[str, tuple[str, dict[str, Any], str]]:
    scalar, key, low_rank = (operands(kind) for kind in ("scalar", "key", "dplr_key"))
    narrow = operands("dplr_key", V=8)
    wide = {name: each.float() for name, each in low_rank.items()}
    none = {name: each.float() for name, each in operands("none").items()}
    found = {f"constant gates: {name}": (name, operands("const"), "kind const") for name in KINDS}
    found |= {
        f"double: {name}": (name, {**operands(kinds[0]), "v": scalar["v"].double()}, "double precision")
        for name, kinds in KINDS.items()
    }
    found |= {
        f"narrow: {name}": (name, operands(KINDS[name][0], K=64), "K = 64")
        for name in ("flash_qla", "cudnn", "flashinfer")
    }
    found |= {
        f"gradients: {name}, {kind}": (name, operands(kind), "gradients")
        for name, kind in sorted(WITHOUT_BACKWARD)
    }
    return found | {
        "low rank without a gate": ("fla", {**low_rank, "log_a": None}, "kind dplr "),
        "float32 without a gate": ("fla", none, "float32"),
        "float32 with a low rank": ("fla", wide, "float32"),
        "float32 of FlashQLA": ("flash_qla", {**scalar, "q": scalar["q"].float()}, "float32"),
        "float16 of cuDNN": ("cudnn", {name: each.half() for name, each in key.items()}, "float16"),
        "K of 512": ("fla", operands("scalar", K=512), "K = 512"),
        "narrow values": ("fla", narrow, "V above 8"),
        "an empty sequence": ("flash_qla", operands("scalar", "with_empty"), "empty sequences"),
        "long keys": ("cudnn", {**key, "k": 1.1 * key["k"]}, "another norm"),
        "rates above 1": ("cudnn", {**key, "beta": 1 + key["beta"]}, "β outside"),
    }  # fmt: skip


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("what", refusals())
def test_what_a_peer_cannot_do_it_says(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, given, reason = refusals()[what]
    monkeypatch.setattr(sys.modules["fla.backends"], "_DISPATCH_DISABLED", name == "fla_triton")
    for each in given.values():
        if isinstance(each, Tensor) and each.is_floating_point():
            each.requires_grad_()
    with pytest.raises(Unsupported, match=reason):
        registry.backend(NAME, name).function(**given)


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(("name", "kind"), [("cudnn", "key"), ("flashinfer", "scalar")])
def test_what_a_package_declines_is_unsupported(name: str, kind: str) -> None:
    """The stand-ins decline 5 steps."""
    graphs = sys.modules["cudnn.linear_attention.ops.kda"].fprop_cache
    graphs["of an earlier call"] = "a graph"
    with torch.no_grad(), pytest.raises(Unsupported, match=r"no \w+ for 5 steps"):
        registry.backend(NAME, name).function(**operands(kind, "packed", T=5))
    assert (graphs == {}) == (name == "cudnn")


@pytest.mark.usefixtures("stand_ins")
def test_an_empty_sequence_that_fla_hands_to_flash_qla_is_unsupported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> RESULT:
        raise ValueError("cu_seqlens must be strictly increasing")

    monkeypatch.setattr(sys.modules["fla.ops.gated_delta_rule"], "chunk_gated_delta_rule", refuse)
    function = registry.backend(NAME, "fla").function
    with pytest.raises(Unsupported, match=r"empty sequences: .* strictly increasing"):
        function(**operands("scalar", "with_empty"))
    for layout in ("packed", "dense"):
        with pytest.raises(ValueError, match="strictly"):
            function(**operands("scalar", layout))


@pytest.mark.usefixtures("stand_ins")
def test_flash_qla_sums_gates_in_float32() -> None:
    given = operands("scalar")
    given["log_a"] = given["log_a"].bfloat16()
    prepare = registry.backend(NAME, "flash_qla").prepare
    assert prepare is not None and prepare(**given).operands[3].dtype == torch.float32


@pytest.mark.usefixtures("stand_ins")
def test_a_miscompiled_backward_pass_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["fla.utils"], "IS_NVIDIA_HOPPER", True)
    fla = registry.backend(NAME, "fla").function
    assert_forward(fla, operands("scalar"))
    with pytest.raises(Unsupported, match="Hopper"):
        kernel_check(NAME, fla, operands("scalar"))
    kernel_check(NAME, fla, operands("key"))
    monkeypatch.setattr(sys.modules["fla.utils"], "TRITON_ABOVE_3_7_1", True)
    kernel_check(NAME, fla, operands("scalar"))


FLA_BACKWARD = ["chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "chunk_bwd_kernel_dv_local"]
QLA_BACKWARD = ["tilelang_chunk_local_cumsum_kernel_kernel", "tilelang_fused_chunk_gdr_bwd_kernel"]
BACKWARD = [  # the kernels of a backward pass alone, as the packages name them
    ("fla", FLA_BACKWARD),
    ("fla", QLA_BACKWARD),
    ("fla_triton", FLA_BACKWARD),
    ("flash_qla", QLA_BACKWARD),
    ("cudnn", ["void k_prep<true>(bf16 const*)", "void k_scan_t<32, 256, true, true>(bf16 const*)"]),
]


@pytest.mark.parametrize(("name", "launched"), BACKWARD)
def test_a_backward_pass_alone_shows_its_kernels(name: str, launched: list[str]) -> None:
    assert fell_back(registry.backend(NAME, name).kernels, launched) is None


@pytest.mark.parametrize("name", ["flash_qla", "cudnn"])
def test_a_backward_pass_of_other_kernels_is_a_fallback(name: str) -> None:
    launched = [*FLA_BACKWARD, "chunk_bwd_kernel_o", "ampere_bf16_s16816gemm", QLA_BACKWARD[0]]
    assert "it fell back" in str(fell_back(registry.backend(NAME, name).kernels, launched))


@pytest.mark.slow
def test_peers_are_listed_and_no_package_is_imported(tmp_path: Path) -> None:
    code = f"""
import sys
from ssmperf import registry
assert "ssmperf.impls.delta_rule.peers" not in sys.modules
for name in {tuple(KINDS)!r}:
    backend = registry.backend("delta_rule", name)
    assert backend.prepare and backend.native and backend.kernels and backend.devices == ("cuda",)
    assert registry.is_peer("deltanet", name) and registry.foreign("backend", f"delta_rule/{{name}}")
    assert ("decode" in backend.passes) == (name == "fla_recurrent")
assert not {{*sys.modules}} & {{"fla", "flash_qla", "cudnn", "flashinfer"}}
"""
    (tmp_path / "looks_up.py").write_text(code)
    done = command(program=str(tmp_path / "looks_up.py"))
    assert done.returncode == 0, done.stderr


# of fla, as the process, Triton and the packages are to which fla hands its calls
NOT_HERE = re.compile("a process of its own|refused on Hopper|empty sequences")
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # of the packages
]


def real(name: str) -> Callable[..., RESULT]:
    """Get a peer's function; skips the test without its package, or where this process cannot have it."""
    backend = registry.backend(NAME, name)
    reason = backend.refusal(device="cuda", capability=torch.cuda.get_device_capability())
    if reason:
        pytest.skip(reason)

    def function(**given: Any) -> RESULT:
        try:
            result: RESULT = backend.function(**given)
        except Unsupported as error:
            if NOT_HERE.search(str(error)):
                pytest.skip(str(error))
            raise
        return result

    return function


@pytest.mark.parametrize(("name", "kind", "layout"), [pytest.param(*case, marks=gpu) for case in CASES])
def test_the_package_is_right_in_forward(name: str, kind: str, layout: str) -> None:
    assert_forward(real(name), operands(kind, layout, T=197, device="cuda"), tolerance=0.02)


@pytest.mark.parametrize(("name", "kind", "layout"), [pytest.param(*case, marks=gpu) for case in TRAINED])
def test_the_package_has_the_right_gradients(name: str, kind: str, layout: str) -> None:
    kernel_check(NAME, real(name), operands(kind, layout, T=197, device="cuda"), tolerance=0.03)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=gpu) for kind in FLA])
def test_the_package_decodes(kind: str) -> None:
    assert_forward(real("fla_recurrent"), operands(kind, T=1, device="cuda"), tolerance=0.02)


@pytest.mark.parametrize(("name", "kind"), [pytest.param(*row, marks=gpu) for row in ROWS])
def test_its_kernels_run(name: str, kind: str) -> None:
    function, given = real(name), operands(kind, T=197, device="cuda")
    with torch.no_grad():
        function(**given)
        assert (
            fell_back(registry.backend(NAME, name).kernels, launched_kernels(lambda: function(**given)))
            is None
        )
