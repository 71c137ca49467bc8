"""Effects of importing, each in a process of its own."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "triton", "pandas", "plotly", "matplotlib", "scipy")
COMMAND_LINE = ("typer", "rich")


def fresh(code: str, *blocked: str, **variables: str) -> str:
    """The output of a new interpreter in which importing the blocked packages raises ImportError.

    variables: of its environment, beside ours.
    """
    block = f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", block + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("facade", ["ssmperf", "ssmperf.authoring", "ssmperf.suitekit"])
def test_the_import_is_light(facade: str) -> None:
    loaded = fresh(f"import {facade}; print(*{{name.partition('.')[0] for name in sys.modules}})").split()
    assert set(loaded).isdisjoint({*HEAVY, *COMMAND_LINE})


def test_the_import_starts_no_driver() -> None:
    libraries = fresh("import ssmperf; print(open('/proc/self/maps').read())")
    assert "libcuda" not in libraries
    assert "libnvidia" not in libraries


def test_a_checkout_has_its_own_parts_whatever_is_installed(tmp_path: Path) -> None:
    """Two checkouts are compared by PYTHONPATH, while one of them is installed in the environment."""
    root = Path(__file__).parents[1]
    rooms = ("impls", "suites", "reports")
    for name in ("ssmperf", "pyproject.toml", *rooms):
        (tmp_path / name).symlink_to(root / name)
    code = f"import ssmperf.{', ssmperf.'.join(rooms)}\n"
    code += f"for room in {rooms}: print(getattr(ssmperf, room).__path__[0])"
    found = fresh(code, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1").splitlines()
    assert found == [str(tmp_path / room) for room in rooms]


THREADS = """
import sys; sys.setswitchinterval(1e-6)
import threading
from ssmperf import registry

found, ready = [], threading.Barrier(8)

def look_up():
    ready.wait()
    found.append(registry.backend("gla", "chunkwise"))

threads = [threading.Thread(target=look_up) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found), len(set(map(id, found))))
"""


@pytest.mark.slow
def test_threads_may_look_up_what_none_has_imported() -> None:
    assert fresh(THREADS) == "8 1\n"


HELP = """
from ssmperf.shell.cli import main

for verb in ([], *([each] for each in sys.argv[1:])):
    sys.argv = ["ssmperf", *verb, "--help"]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 0, (verb, ended.code)
"""


def test_help_needs_no_torch() -> None:
    verbs = "run", "report", "list", "doctor", "new"
    shown = fresh(f"sys.argv[1:] = {verbs!r}\n{HELP}", *HEAVY)
    assert shown.count("Usage") == 1 + len(verbs)


LISTS = """
from ssmperf.shell.cli import main

sys.argv = ["ssmperf", "list", "workloads"]
try:
    main()
finally:
    print({name.partition(".")[0] for name in sys.modules if sys.modules[name]})
"""


def test_workloads_are_listed_without_torch() -> None:
    table, modules = fresh(LISTS, *HEAVY).rstrip().rsplit("\n", 1)
    assert "qwen3-next-80b" in table
    assert set(HEAVY).isdisjoint(ast.literal_eval(modules))


WITHOUT_TRITON = """
import json, torch
from ssmperf import registry

models = registry.models()
problems = {}
for name, recurrence in registry.recurrences().items():
    shape = recurrence.presets["smoke"][0]
    operands = recurrence.sample(shape, regime="gla", generator=torch.Generator().manual_seed(0))
    double = {key: value.double() if hasattr(value, "double") else value for key, value in operands.items()}
    expected, _ = recurrence.definition(**double)
    output, _ = registry.backend(name, "sequential").function(**double)
    torch.testing.assert_close(output, expected)
    for backend in registry.backend_names(name):
        problem = registry.import_problem(name, backend)
        problems[f"{name}/{backend}"] = problem or registry.backend(name, backend).missing("cpu")
print(json.dumps({"models": len(models), "problems": problems}))
"""


@pytest.mark.slow
def test_references_compute_without_triton() -> None:
    """A machine without triton imports everything, computes, and says what its triton backends lack."""
    found = json.loads(fresh(WITHOUT_TRITON, "triton").splitlines()[-1])
    triton = {name: problem for name, problem in found["problems"].items() if name.endswith("/triton")}
    others = {name: problem for name, problem in found["problems"].items() if name not in triton}
    assert found["models"] >= 16
    assert triton
    assert all(problem and "triton" in problem for problem in triton.values()), triton
    assert not any(problem and "triton" in problem for problem in others.values()), others


def test_sizes_are_planned_without_torchs_compiler() -> None:
    """Arithmetic on the device "meta" imports it, which took a third of the time of a plan."""
    code = """
import sys, torch
from ssmperf.suitekit import registry
from ssmperf.engine.layers.outline import Outline
shape = {"B": 1, "T": 64, "H": 64, "G": 1, "K": 128, "V": 64}
model = registry.model("mamba2").cls
print(model.shape_problem(shape), "torch._dynamo" in sys.modules)
with Outline():
    built = model(shape)
print({parameter.device.type for parameter in (built.A_log, built.D)}, built.input.weight.device.type)
"""
    assert fresh(code).split() == ["None", "False", "{'cpu'}", "meta"]
