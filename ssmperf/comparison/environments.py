"""Differences between the environments of two records: those that make times incomparable, and the rest.

Another GPU, driver or torch is another experiment. Another kernel of the operating system, or another core
count where a GPU does the work, is worth a note. The device of the case decides which of them count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ssmperf.engine.cases.record import Record
from ssmperf.engine.machine.environment import SHARED_PROCESS
from ssmperf.engine.runs.store import Run

ANYWHERE = (
    "versions.torch",
    "versions.python",  # its minor version; a patch is worth a note
    "torch.matmul_precision",
    "torch.deterministic",
    "variables",
)
ON_GPU = ("hardware.gpu", "driver", "versions.triton", "torch.cuda")
ON_CPU = (
    "hardware.cpu.model",
    "hardware.cpu.architecture",
    "hardware.cpu.cores",
    "cpu_limit",
    "torch.threads",
)
THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# A GPU's UUID tells copies of a device apart, virtual machines grow their memory, comparing versions of
# ssmperf is the purpose of a comparison, and the index of a device says nothing about it.
IGNORED = (
    "hardware.gpu.uuid",
    "hardware.cpu.memory_bytes",
    "versions.ssmperf",
    "variables.CUDA_DEVICE_ORDER",
    "variables.CUDA_VISIBLE_DEVICES",
)
NAMES = (
    "hardware.gpu.name",
    "hardware.cpu.model",
)  # where they differ, the rest of the device says nothing more
PARTS = ("hardware", "driver", "versions", "torch", "cpu_limit", "variables", SHARED_PROCESS)


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences between the environments of two records, as text such as "driver: 570.1 and 580.2".

    breaking: differences that make times incomparable. notes: the others.
    """

    breaking: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def differences(base: Run, new: Run, old: Record, now: Record) -> Differences:
    """Compare the environments of two records of the same case, and how their runs measured."""
    versions = [run.meta.get("measurement", 1) for run in (base, new)]
    breaking = [] if versions[0] == versions[1] else [_text("measurement", *versions)]
    layers = [record.numbers.get("layers") for record in (old, now)]  # networks of several sizes have one id
    if layers[0] != layers[1]:
        breaking.append(_text("layers", *layers))
    notes: list[str] = []
    if old.env_id == now.env_id:
        return Differences(tuple(breaking))
    before, after = (run.environments.get(each.env_id or "") for run, each in ((base, old), (new, now)))
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return Differences((*breaking, "an environment is unknown"))
    one, other = _facts(before), _facts(after)
    changed = [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
    for name in changed:
        if any(each in changed and each != name and _same_part(each, name) for each in NAMES):
            continue
        values = one.get(name), other.get(name)
        matters = _matters(name, *values, on_gpu=now.case.device != "cpu")
        (breaking if matters else notes).append(_text(name, *values))
    return Differences(tuple(breaking), tuple(notes))


def _same_part(name: str, other: str) -> bool:
    return name.rpartition(".")[0] == other.rpartition(".")[0]


def _matters(name: str, before: Any, after: Any, *, on_gpu: bool) -> bool:
    """Tell whether times at different values of a fact are times of different experiments."""
    if name.partition(".")[2] in THREADS:
        return not on_gpu
    if name == "versions.python":
        return _minor(before) != _minor(after)
    named = (*ANYWHERE, *(ON_GPU if on_gpu else ON_CPU))
    return any(name == each or name.startswith(f"{each}.") for each in named)


def _minor(version: Any) -> list[str]:
    return str(version).split(".")[:2]


def _facts(environment: Mapping[str, Any]) -> dict[str, Any]:
    """List hardware, driver, versions and settings of an environment, by dotted name."""
    facts: dict[str, Any] = {}

    def collect(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, item in value.items():
                collect(f"{prefix}.{name}", item)
        else:
            facts[prefix] = value

    for part in PARTS:
        collect(part, environment.get(part))
    return {name: value for name, value in facts.items() if name not in IGNORED}


def _text(name: str, before: Any, after: Any) -> str:
    return f"{name}: {_shown(before)} and {_shown(after)}"


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
