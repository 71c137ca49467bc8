"""Where the CUDA kernels of the delta rule run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ssmperf.impls._triton import plan
from ssmperf.impls.delta_rule._cuda import function
from support.without_gpu.cuda_host import COMPILER
from support.without_gpu.hopper_host import HopperHost

from ssmperf.suitekit import registry


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> HopperHost:
    """The device; where there is none, threads of this process."""
    shared: Path = tmp_path_factory.getbasetemp().parent / "hopper"
    shared.mkdir(exist_ok=True)
    found = HopperHost(shared)
    if not torch.cuda.is_available() or registry.backend("delta_rule", "cuda").missing("cuda") is not None:
        if COMPILER is None:
            pytest.skip("needs g++")
        plan.forget()
        found.install(function, monkeypatch)
    return found
