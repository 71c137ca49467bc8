"""A kernel has one key in Triton's cache, whatever the process compiled before it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from triton import knobs

if knobs.runtime.interpret:
    pytest.skip("Triton interprets kernels in this process", allow_module_level=True)

SOURCE = """
import triton
import triton.language as tl

INNER = tl.constexpr(3)
OUTER = tl.constexpr(5)

@triton.jit
def inner(x):
    return x * INNER

@triton.jit
def outer(x):
    return inner(x) + OUTER

@triton.jit
def kernel(to):
    tl.store(to, outer(1))
"""

# imports all modules with kernels, settles their keys in an order, and prints the keys
ALL = """
import importlib, json, pkgutil, sys
import ssmperf.impls as package
from ssmperf.impls._triton.keys import settle_key
from triton.runtime.jit import JITFunction

found = {}
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if "triton" in module.name:
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, JITFunction):
                found[f"{value.fn.__module__}.{value.fn.__qualname__}"] = value
for name in sorted(found, reverse=sys.argv[1] == "reversed"):
    settle_key(found[name])
keys, constants = {}, {}
for name, function in found.items():
    keys[name] = function.cache_key
    for (constant, _), (value, _) in function.used_global_vals.items():
        constants.setdefault(f"{name} {constant}", set()).add(repr(value))
print(json.dumps([keys, [name for name, values in constants.items() if len(values) > 1]]))
"""


def module_of(folder: Path, name: str) -> Any:
    """Import the source anew."""
    path = folder / f"{name}.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_order_does_not_matter(tmp_path: Path) -> None:
    from ssmperf.impls._triton.keys import settle_key

    orders = [("kernel",), ("inner", "kernel"), ("outer", "inner", "kernel"), ("inner", "outer", "kernel")]
    keys, constants = set(), []
    for number, order in enumerate(orders):
        module = module_of(tmp_path, f"functions_{number}")
        for name in order:
            settle_key(getattr(module, name))
        keys.add(module.kernel.cache_key)
        constants.append({name for name, _ in module.kernel.used_global_vals})
    assert len(keys) == 1
    assert constants == [{"INNER", "OUTER"}] * len(orders)


@pytest.mark.slow
def test_all_kernels_have_one_key() -> None:
    runs = [
        subprocess.run([sys.executable, "-c", ALL, order], capture_output=True, text=True, check=True)
        for order in ("sorted", "reversed")
    ]
    (keys, ambiguous), (others, _) = (json.loads(run.stdout) for run in runs)
    assert len(keys) > 100 and keys == others
    assert not ambiguous  # Triton sorts constants of one name by the address of their module
