"""Other people's kernels: layouts, gates, refusals, with stand-ins for the packages as they document them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from ssmperf.impls._peer import peer
from support.kernels.peer_results import assert_right, outcome
from support.processes.quick_processes import command
from torch import Tensor

from ssmperf import Unsupported
from ssmperf.engine.operands.time_axis import time_last
from ssmperf.engine.registry import declarations
from ssmperf.suitekit import registry

PEERS = {
    "scan": ("accelerated_scan_complex", "accelerated_scan_scalar", "fla_hgrn", "fla_hgrn_recurrent"),
    "ratio_scan": ("fla_rwkv4",),
    "selective_scan": ("mamba_ssm",),
}
PACKAGES = ("accelerated_scan", "fla", "selective_scan_cuda")
B, T, C, N = 2, 7, 3, 2


def scan_time_last(gates: Tensor, inputs: Tensor) -> Tensor:
    """accelerated_scan.scalar.scan and complex.scan: (B, C, T), contiguous, of one dtype."""
    assert gates.is_contiguous() and inputs.is_contiguous() and gates.dtype == inputs.dtype
    assert gates.shape == inputs.shape
    h, states = torch.zeros_like(inputs[..., 0]), []
    for a_t, b_t in zip(gates.unbind(-1), inputs.unbind(-1), strict=True):
        h = a_t * h + b_t
        states.append(h)
    return torch.stack(states, -1)


def hgrn(
    x: Tensor, g: Tensor, initial_state: Tensor | None = None, output_final_state: bool = False
) -> tuple[Tensor, Tensor | None]:
    """fla.ops.hgrn: x and log gates g (B, T, D), contiguous; the final state only on demand."""
    assert x.is_contiguous() and g.is_contiguous() and x.shape == g.shape
    h = torch.zeros_like(x[:, 0], dtype=torch.float32) if initial_state is None else initial_state
    states = []
    for x_t, g_t in zip(x.unbind(1), g.unbind(1), strict=True):
        h = g_t.float().exp() * h + x_t.float()
        states.append(h)
    return torch.stack(states, 1).to(x.dtype), h.to(x.dtype) if output_final_state else None


def chunk_hgrn(x: Tensor, g: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """The chunked one gives no gradient to an initial state."""
    assert initial_state is None
    return hgrn(x, g)


def rwkv4(w: Tensor, u: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """fla.ops.rwkv4: decay exp(−exp(w)) and bonus u per channel; state (B, 3, 1, C) of α, β, ε."""
    assert state.shape == (k.shape[0], 3, 1, k.shape[2])
    alpha, beta, eps = state[:, :, 0].unbind(1)
    outputs = []
    for k_t, v_t in zip(k.unbind(1), v.unbind(1), strict=True):
        top = torch.maximum(u + k_t, eps)
        past, now = torch.exp(eps - top), torch.exp(u + k_t - top)
        outputs.append((past * alpha + now * v_t) / (past * beta + now))
        decayed = eps - torch.exp(w)
        top = torch.maximum(decayed, k_t)
        past, now = torch.exp(decayed - top), torch.exp(k_t - top)
        alpha, beta, eps = past * alpha + now * v_t, past * beta + now, top
    return torch.stack(outputs, 1), torch.stack([alpha, beta, eps], 1).unsqueeze(2)


class Extension(ModuleType):
    """selective_scan_cuda: u, delta, z (B, D, T); B and C (B, 1, N, T), or (B, 1, N, 2T) with a complex A."""

    def _forward(self, *operands: Any) -> tuple[Tensor, Tensor, Tensor]:
        u, delta, A, B, C, D, z, bias, softplus = operands
        same = [each for each in (u, delta, B, C, z) if each is not None]
        assert all(each.dtype == u.dtype and each.is_contiguous() for each in same)
        if A.is_complex():
            B, C = (torch.view_as_complex(each.unflatten(-1, (-1, 2)).contiguous()) for each in (B, C))
        if bias is not None:
            delta = delta + bias.unsqueeze(-1)
        delta = torch.nn.functional.softplus(delta) if softplus else delta
        state, outputs = torch.zeros(u.shape[0], *A.shape, dtype=A.dtype), []
        for t in range(u.shape[-1]):
            step = delta[..., t, None]
            state = torch.exp(step * A) * state + step * u[..., t, None] * B[:, :, :, t]
            outputs.append((state * C[:, :, :, t]).sum(-1))
        output = torch.stack(outputs, -1)
        output = 2 * output.real if A.is_complex() else output
        if D is not None:
            output = output + D.unsqueeze(-1) * u
        return output, output if z is None else output * torch.nn.functional.silu(z), state

    def fwd(self, *operands: Any) -> list[Tensor]:
        output, gated, state = self._forward(*operands)
        ends = torch.stack([torch.full_like(state, torch.nan), state], -1).flatten(-2).unsqueeze(2)
        return [output, ends] if operands[6] is None else [output, ends, gated]

    def bwd(self, *arguments: Any) -> list[Any]:
        *tensors, dout, ends, out, dz, softplus, recompute = arguments
        assert ends.dim() == 4 and (dz, recompute) == (None, False)
        leaves = [None if each is None else each.detach().requires_grad_() for each in tensors]
        with torch.enable_grad():
            plain, gated, _ = self._forward(*leaves, softplus)
        assert (out is None) == (leaves[6] is None)
        assert out is None or torch.equal(out, plain)  # of a gated call it wants the output before the gate
        given = [each for each in leaves if each is not None]
        found = iter(torch.autograd.grad(gated, given, dout))
        du, ddelta, dA, dB, dC, dD, dz, dbias = (None if each is None else next(found) for each in leaves)
        return [du, ddelta, dA, dB, dC, dD, dbias] + ([] if dz is None else [dz])


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    def module(name: str, **contents: Any) -> None:
        made = ModuleType(name)
        vars(made).update(contents)
        monkeypatch.setitem(sys.modules, name, made)

    for name in ("accelerated_scan", "fla", "fla.ops"):
        module(name)
    module("accelerated_scan.scalar", scan=scan_time_last)
    module("accelerated_scan.complex", scan=scan_time_last)
    module("fla.ops.hgrn", chunk_hgrn=chunk_hgrn, fused_recurrent_hgrn=hgrn)
    module("fla.ops.rwkv4", fused_recurrent_rwkv4=rwkv4)
    monkeypatch.setitem(sys.modules, "selective_scan_cuda", Extension("selective_scan_cuda"))


def log_gates() -> Tensor:
    log_a = -torch.rand(B, T, C)
    log_a[0, 3, 1] = -torch.inf
    return log_a


@pytest.mark.parametrize("name", ("accelerated_scan_scalar", "fla_hgrn", "fla_hgrn_recurrent"))
@pytest.mark.parametrize("gate", ("data", "const", "channels"))
@pytest.mark.parametrize("with_state", (False, True))
def test_real_scans(name: str, gate: str, with_state: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = sys.modules[registry.backend("scan", name).function.__module__]
    monkeypatch.setattr(peers, "BLOCK", 4)
    torch.manual_seed(1)
    log_a = {"data": log_gates(), "const": -torch.rand(1, 1, C), "channels": -torch.rand(C)}[gate]
    given = {"log_a": log_a, "b": torch.randn(B, T, C)}
    assert_right("scan", name, given | ({"initial_state": torch.randn(B, C)} if with_state else {}))


@pytest.mark.parametrize("with_state", (False, True))
@pytest.mark.parametrize("real_input", (False, True))
def test_complex_scans(with_state: bool, real_input: bool) -> None:
    torch.manual_seed(2)
    b = torch.randn(B, T, C) if real_input else torch.randn(B, T, C, dtype=torch.complex64)
    given = {"log_a": log_gates(), "b": b, "phase": torch.randn(1, 1, C)}
    state = {"initial_state": torch.randn(B, C, dtype=torch.complex64)} if with_state else {}
    assert_right("scan", "accelerated_scan_complex", given | state)


def test_backward_gets_whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = registry.backend("scan", "accelerated_scan_scalar").prepare
    assert prepare is not None
    monkeypatch.setattr(sys.modules[prepare.__module__], "BLOCK", 4)
    b = torch.randn(B, T, C)
    assert [each.shape for each in prepare(log_gates(), b).operands] == [(B, C, T)] * 2
    assert [each.shape for each in prepare(log_gates(), b.requires_grad_()).operands] == [(B, C, 8)] * 2


def test_half_inputs_take_half_gates_and_give_their_dtype() -> None:
    for name in ("accelerated_scan_scalar", "fla_hgrn", "fla_hgrn_recurrent"):
        backend = registry.backend("scan", name)
        output, state = backend.function(log_gates(), torch.randn(B, T, C, dtype=torch.bfloat16))
        assert (output.dtype, state.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("bonus", (False, True))
@pytest.mark.parametrize("with_state", (False, True))
def test_ratio(bonus: bool, with_state: bool) -> None:
    torch.manual_seed(3)
    log_w = torch.tensor([-0.3, 0.0, -torch.inf])  # log −log w is not finite at the last two
    given = {"log_w": log_w, "k": torch.randn(B, T, C), "v": torch.randn(B, T, C)}
    if bonus:
        given["bonus"] = torch.randn(C)
    if with_state:
        p, q, m = torch.randn(B, C), 1 + torch.rand(B, C), torch.randn(B, C)
        given["initial_state"] = torch.stack([p, q, m], 1)
    assert_right("ratio_scan", "fla_rwkv4", given, to_state=False)
    function = registry.backend("ratio_scan", "fla_rwkv4").function
    with pytest.raises(Unsupported, match="gradient at the final state"):
        outcome(function, given, to_state=True, wide=False)


@pytest.mark.parametrize("complex_", (False, True))
def test_selective_scan(complex_: bool) -> None:
    torch.manual_seed(4)
    dtype = torch.complex64 if complex_ else torch.float32
    A = -torch.rand(C, N)
    given = {
        "x": torch.randn(B, T, C),
        "delta": torch.rand(B, T, C),
        "k": torch.randn(B, T, N, dtype=dtype),
        "q": torch.randn(B, T, N, dtype=dtype),
        "A": torch.complex(A, torch.randn(C, N)) if complex_ else A,
    }
    assert_right("selective_scan", "mamba_ssm", given, to_state=False)
    function = registry.backend("selective_scan", "mamba_ssm").function
    with pytest.raises(Unsupported, match="gradient at the final state"):
        outcome(function, given, to_state=True, wide=False)
    output, state = function(**{**given, "x": given["x"].requires_grad_()})
    torch.autograd.grad((output, state), given["x"], (torch.ones_like(output), torch.zeros_like(state)))


@pytest.mark.parametrize(
    "wanted", [("skip",), ("output_gate",), ("delta_bias", "skip", "output_gate")], ids=str
)
def test_mamba_takes_what_a_layer_does_around_the_scan(wanted: tuple[str, ...]) -> None:
    made = {"skip": torch.randn(C), "output_gate": torch.randn(B, T, C), "delta_bias": torch.randn(C)}
    given = {
        "x": torch.randn(B, T, C),
        "delta": torch.randn(B, T, C),
        "k": torch.randn(B, T, N),
        "q": torch.randn(B, T, N),
        "A": -torch.rand(C, N),
        "delta_softplus": True,
        **{name: made[name] for name in wanted},
    }
    assert_right("selective_scan", "mamba_ssm", given, to_state=False)


def refusals() -> dict[str, tuple[str, str, dict[str, Any], str]]:
    real = {"log_a": log_gates(), "b": torch.randn(B, T, C)}
    ratio = {"log_w": -torch.rand(C), "k": real["b"], "v": real["b"]}
    x, k = torch.randn(B, T, C), torch.randn(B, T, N)
    select = {"x": x, "delta": x.abs(), "k": k, "q": k, "A": -torch.rand(C, N)}
    wide = torch.randn(B, T, 300)
    return {
        "scalar with a phase": ("scan", "accelerated_scan_scalar", real | {"phase": real["b"]}, "complex"),
        "scalar in double": ("scan", "accelerated_scan_scalar", real | {"b": real["b"].double()}, "double"),
        "complex without a phase": ("scan", "accelerated_scan_complex", real, "real gates"),
        "hgrn with a phase": ("scan", "fla_hgrn", real | {"phase": real["b"]}, "complex"),
        "decays over time": ("ratio_scan", "fla_rwkv4", ratio | {"log_w": log_gates()}, "one per channel"),
        "a state": ("selective_scan", "mamba_ssm", select | {"initial_state": torch.ones(B, C, N)}, "state"),
        "zoh": ("selective_scan", "mamba_ssm", select | {"discretization": "zoh"}, "zoh"),
        "implicit": ("selective_scan", "mamba_ssm", {**select, "A": None, "gate": "implicit"}, "implicit"),
        "packed": (
            "selective_scan",
            "mamba_ssm",
            {name: value[:1] if name in ("x", "delta", "k", "q") else value for name, value in select.items()}
            | {"cu_seqlens": torch.tensor([0, 3, T])},
            "packed",
        ),
        "N of 300": (
            "selective_scan",
            "mamba_ssm",
            select | {"k": wide, "q": wide, "A": torch.ones(C, 300)},
            "300",
        ),
    }


@pytest.mark.parametrize("what", refusals())
def test_what_a_peer_cannot_do_it_says(what: str) -> None:
    recurrence, name, given, reason = refusals()[what]
    with pytest.raises(Unsupported, match=reason):
        registry.backend(recurrence, name).function(**given)


@pytest.mark.parametrize("recurrence", PEERS)
def test_peers_are_listed_found_first_and_imported_last(recurrence: str, tmp_path: Path) -> None:
    """In a process of its own: looked up before anything is listed; no package of theirs is imported."""
    code = f"""
