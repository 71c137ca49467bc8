"""Fresh memory reads as NaN while a backend is judged, at no cost of torch's compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.processes.quick_processes import command

from ssmperf.engine.judge import poison
from ssmperf.engine.judge.poison import poisoned

CPU = torch.device("cpu")

# Compiled functions run as they are under a dispatch mode, but what they call may be traced all the same.
DRIVER = """
import sys, torch
from ssmperf.engine.judge.poison import poisoned

def function(x):
    fresh = torch.empty_like(x)
    return fresh + x, fresh

def compiler(graph, _):
    graphs.append(graph)
    return graph.forward

graphs, cpu = [], torch.device("cpu")
with poisoned(cpu, like=[]):
    filled = torch.empty(3).isnan().all().item()
    loaded = "torch._dynamo" in sys.modules
    compiled = torch.compile(function, backend=compiler)
    (_, fresh) = compiled(torch.ones(3))
under_poison = len(graphs)
torch.compile(lambda x: x + 1, backend=compiler)(torch.ones(3))
print(filled, loaded, fresh.isnan().all().item(), under_poison, len(graphs))
"""


@pytest.mark.slow
def test_it_needs_no_compiler_and_is_never_compiled(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    done = command(program=str(tmp_path / "driver.py"))
    assert done.stdout.split() == ["True", "False", "True", "0", "1"], done.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_uninitialised_numbers_are_nan_where_they_can_be(dtype: torch.dtype) -> None:
    like = torch.ones(2, 3, dtype=dtype)
    with poisoned(CPU, like=[]):
        fresh = [
            torch.empty(4, dtype=dtype),
            torch.empty_like(like),
            like.new_empty(5),
            torch.empty_strided((2, 2), (4, 1), dtype=dtype),
            like.new_empty_strided((2, 2), (1, 2)),
        ]
        zeros, copied = torch.zeros(3, dtype=dtype), like.clone()
    if dtype.is_floating_point or dtype.is_complex:
        assert all(each.isnan().all() for each in fresh)
    assert not zeros.any() and torch.equal(copied, like)
    after = torch.full((3,), 1.0)
    assert torch.equal(after, torch.ones(3))


def test_the_end_of_a_large_block_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison, "MOST_FILLED", 8)
    with poisoned(CPU, like=[]):
        fresh = torch.empty(4, 5)
    assert fresh.view(-1)[-8:].isnan().all()
