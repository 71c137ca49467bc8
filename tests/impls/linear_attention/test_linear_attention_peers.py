"""Other people's kernels for linear attention: which function is called, with what, and what is refused.

The stand-ins have the signatures of fla-core 0.6.0, mamba-ssm 2 and mlstm_kernels 2.0.6, and compute in
double precision what these document. They hold back gradients that the real ones do not give.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.kernels.peer_results import assert_close, assert_right, outcome
from support.processes.quick_processes import command
from torch import Tensor

from ssmperf import Unsupported
from ssmperf.suitekit import registry

NAME = "linear_attention"
B, T, H, K, V = 2, 16, 3, 12, 10
RESULT = tuple[Tensor, Tensor]


def walk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    u: Tensor | None = None,
    state: Tensor | None = None,
) -> RESULT:
    """Compute S_t = exp(gk) S exp(gv) + k vᵀ and o = S_tᵀ q; with u, o = (S_{t-1} + u k vᵀ)ᵀ q."""
    S = torch.zeros(*k.shape[:1], *k.shape[2:], v.shape[-1]).double() if state is None else state.double()
    outputs = []
    for t in range(k.shape[1]):
        write = k[:, t].double().unsqueeze(-1) * v[:, t].double().unsqueeze(-2)
        before = S
        S = S if gk is None else S * gk[:, t].double().exp().unsqueeze(-1)
        S = S if gv is None else S * gv[:, t].double().exp().unsqueeze(-2)
        S = S + write
        seen = S if u is None else before + u.double().unsqueeze(-1) * write
        outputs.append((q[:, t].double().unsqueeze(-1) * seen).sum(-2))
    return torch.stack(outputs, 1).to(v.dtype), S.float()


def fla_call(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], **gates: Tensor | None) -> RESULT:
    """Check what fla's functions check or silently rely on, and walk."""
    scale, state, bounds = (options.pop(name) for name in ("scale", "initial_state", "cu_seqlens"))
    assert isinstance(scale, float) and scale == 1.0 and options == {"output_final_state": True}
    assert q.shape == k.shape and q.dtype == k.dtype == v.dtype and v.shape[:3] == q.shape[:3]
    assert all(each is None or each.is_contiguous() for each in (q, k, v, state, *gates.values()))
    assert state is None or state.dtype == torch.float32
    if bounds is None:
        return walk(q, k, v, state=state, **gates)
    assert bounds.dtype == torch.int64
    found = []
    for number, (start, end) in enumerate(pairwise(bounds.tolist())):
        own = {
            name: each if each is None or name == "u" else each[:, start:end] for name, each in gates.items()
        }
        before = None if state is None else state[number : number + 1]
        found.append(walk(*(each[:, start:end] for each in (q, k, v)), state=before, **own))
    outputs, states = zip(*found, strict=True)
    return torch.cat(outputs, 1), torch.cat(states)


def gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Any) -> RESULT:
    assert g.shape == q.shape
    return fla_call(q, k, v, options, gk=g)


def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, g_gamma: Tensor | None = None, **options: Any
) -> RESULT:
    """Gates g (B, T, H), or g_gamma (H,), which gets no gradient."""
    assert (g is None) != (g_gamma is None) and (g is None or g.shape == q.shape[:3])
    if g is None:
        assert g_gamma is not None and g_gamma.shape == (q.shape[2],) and g_gamma.dtype == torch.float32
        g = g_gamma.detach().expand(q.shape[:3])
    return fla_call(q, k, v, options, gk=g.contiguous().unsqueeze(-1))


def linear_attn(q: Tensor, k: Tensor, v: Tensor, normalize: bool = True, **options: Any) -> RESULT:
    assert not normalize
    return fla_call(q, k, v, options)


def rwkv6(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, **options: Any) -> RESULT:
    assert w.shape == k.shape and u.shape == k.shape[2:]
    return fla_call(r, k, v, options, gk=w, u=u)


