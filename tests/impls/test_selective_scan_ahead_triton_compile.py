"""What the selective scan compiles ahead of its backward pass is what that launches, and nothing is left."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from compiled import multiprocessors, recording
from ssmperf.impls.selective_scan._triton import function
from torch import Tensor

from ssmperf import ahead, registry

pytest.importorskip("triton")
MODULES = "ssmperf.impls.selective_scan._triton."


def operands(T: int, gate: str, *, options: bool) -> dict[str, Any]:
    B, D, N = 1, 32, 4
    half = partial(torch.zeros, dtype=torch.bfloat16)
    given: dict[str, Any] = {"x": half(B, T, D), "k": half(B, T, N), "q": half(B, T, N)}
    given["delta"] = torch.zeros(B, T, D)
    if gate == "exp":
        given["A"] = torch.zeros(D, N)
    if options:
        given |= {"skip": torch.zeros(D), "output_gate": half(B, T, D), "delta_bias": torch.zeros(D)}
        given |= {"delta_softplus": True, "cu_seqlens": torch.tensor([0, 3, T])}
    leaves = {name: x.requires_grad_() if name != "cu_seqlens" else x for name, x in given.items()
              if isinstance(x, Tensor)}  # fmt: skip
    return given | leaves | {"gate": gate}


@pytest.mark.parametrize(("T", "gate", "options"), [(1024, "exp", False), (5, "implicit", True)])
def test_backward_finds_all_its_kernels(
    monkeypatch: pytest.MonkeyPatch, T: int, gate: str, options: bool
) -> None:
    given = operands(T, gate, options=options)
    started = []
    monkeypatch.setattr(function, "start", lambda key, prepare: started.append((key, prepare)))
    monkeypatch.setattr(function, "on_gpu", lambda x: True)
    with recording(90) as kernels, multiprocessors(MODULES, 132):
        o, final = registry.backend("selective_scan", "triton").function(**given)
        forward = len(kernels)
        ((key, prepare),) = started
        hash(key)
        job = ahead.start(object(), prepare)
        ahead.wait(job)
        assert job.exception() is None
        ready = list(kernels)
        torch.autograd.backward((o, final), (torch.ones_like(o), torch.ones_like(final)))
    assert any(kernel.metadata.name == "selective_scan_backward" for kernel in ready[forward:])
    used, compiled = ([id(kernel) for kernel in part] for part in (kernels[len(ready) :], ready[forward:]))
    assert used == compiled
