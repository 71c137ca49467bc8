"""On a GPU: launches that are made together give the numbers of launches one by one, in every setting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from ssmperf.suitekit import registry

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
if reason := registry.backend("linear_attention", "triton").missing("cuda"):
    pytest.skip(reason, allow_module_level=True)

from ssmperf.impls._triton import plan as plans
from ssmperf.impls._triton import together
from triton import knobs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(knobs.runtime.interpret, reason="Triton interprets kernels in this process"),
]
KINDS = ("none", "scalar", "key", "key complex")
Operands = dict[str, Tensor]


def operands(kind: str) -> Operands:
    B, T, H, K, V = 1, 128, 2, 64, 64
    torch.manual_seed(0)
    shapes = {"q": (B, T, H, K), "k": (B, T, H, K), "v": (B, T, H, V)}
    found = {name: torch.randn(shape, device="cuda").bfloat16() for name, shape in shapes.items()}
    if kind != "none":
        found["log_a"] = -torch.randn((B, T, H) if kind == "scalar" else (B, T, H, K), device="cuda").abs()
    if kind == "key complex":
        found["phase"] = torch.randn(B, T, H, K, device="cuda")
    return {name: x.requires_grad_() for name, x in found.items()}


def forward(given: Operands) -> tuple[Tensor, ...]:
    return registry.backend("linear_attention", "triton").function(**given)


def both(
    given: Operands, recurrence: str = "linear_attention", backend: str = "triton"
) -> tuple[Tensor, ...]:
    """Results and gradients."""
    results = registry.backend(recurrence, backend).function(**given)
    gradients = torch.autograd.grad(results, list(given.values()), [torch.ones_like(x) for x in results])
    return *(x.detach() for x in results), *gradients


@contextmanager
def one_by_one() -> Iterator[None]:
    with mock.patch.object(together, "gathered", lambda *given: (None, "a test wants it so")):
        plans.forget()
        yield
    plans.forget()


def same(found: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> None:
    assert len(found) == len(want)
    for x, y in zip(found, want, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def expected(given: Operands) -> tuple[Tensor, ...]:
    with one_by_one(), runs() as seen:
        found = both(given)
    assert seen and all(plan.together is None for plan in seen)
    return found


@contextmanager
def runs() -> Iterator[list[plans.Plan]]:
    """Note the plan of each call. Those that are only expected have been made, but do not run."""
    seen: list[plans.Plan] = []
    honest = plans.Plan.run

    def run(plan: plans.Plan, *given: Any) -> tuple[Any, ...]:
        seen.append(plan)
        return honest(plan, *given)

    with mock.patch.object(plans.Plan, "run", run):
        yield seen


@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients(kind: str) -> None:
    given = operands(kind)
    want = expected(given)
    with runs() as seen:
        for _ in range(3):
            same(both(given), want)
    assert len(seen) == 6 and len(set(map(id, seen))) == 2
    assert not any(plan.one_by_one for plan in seen)


@pytest.mark.parametrize("kind", ["none", "key"])
def test_in_a_graph(kind: str) -> None:
    given = operands(kind)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            both(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both(given)
    with torch.no_grad():
        given["q"].mul_(0.5)
        given["v"].neg_()
    graph.replay()
    same(found, expected(given))


def test_on_the_current_stream() -> None:
    given = operands("key")
    want = expected(given)
    both(given)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        found = both(given)
        assert not stream.query()
    stream.synchronize()
    same(found, want)


def test_hooks_see_every_launch() -> None:
    given = operands("key")
    want = both(given)
    seen: list[Any] = []
    knobs.runtime.launch_enter_hook.add(seen.append)
    try:
        with runs() as made:
            found = both(given)
    finally:
        knobs.runtime.launch_enter_hook.remove(seen.append)
    same(found, want)
    assert len(seen) == sum(len(plan.launches) for plan in made) > 0


def test_in_threads_that_have_not_used_the_device() -> None:
    given = operands("key")
    want = both(given)
    found: list[tuple[Tensor, ...]] = []

    def work() -> None:
        with torch.no_grad():
            found.extend(forward(given) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 80
    for each in found:
        same(each, want[:2])


@pytest.mark.parametrize("name", ["scan", "selective_scan"])
def test_other_recurrences(name: str) -> None:
    torch.manual_seed(0)
    B, T, C, N = 2, 65, 64, 16
    shapes = {"log_a": (B, T, C), "b": (B, T, C)}
    if name == "selective_scan":
        shapes = {"x": (B, T, C), "delta": (B, T, C), "A": (C, N), "k": (B, T, N), "q": (B, T, N)}
    given = {key: torch.randn(shape, device="cuda") for key, shape in shapes.items()}
    for key in {"log_a", "A"} & given.keys():
        given[key] = -given[key].abs()
    if name == "selective_scan":
        given["delta"] = given["delta"].abs()
    given = {key: x.requires_grad_() for key, x in given.items()}
    with one_by_one():
        want = both(given, name)
    with runs() as seen:
        for _ in range(2):
            torch.testing.assert_close(both(given, name), want)
    assert seen and not any(plan.one_by_one for plan in seen)


@pytest.mark.parametrize("T", [130, 4096])
def test_kernels_of_cuda(T: int) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("delta_rule/cuda needs a Hopper")
    torch.manual_seed(0)
    B, H, K = 1, 2, 64
    given = {name: torch.randn(B, T, H, K, device="cuda") for name in ("q", "k", "v")}
    given["k"] = torch.nn.functional.normalize(given["k"], dim=-1)
    given = {name: x.bfloat16() for name, x in given.items()}
    given["beta"] = torch.rand(B, T, H, device="cuda")
    given["log_a"] = -torch.rand(B, T, H, device="cuda")
    given = {name: x.requires_grad_() for name, x in given.items()}
    with one_by_one():
        want = both(given, "delta_rule", "cuda")
    with runs() as seen:
        for _ in range(2):
            same(both(given, "delta_rule", "cuda"), want)
    assert seen and not any(plan.one_by_one for plan in seen)