class WithoutStateGradient(torch.autograd.Function):
    """Gives o and S_T from one node, as the real kernels do, and drops the gradient at S_T."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, state: Tensor) -> RESULT:
        ctx.set_materialize_grads(False)
        return output.clone(), state.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_state: Tensor | None) -> tuple[Tensor, None]:
        return grad, None


def recurrent_rwkv6(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, **options: Any) -> RESULT:
    """Like `rwkv6`, but its backward pass leaves out the gradient at the final state."""
    found: RESULT = WithoutStateGradient.apply(*rwkv6(r, k, v, w, u, **options))
    return found


def recurrent_gla(
    q: Tensor, k: Tensor, v: Tensor, gk: Tensor | None = None, gv: Tensor | None = None, **options: Any
) -> RESULT:
    return fla_call(q, k, v, options, gk=gk, gv=gv)


def chunk_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> RESULT:
    """x (B, T, H, V), dt (B, T, H), A (H), B and C (B, T, G, K); states (B, H, V, K)."""
    assert return_final_states and x.dtype == B.dtype == C.dtype and dt.dtype == A.dtype == torch.float32
    keys, queries = (each.repeat_interleave(x.shape[2] // each.shape[2], 2) for each in (B, C))
    state = None if initial_states is None else initial_states.mT
    write, gates = x.double() * dt.double().unsqueeze(-1), (dt.double() * A.double()).unsqueeze(-1)
    output, last = walk(queries, keys, write, gk=gates, state=state)
    return output.to(x.dtype), last.mT.contiguous()


def siging(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c_initial: Tensor | None = None,
    n_initial: Tensor | None = None,
    *,
    return_last_states: bool,
    normalize: bool,
    chunk_size: int,
) -> tuple[Tensor, RESULT]:
    """All operands (B, H, T, ·); gates σ(i) and σ(f); queries over √K."""
    assert return_last_states and not normalize and (c_initial is None) == (n_initial is None)
    assert q.shape[2] % min(chunk_size, q.shape[2]) == 0
    q, k, v, i, f = (each.transpose(1, 2) for each in (q, k, v, i, f))
    queries, keys = q.double() * q.shape[-1] ** -0.5, k.double() * torch.sigmoid(i.double()).unsqueeze(-1)
    gates = torch.nn.functional.logsigmoid(f.double()).unsqueeze(-1)
    output, last = WithoutStateGradient.apply(*walk(queries, keys, v, gk=gates, state=c_initial))
    return output.transpose(1, 2), (last, torch.zeros_like(last[..., 0]))


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    def module(name: str, **contents: Any) -> None:
        made = ModuleType(name)
        vars(made).update(contents)
        monkeypatch.setitem(sys.modules, name, made)

    for name in ("fla", "fla.ops", "mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"):
        module(name)
    for name in ("mlstm_kernels", "mlstm_kernels.torch"):
        module(name)
    module("fla.backends", _DISPATCH_DISABLED=False)
    module("fla.utils", TRITON_ABOVE_3_4_0=True, TRITON_ABOVE_3_7_1=False, IS_NVIDIA_HOPPER=False)
    module("fla.ops.gla", chunk_gla=gla, fused_recurrent_gla=recurrent_gla)
    module("fla.ops.simple_gla", chunk_simple_gla=simple_gla, fused_recurrent_simple_gla=simple_gla)
    module("fla.ops.linear_attn", chunk_linear_attn=linear_attn, fused_recurrent_linear_attn=linear_attn)
    module("fla.ops.rwkv6", chunk_rwkv6=rwkv6, fused_recurrent_rwkv6=recurrent_rwkv6)
    module("mamba_ssm.ops.triton.ssd_combined", mamba_chunk_scan_combined=chunk_scan)
    module("mlstm_kernels.torch.chunkwise", mlstm_siging_chunkwise__xl_chunk=siging)


def operands(gate: str, *, state: bool = True, pre: bool = False, shared: bool = False) -> dict[str, Any]:
    torch.manual_seed(1)
    shapes = {
        "const": (H,),
        "channels": (H, K),
        "scalar": (B, T, H),
        "key": (B, T, H, K),
        "both": (B, T, H, K),
    }
    q, k = (torch.randn(B, T, 1 if shared else H, K).expand(B, T, H, K) for _ in "qk")
    given: dict[str, Any] = {"q": q, "k": k.clone(), "v": torch.randn(B, T, H, V)}
    if gate in shapes:
        given["log_a"] = -0.01 - torch.rand(shapes[gate])
    if gate in ("value", "both"):
        given["log_b"] = -torch.rand(B, T, H, V)
    if state:
        given["initial_state"] = torch.randn(B, H, K, V)
    return given | ({"read": "pre", "bonus": torch.randn(H, K)} if pre else {})


RIGHT = {
    "fla": ("none", "channels", "scalar", "key"),
    "fla_recurrent": ("none", "channels", "scalar", "key", "value", "both"),
    "mamba_ssd": ("none", "const", "scalar"),
}


@pytest.mark.parametrize(("name", "gate"), [(name, gate) for name in RIGHT for gate in RIGHT[name]])
def test_every_gate_reaches_the_right_function(name: str, gate: str) -> None:
    assert_right(NAME, name, operands(gate))
    assert_right(NAME, name, operands(gate, state=False))


@pytest.mark.parametrize("name", ("fla", "fla_recurrent"))
@pytest.mark.parametrize(("gate", "pre"), [*((gate, False) for gate in RIGHT["fla"]), ("key", True)])
def test_packed_sequences_reach_fla(name: str, gate: str, pre: bool) -> None:
    given = operands(gate, pre=pre)
    row = {key: each[:1] for key, each in given.items() if key != "read" and each.shape[:2] == (B, T)}
    ends = {"initial_state": torch.randn(3, H, K, V), "cu_seqlens": torch.tensor([0, 5, 6, T])}
    assert_right(NAME, name, given | row | ends, to_state=name == "fla" or not pre)


@pytest.mark.parametrize("name", ("fla", "fla_recurrent"))
@pytest.mark.parametrize("gate", ("none", "channels", "scalar", "key"))
def test_reads_before_the_write(name: str, gate: str) -> None:
    given = operands(gate, pre=True)
    assert_right(NAME, name, given, to_state=name == "fla")
    del given["bonus"]
    assert_right(NAME, name, given, to_state=name == "fla")


def test_mlstm_with_open_input_gates() -> None:
    assert_right(NAME, "mlstm_kernels", operands("scalar"), to_state=False)
    given = operands("scalar", state=False)
    given["log_a"][0, 3] = 0.0
    assert_right(NAME, "mlstm_kernels", given, to_state=False)


@pytest.mark.parametrize("name", ("fla", "fla_recurrent"))
def test_constant_gates_per_head_have_no_gradient(name: str) -> None:
    given, backend = operands("const"), registry.backend(NAME, name)
    wanted = registry.recurrence(NAME).definition(**given)
    assert_close(list(backend.function(**given)), list(wanted))
    given["q"] = given["q"].clone().requires_grad_()  # the gates' own gradient is not asked for
    assert backend.function(**given)[0].requires_grad
    with pytest.raises(Unsupported, match="constant in time"):
        outcome(backend.function, operands("const"), to_state=False, wide=False)


@pytest.mark.parametrize("name", ("fla_recurrent", "mlstm_kernels"))
def test_a_gradient_that_a_backward_pass_leaves_out_is_refused(name: str) -> None:
    given = operands("scalar", pre=name == "fla_recurrent")
    with pytest.raises(Unsupported, match="gradient at the final state"):
        outcome(registry.backend(NAME, name).function, given, to_state=True, wide=False)


def test_heads_that_share_their_keys_are_one_group() -> None:
    prepare = registry.backend(NAME, "mamba_ssd").prepare
    assert prepare is not None
    shared, apart = operands("scalar", shared=True), operands("scalar")
    assert [prepare(**each).operands[3].shape[2] for each in (shared, apart)] == [1, H]
    one = torch.randn(B, T, 1, K, requires_grad=True)
    expanded = {"q": one.expand(B, T, H, K), "k": one.expand(B, T, H, K)}
    assert prepare(**{**shared, **expanded}).operands[3].shape[2] == 1
    # a gradient per head is wanted, which a group would add up
    leaves = {name: one.detach().expand(B, T, H, K).detach().requires_grad_() for name in "qk"}
    assert prepare(**{**shared, **leaves}).operands[3].shape[2] == H
    assert_right(NAME, "mamba_ssd", shared)

    def gradient(function: Any) -> Tensor:
        output, _ = function(**{**shared, **expanded})
        return torch.autograd.grad(output.sum(), one)[0]

    backend, definition = registry.backend(NAME, "mamba_ssd").function, registry.recurrence(NAME).definition
    assert_close([gradient(backend)], [gradient(definition)])


def test_half_operands_give_their_dtype_and_a_float_state() -> None:
    for name in (*RIGHT, "mlstm_kernels"):
        given = {
            key: value.bfloat16() if key in "qkv" else value for key, value in operands("scalar").items()
        }
        output, state = registry.backend(NAME, name).function(**given)
        wanted, _ = registry.recurrence(NAME).definition(**given)
        assert (output.dtype, state.dtype) == (torch.bfloat16, torch.float32)
        assert (output.double() - wanted.double()).abs().max() <= 0.02 * wanted.abs().max()


def refusals() -> dict[str, tuple[str, dict[str, Any], str]]:
    scalar, key = operands("scalar"), operands("key")
    zero, reset = ({**scalar, "log_a": torch.full((B, T, H), end)} for end in (0.0, -torch.inf))
    brief = {name: value[:, :3] for name, value in operands("scalar", state=False).items()}
    thin = {**scalar, "q": scalar["q"][..., :4], "k": scalar["k"][..., :4]}
    narrow = {
        name: value[..., :8] if name in ("v", "initial_state") else value for name, value in key.items()
    }
    odd = {**scalar, "v": scalar["v"][..., :9].half(), "q": scalar["q"].half(), "k": scalar["k"].half()}
    del odd["initial_state"]
    found = {
        f"{name} in the complex field": (name, {**scalar, "phase": torch.ones(H)}, "complex")
        for name in ("fla", "fla_triton", "fla_recurrent", "mamba_ssd", "mlstm_kernels")
    }
    return found | {
        "double": ("fla", {**scalar, "q": scalar["q"].double()}, "double"),
        "value gates in chunks": ("fla", operands("both"), "fla_recurrent"),
        "value gates read before": ("fla_recurrent", {**operands("both"), "read": "pre"}, "value gates"),
        "narrow values": ("fla", narrow, "V above 8"),
        "odd half widths": ("fla", odd, "even widths"),
        "ssd by channel": ("mamba_ssd", key, "one per head"),
        "ssd with channels": ("mamba_ssd", operands("channels"), "one per head"),
        "ssd read before": ("mamba_ssd", {**scalar, "read": "pre"}, "S_{t-1}"),
        "ssd with gates of 1": ("mamba_ssd", zero, "log gates of 0"),
        "ssd with resets": ("mamba_ssd", reset, "log gates of 0"),
        "mlstm by channel": ("mlstm_kernels", key, "one per head"),
        "mlstm read before": ("mlstm_kernels", {**scalar, "read": "pre"}, "S_{t-1}"),
        "mlstm of 3 steps": ("mlstm_kernels", brief, "T = 3"),
        "mlstm narrow": ("mlstm_kernels", thin, "K = 4"),
    }  # fmt: skip


@pytest.mark.parametrize("what", refusals())
def test_what_a_peer_cannot_do_it_says(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, given, reason = refusals()[what]
    if name == "fla_triton":
        monkeypatch.setattr(sys.modules["fla.backends"], "_DISPATCH_DISABLED", True)
    leaves = {
        key: value.requires_grad_() if isinstance(value, Tensor) else value for key, value in given.items()
    }
    with pytest.raises(Unsupported, match=reason):
        registry.backend(NAME, name).function(**leaves)


def test_a_miscompiled_backward_pass_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["fla.utils"], "IS_NVIDIA_HOPPER", True)
    fla = registry.backend(NAME, "fla").function
    given = operands("scalar")
    fla(**given)
    with pytest.raises(Unsupported, match="Hopper"):
        outcome(fla, given, to_state=True, wide=False)
    assert_right(NAME, "fla", operands("key"))
    monkeypatch.setattr(sys.modules["fla.utils"], "TRITON_ABOVE_3_7_1", True)
    assert_right(NAME, "fla", given)


def test_a_process_has_fla_with_its_back_ends_or_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The switch is set while fla is imported, and no longer."""
    package = tmp_path / "fla"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "backends.py").write_text(
        'import os\n_DISPATCH_DISABLED = os.environ.get("FLA_DISABLE_BACKEND_DISPATCH") == "1"\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("FLA_DISABLE_BACKEND_DISPATCH", raising=False)
    functions = {name: registry.backend(NAME, name).function for name in ("fla", "fla_triton")}
    before, given = dict(os.environ), operands("key")
    for first, second in (("fla", "fla_triton"), ("fla_triton", "fla")):
        for name in ("fla", "fla.backends"):
            monkeypatch.delitem(sys.modules, name)
        functions[first](**given)
        assert dict(os.environ) == before
        with pytest.raises(Unsupported, match="a process of its own"):
            functions[second](**given)
    (package / "backends.py").unlink()
    monkeypatch.delitem(sys.modules, "fla.backends")
    with pytest.raises(Unsupported, match="older than 0"):
        functions["fla"](**given)


@pytest.mark.slow
def test_peers_are_listed_and_no_package_is_imported(tmp_path: Path) -> None:
    """In a process of its own: each has a process of its own, and one kernel per token is for decoding."""
    code = """
import sys
from ssmperf import registry
assert "ssmperf.impls.linear_attention.peers" not in sys.modules
names = ("fla", "fla_recurrent", "fla_triton", "mamba_ssd", "mlstm_kernels")
for name in names:
    backend = registry.backend("linear_attention", name)
    assert backend.prepare and backend.native and backend.devices == ("cuda",)
    assert registry.is_peer("gla", name) and registry.foreign("backend", f"linear_attention/{name}")
    assert ("decode" in backend.passes) == (name == "fla_recurrent")
assert set(names) <= set(registry.backend_names("retnet"))
assert registry.backend("mamba2", "mlstm_kernels").refusal(device="cuda", length=100) != None
assert not {*sys.modules} & {"fla", "mamba_ssm", "mlstm_kernels"}
"""
    (tmp_path / "looks_up.py").write_text(code)
    done = command(program=str(tmp_path / "looks_up.py"))
    assert done.returncode == 0, done.stderr
