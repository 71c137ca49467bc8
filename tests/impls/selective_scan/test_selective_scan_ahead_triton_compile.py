"""The selective scan compiles ahead of its backward pass exactly what that launches, and nothing is left."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from support.without_gpu.compiled import multiprocessors, recording

from ssmperf.suitekit import registry

if reason := registry.import_problem("selective_scan", "triton"):
    pytest.skip(reason, allow_module_level=True)

from ssmperf.impls._triton import ahead
from ssmperf.impls.selective_scan._triton import passes
from triton import knobs

if knobs.runtime.interpret:
    pytest.skip("Triton interprets kernels in this process", allow_module_level=True)

MODULES = "ssmperf.impls.selective_scan._triton."


def operands(T: int, gate: str) -> dict[str, Any]:
    B, D, N = 1, 32, 4
    half = partial(torch.zeros, dtype=torch.bfloat16)
    given = {"x": half(B, T, D), "delta": torch.zeros(B, T, D), "k": half(B, T, N), "q": half(B, T, N)}
    given |= {"A": torch.zeros(D, N)} if gate == "exp" else {"skip": torch.zeros(D)}
    return {name: x.requires_grad_() for name, x in given.items()} | {"gate": gate}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("T", "gate", "packed"), [(1024, "exp", False), (64, "implicit", False), (64, "exp", True)]
)
def test_backward_finds_all_its_kernels(
    monkeypatch: pytest.MonkeyPatch, T: int, gate: str, packed: bool
) -> None:
    given = operands(T, gate) | ({"cu_seqlens": torch.tensor([0, 30, T])} if packed else {})
    started = []
    monkeypatch.setattr(passes, "start", lambda key, prepare: started.append((key, prepare)))
    monkeypatch.setattr(passes, "on_gpu", lambda x: True)
    with recording(90) as kernels, multiprocessors(MODULES, 132):
        o, final = registry.backend("selective_scan", "triton").function(**given)
        forward = len(kernels)
        ((key, prepare),) = started
        hash(key)
        job = ahead.start(object(), prepare)
        assert job is not None and job.exception(300) is None
        ready = list(kernels)
        assert any(kernel.metadata.name == "selective_scan_backward" for kernel in ready[forward:])
        torch.autograd.backward((o, final), (torch.ones_like(o), torch.ones_like(final)))
    assert len(kernels) == len(ready), "backward compiled what was not prepared"