import sys
from ssmperf import registry
assert "ssmperf.impls.{recurrence}.peers" not in sys.modules
for name in {PEERS[recurrence]!r}:
    backend = registry.backend({recurrence!r}, name)
    assert backend.prepare and backend.native and backend.devices == ("cuda",)
    assert "needs the package" in (backend.missing("cuda") or "needs the package"), backend.missing("cuda")
    assert backend.missing("cpu")
assert set({PEERS[recurrence]!r}) <= set(registry.backend_names({recurrence!r}))
assert not {{*sys.modules}} & set({PACKAGES!r})
"""
    (tmp_path / "looks_up.py").write_text(code)
    done = command(program=str(tmp_path / "looks_up.py"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ("accelerated_scan_scalar", "accelerated_scan_complex"))
def test_operands_with_time_innermost_are_taken_as_they_lie(name: str) -> None:
    """Where they had to be transposed by a copy, now the kernel reads the very memory."""
    complex_ = name.endswith("complex")
    b = torch.randn(B, T, C, dtype=torch.complex64 if complex_ else torch.float32)
    given = {"log_a": log_gates(), "b": b, **({"phase": torch.randn(B, T, C)} if complex_ else {})}
    prepare = registry.backend("scan", name).prepare
    assert prepare is not None
    laid_out = {key: time_last(value) for key, value in given.items()}
    with torch.no_grad():
        (gates, inputs), (other_gates, others) = prepare(**laid_out).operands, prepare(**given).operands
    assert inputs.data_ptr() == laid_out["b"].data_ptr()
    assert others.data_ptr() != b.data_ptr()
    assert torch.equal(gates, other_gates) and torch.equal(inputs, others)
    assert_right("scan", name, laid_out)


@pytest.mark.parametrize("name", ("accelerated_scan_scalar", "accelerated_scan_complex", "fla_hgrn"))
def test_kernels_without_a_state_do_not_decode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their preparation would make the whole step, and no time would count it."""
    monkeypatch.setattr(declarations, "installed", lambda package: True)
    assert registry.backend("scan", name).refusal(device="cuda", pass_="decode") == "no decode pass"
    assert registry.backend("scan", "fla_hgrn_recurrent").refusal(device="cuda", pass_="decode") is None


def test_the_imports_of_a_peer_leave_the_hook_for_exceptions_as_it_is(own_registrations: None) -> None:
    """TVM replaces it when it is imported, and the process would count as changed by each case."""

    def replacing() -> None:
        sys.excepthook = lambda *error: None

    @peer("scan", name="planted_imports", package="torch", launches=1, loads=replacing)
    def planted(log_a: Tensor, b: Tensor) -> None:
        """Do nothing."""

    before = sys.excepthook
    loads = registry.backend("scan", "planted_imports").loads
    assert loads is not None
    loads()
    assert sys.excepthook is before
