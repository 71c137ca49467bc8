"""Which differences between environments end a comparison, and which are worth a note."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from ssmperf import Case, Record, Run, Shape, Status
from ssmperf.comparison.environments import Differences, differences

ENVIRONMENT: dict[str, Any] = {
    "hardware": {
        "cpu": {"model": "C", "architecture": "x86_64", "cores": 8, "memory_bytes": 1},
        "gpu": {"name": "G", "uuid": "1", "multiprocessors": 100},
    },
    "driver": "1",
    "versions": {"python": "3.11.9", "os": "O 1", "kernel": "6.1", "ssmperf": "1", "torch": "2",
                 "triton": "3", "numpy": "2.1", "nvidia-ml-py": "12"},
    "torch": {"threads": 8, "cuda": "13", "matmul_precision": "highest", "deterministic": False},
    "cpu_limit": None,
    "variables": {"CUDA_MODULE_LOADING": "LAZY"},
    "load_average": [0.0],
    "git": {"commit": "a"},
}  # fmt: skip
# dotted name, other value, and what it is for a GPU case and for a CPU case
CHANGES = [
    ("hardware.gpu.name", "H", "breaks", "note"),
    ("hardware.gpu.multiprocessors", 50, "breaks", "note"),
    ("hardware.gpu.uuid", "2", "nothing", "nothing"),
    ("hardware.cpu.model", "D", "note", "breaks"),
    ("hardware.cpu.cores", 4, "note", "breaks"),
    ("hardware.cpu.memory_bytes", 2, "nothing", "nothing"),
    ("driver", "2", "breaks", "note"),
    ("versions.torch", "2.1", "breaks", "breaks"),
    ("versions.triton", "3.1", "breaks", "note"),
    ("versions.python", "3.12.0", "breaks", "breaks"),
    ("versions.python", "3.11.10", "note", "note"),
    ("versions.os", "O 2", "note", "note"),
    ("versions.kernel", "6.2", "note", "note"),
    ("versions.numpy", "2.2", "note", "note"),
    ("versions.nvidia-ml-py", "13", "note", "note"),
    ("versions.ssmperf", "2", "nothing", "nothing"),
    ("torch.threads", 4, "note", "breaks"),
    ("torch.cuda", "12", "breaks", "note"),
    ("torch.matmul_precision", "high", "breaks", "breaks"),
    ("torch.deterministic", True, "breaks", "breaks"),
    ("cpu_limit", 2.0, "note", "breaks"),
    ("variables.TRITON_DEBUG", "1", "breaks", "breaks"),
    ("variables.OMP_NUM_THREADS", "1", "note", "breaks"),
    ("variables.CUDA_VISIBLE_DEVICES", "1", "nothing", "nothing"),
    ("load_average", [9.0], "nothing", "nothing"),
    ("git.commit", "b", "nothing", "nothing"),
]


def record(device: str, env_id: str) -> Record:
    case = Case("throughput", "scan", "triton", Shape(B=1, T=1, C=1), device=device)
    return Record(case, Status.OK, None, env_id, {"latency_s": 1.0})


def changed(name: str, value: Any) -> dict[str, Any]:
    found = copy.deepcopy(ENVIRONMENT)
    *path, last = name.split(".")
    place = found
    for part in path:
        place = place[part]
    place[last] = value
    return found


def compared(device: str, other: Any, *, ids: str = "ab", **meta: Any) -> Differences:
    base = Run(Path("x"), {"environments": {"a": ENVIRONMENT}}, [])
    new = Run(Path("x"), {"environments": {ids[1]: other}, **meta}, [])
    return differences(base, new, record(device, ids[0]), record(device, ids[1]))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(("name", "value", "on_gpu", "on_cpu"), CHANGES)
def test_what_matters_depends_on_the_device(
    name: str, value: Any, on_gpu: str, on_cpu: str, device: str
) -> None:
    found = compared(device, changed(name, value))
    outcome = "breaks" if found.breaking else "note" if found.notes else "nothing"
    assert outcome == (on_gpu if device == "cuda" else on_cpu)
    for text in (*found.breaking, *found.notes):
        assert text.startswith(f"{name}: ") and str(value) in text


def test_another_way_to_measure_is_another_experiment() -> None:
    found = compared("cpu", ENVIRONMENT, ids="aa", measurement=2)
    assert found.breaking == ("measurement: 1 and 2",)
    assert compared("cpu", ENVIRONMENT, ids="aa") == Differences()


def test_of_another_device_only_the_name_is_told() -> None:
    other = copy.deepcopy(ENVIRONMENT)
    other["hardware"]["gpu"] = {"name": "H", "uuid": "2", "multiprocessors": 60}
    assert compared("cuda", other).breaking == ("hardware.gpu.name: G and H",)


def test_an_unknown_environment_is_another_one() -> None:
    assert compared("cpu", None).breaking == ("an environment is unknown",)
