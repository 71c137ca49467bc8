"""One step without gradients has kernels of its own: they agree with the definition, and with the whole."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from ssmperf.suitekit import registry

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ("scan", "selective_scan", "ratio_scan", "linear_attention")
ENTRIES = {name: registry.backend(name, "triton") for name in NAMES}
if reason := ENTRIES["scan"].missing(DEVICE):
    pytest.skip(reason, allow_module_level=True)

B, C, N = 2, 5, 6
Given = dict[str, Any]
TIMED = ("log_a", "phase", "log_b", "b", "x", "delta", "k", "q", "v")  # may have a time axis, the second
FLOAT, BFLOAT, HALF = torch.float32, torch.bfloat16, torch.float16


def normal(*size: int, seed: int, dtype: torch.dtype = FLOAT) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=dtype).to(DEVICE)


def scan(
    T: int, *, log_a: tuple[int, ...] | None = None, phase: tuple[int, ...] | None = None,
    b: torch.dtype = FLOAT, gate: torch.dtype = FLOAT, C: int = C,
) -> Given:  # fmt: skip
    is_complex = phase is not None or b.is_complex
    given = {
        "log_a": -normal(*(log_a or (B, T, C)), seed=0).exp().to(gate),
        "b": normal(B, T, C, seed=1, dtype=b),
        "initial_state": normal(B, C, seed=2, dtype=torch.complex64 if is_complex else FLOAT),
        "phase": None if phase is None else 9 * normal(*phase, seed=3),
    }
    given["log_a"][..., 0] = -torch.inf
    return given


def selective_scan(T: int, *, gate: str, N: int = N, dtype: torch.dtype = FLOAT, D: int = C) -> Given:
    return {
        "x": normal(B, T, D, seed=0, dtype=dtype),
        "delta": normal(B, T, D, seed=1).abs() / 9,
        "k": normal(B, T, N, seed=2, dtype=dtype),
        "q": normal(B, T, N, seed=3, dtype=dtype),
        "A": -normal(D, N, seed=4).exp() if gate == "exp" else None,
        "initial_state": normal(B, D, N, seed=5),
        "gate": gate,
    }


def ratio_scan(
    T: int, *, bonus: bool = True, log_w: tuple[int, ...] = (C,), dtype: torch.dtype = FLOAT, C: int = C
) -> Given:
    q = 1 + normal(B, C, seed=5).abs()
    given = {
        "log_w": -normal(*log_w, seed=0).exp(),
        "k": 9 * normal(B, T, C, seed=1, dtype=dtype),
        "v": normal(B, T, C, seed=2, dtype=dtype),
        "bonus": normal(C, seed=3) if bonus else None,
        "initial_state": torch.stack([q * normal(B, C, seed=4), q, normal(B, C, seed=6)], dim=1),
    }
    given["log_w"][..., 0] = -torch.inf
    return given


def linear_attention(
    T: int, *, log_a: tuple[int, ...] | None = (), phase: tuple[int, ...] | None = None, both: bool = False,
    bonus: bool = False, dtype: torch.dtype = FLOAT, V: int = 35,
) -> Given:  # fmt: skip
    H, K = 3, N
    given = {
        "q": normal(B, T, H, K, seed=0, dtype=dtype),
        "k": normal(B, T, H, K, seed=1, dtype=dtype),
        "v": normal(B, T, H, V, seed=2, dtype=dtype),
        "log_a": None if log_a is None else -normal(*(log_a or (B, T, H, K)), seed=3).exp(),
        "phase": None if phase is None else 9 * normal(*phase, seed=4),
        "log_b": -normal(B, T, H, V, seed=5).exp() if both else None,
        "initial_state": normal(B, H, K, V, seed=6, dtype=FLOAT if phase is None else torch.complex64),
        "bonus": normal(H, K, seed=7) if bonus else None,
        "read": "pre" if bonus else "post",
    }
    if given["log_a"] is not None:
        given["log_a"][..., 0] = -torch.inf
    return given


CASES: dict[str, tuple[str, Callable[..., Given]]] = {
    "scan": ("scan", scan),
    "scan-const": ("scan", functools.partial(scan, log_a=(C,))),
    "scan-rows": ("scan", functools.partial(scan, log_a=(B, 1, 1))),
    "scan-bf16": ("scan", functools.partial(scan, b=BFLOAT, gate=BFLOAT)),
    "scan-const-complex": ("scan", functools.partial(scan, log_a=(C,), phase=(C,))),
    "scan-complex-b": ("scan", functools.partial(scan, phase=(1,), b=torch.complex64)),
    "scan-complex-b-real-gate": ("scan", functools.partial(scan, b=torch.complex64)),
    "exp": ("selective_scan", functools.partial(selective_scan, gate="exp")),
    "exp-fp16": ("selective_scan", functools.partial(selective_scan, gate="exp", dtype=HALF)),
    "exp-N16": ("selective_scan", functools.partial(selective_scan, gate="exp", N=16)),
    "exp-N200": ("selective_scan", functools.partial(selective_scan, gate="exp", N=200, D=3)),
    "implicit": ("selective_scan", functools.partial(selective_scan, gate="implicit")),
    "ratio": ("ratio_scan", ratio_scan),
    "ratio-plain": ("ratio_scan", functools.partial(ratio_scan, bonus=False, log_w=(B, 1, C))),
    "ratio-bf16": ("ratio_scan", functools.partial(ratio_scan, dtype=BFLOAT)),
    "key": ("linear_attention", linear_attention),
    "key-half": ("linear_attention", functools.partial(linear_attention, dtype=HALF)),
    "none": ("linear_attention", functools.partial(linear_attention, log_a=None)),
    "const": ("linear_attention", functools.partial(linear_attention, log_a=(3,), V=5)),
    "both": ("linear_attention", functools.partial(linear_attention, both=True)),
    "bonus": ("linear_attention", functools.partial(linear_attention, bonus=True)),
    "phase": ("linear_attention", functools.partial(linear_attention, log_a=(3, N), phase=(3,))),
    "phase-alone": ("linear_attention", functools.partial(linear_attention, log_a=None, phase=(3, N))),
}
each_case = pytest.mark.parametrize("case", CASES)


def wide(x: Any) -> Any:
    return x.to(torch.complex128 if x.is_complex() else torch.float64) if isinstance(x, Tensor) else x


def close(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor], dtype: torch.dtype) -> None:
    """Outputs to a rounding of theirs (the interpreter's cuts off), states to some of float32."""
    rounding = {BFLOAT: 2**-7, HALF: 2**-10}.get(dtype, 2e-6)
    for x, exact, tolerance in zip(got, want, (rounding, 2e-6), strict=True):
        assert x.shape == exact.shape
        torch.testing.assert_close(wide(x), wide(exact), rtol=tolerance, atol=2e-6)


def alone(name: str) -> Any:
    """Lets no kernel be reached but that of one step."""
    module = importlib.import_module(f"ssmperf.impls.{name}.triton")
    whole = "".join(part.capitalize() for part in name.split("_"))
    return mock.patch.object(module, whole, None)


def one_step(name: str, given: Given) -> tuple[Tensor, Tensor]:
    with alone(name):
        return ENTRIES[name].function(**given)


@each_case
@pytest.mark.parametrize("state", [True, False])
def test_a_step_agrees_with_the_definition(case: str, state: bool) -> None:
    name, make = CASES[case]
    given = make(1)
    if not state:
        given["initial_state"] = None
    want = registry.recurrence(name).definition(**{key: wide(x) for key, x in given.items()})
    got = one_step(name, given)
    assert got[0].dtype == next(given[key] for key in ("b", "x", "v") if key in given).dtype or (
        got[0].dtype == torch.complex64
    )
    close(got, want, got[0].dtype)


@pytest.mark.filterwarnings("error:Casting complex values to real")
@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("name", ["scan", "selective_scan", "linear_attention"])
def test_under_real_gates_a_complex_state_goes_on_as_its_real_part(name: str, T: int) -> None:
    given = MAKE[name](T)
    given["initial_state"] = given["initial_state"] + 0.5j
    want = registry.recurrence(name).definition(**given)
    torch.set_warn_always(True)
    try:
        got = ENTRIES[name].function(**given)
    finally:
        torch.set_warn_always(False)
    assert got[1].dtype == want[1].dtype == torch.float32
    close(got, want, got[0].dtype)


@each_case
def test_step_by_step_equals_the_definition_of_the_whole(case: str) -> None:
    name, make = CASES[case]
    T = 3
    given = make(T)
    whole = registry.recurrence(name).definition(**{key: wide(x) for key, x in given.items()})
    outputs, state = [], given["initial_state"]
    for t in range(T):
        step = {key: x[:, t : t + 1] if key in TIMED and x is not None and x.dim() >= 3 and x.shape[1] == T
                else x for key, x in given.items()}  # fmt: skip
        output, state = one_step(name, step | {"initial_state": state})
        outputs.append(output)
    close((torch.cat(outputs, dim=1), state), whole, outputs[0].dtype)


MAKE: dict[str, Callable[..., Given]] = {
    "scan": scan,
    "selective_scan": functools.partial(selective_scan, gate="exp"),
    "ratio_scan": ratio_scan,
    "linear_attention": linear_attention,
}


@pytest.mark.parametrize("name", NAMES)
def test_strided_operands_are_read_where_they_are(name: str) -> None:
    given = MAKE[name](1)
    strided = {
        key: torch.stack([x, x], dim=-1)[..., 1] if isinstance(x, Tensor) else x for key, x in given.items()
    }
    assert not next(strided[key] for key in ("b", "x", "v") if key in strided).is_contiguous()
    for got, want in zip(one_step(name, strided), one_step(name, given), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", NAMES)
def test_where_a_gradient_is_wanted_the_whole_kernels_run(name: str) -> None:
    given = MAKE[name](1)
    given["initial_state"].requires_grad_()
    output, state = ENTRIES[name].function(**given)
    assert output.requires_grad or state.requires_grad
    with torch.no_grad():
        close(one_step(name, given), (output.detach(), state.detach()), FLOAT)


@pytest.mark.parametrize(
    "options", [("zoh",), ("skip",), ("output_gate",), ("delta_bias", "delta_softplus")], ids=str
)
def test_options_of_a_selective_step(options: tuple[str, ...]) -> None:
    from ssmperf.impls.selective_scan._triton.decode import decode
    from ssmperf.impls.selective_scan._triton.schedule import Call

    given = selective_scan(1, gate="exp")
    given["A"][0] = torch.linspace(-1e-3, 0, N)  # near 0, where (e^z − 1)/z cancels
    given["delta"][0, 0, 1] = 0
    extra = {
        "skip": normal(C, seed=6), "output_gate": 9 * normal(B, 1, C, seed=7),
        "delta_bias": 30 * normal(C, seed=8), "delta_softplus": True,
    }  # fmt: skip
    chosen = {name: extra[name] for name in options if name in extra}
    zoh = "zoh" in options
    arguments = [given[name] for name in ("x", "delta", "k", "q", "A", "initial_state")]
    softplus = chosen.pop("delta_softplus", False)
    got = decode(*arguments, Call("exp", zoh=zoh, softplus=softplus), **chosen)
    want = registry.recurrence("selective_scan").definition(
        *map(wide, arguments), discretization="zoh" if zoh else "euler", delta_softplus=softplus,
        **{name: wide(x) for name, x in chosen.items()},
    )  # fmt: skip
    close(got, want, FLOAT)


def test_a_zoh_step_of_infinite_size() -> None:
    """It reaches −k x / A, and states that only fill up a group, whose rate is 0, stay out of it."""
    from ssmperf.impls.selective_scan._triton.decode import decode
    from ssmperf.impls.selective_scan._triton.schedule import Call

    given = selective_scan(1, gate="exp", N=3)
    given["A"] = -1 - given["A"].abs()
    given["delta"][:] = math.inf
    arguments = [given[name] for name in ("x", "delta", "k", "q", "A", "initial_state")]
    output, final = decode(*arguments, Call("exp", zoh=True))
    want = -(given["x"][:, 0, :, None] * given["k"]) / given["A"]
    torch.testing.assert_close(final, want, rtol=2e-6, atol=0)
    torch.testing.assert_close(output[:, 0], (want * given["q"]).sum(-1), rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
class TestOnDevice:
    @pytest.mark.parametrize("width", [1, 129, 1536])
    @pytest.mark.parametrize("name", NAMES)
    def test_sizes(self, name: str, width: int) -> None:
        given = {
            "scan": lambda: scan(1, C=width, phase=(width,)),
            "selective_scan": lambda: selective_scan(1, gate="exp", D=width, N=16),
            "ratio_scan": lambda: ratio_scan(1, C=width, log_w=(width,)),
            "linear_attention": lambda: linear_attention(1, V=width),
        }[name]()
        want = registry.recurrence(name).definition(**{key: wide(x) for key, x in given.items()})
        close(one_step(name, given), want, FLOAT)

    @pytest.mark.parametrize("name", NAMES)
    def test_launches_one_kernel_of_those_declared(self, name: str) -> None:
        from ssmperf.engine.measure.provenance import fell_back, launched_kernels

        given = MAKE[name](1)
        ENTRIES[name].function(**given)
        launched = launched_kernels(lambda: ENTRIES[name].function(**given))
        assert launched == [f"{name}_forward_decode"]
        assert fell_back(ENTRIES[name].kernels, launched) is None
