"""The environment of a run as plain nested data: hardware, driver, versions, limits, git state.

The versions are read from package metadata, without importing torch. CUDA is started only for a CUDA device.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmperf.engine.machine.calibration import device_name, facts_for

if TYPE_CHECKING:
    from ssmperf.engine.registry.cost import Ceilings

PACKAGES = ("ssmperf", "torch", "triton", "numpy", "nvidia-ml-py")
PEERS = (  # other people's kernels, and their choices; told only where they are installed
    "accelerated-scan", "fla-core", "flash-qla", "flashinfer-python", "mamba-ssm", "mlstm_kernels",
    "nvidia-cudnn-frontend", "tilelang",
)  # fmt: skip
VARIABLES = (  # an allowlist: anything else in the environment may be a secret
    "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES",
    "FLA_DISABLE_BACKEND_DISPATCH", "FLA_FLASH_QLA", "FLA_TILELANG", "FLA_USE_TMA",
    "MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TRITON_CACHE_AUTOTUNING", "TRITON_DEBUG", "TRITON_DEFAULT_FP_FUSION", "TRITON_INTERPRET",
)  # fmt: skip
SHARED_PROCESS = "shared_process"  # the host of cases that had no worker's process
CGROUP = Path("/sys/fs/cgroup")
HASH_DIGITS = 12  # of a plug-in file's content
_GIT_TIMEOUT_S = 10.0


def capture(device: str, ceilings: Ceilings | None = None) -> dict[str, Any]:
    """Describe everything about this machine and process that a result depends on, as plain JSON.

    Args:
        device: `cpu`, `cuda` or `cuda:N`; only a CUDA device starts CUDA.
        ceilings: its measured ceilings (`ssmperf.engine.machine.ceilings`), None if they were not measured.
    """
    hardware = {"cpu": cpu(), "gpu": gpu(device)}
    return {
        "device": device,
        "hardware": hardware,
        "driver": driver(),
        "versions": versions(),
        "torch": torch_settings(),
        "git": git_state(Path(__file__).resolve().parent),
        "cpu_limit": cpu_limit(),
        "load_average": list(os.getloadavg()),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "ceilings": None if ceilings is None else ceilings.to_json(),
        **facts_for(device_name({"hardware": hardware})),
    }


def env_id(environment: Mapping[str, Any]) -> str:
    """Hash the facts on which comparable runs agree: hardware, driver, versions, threads, CPU limit.

    These are left out: load, git state, ceilings, calibration, the host's memory (virtual machines grow it),
    the UUID of the GPU, and the version of ssmperf, since comparing its versions is the purpose of a
    comparison.
    """
    text = json.dumps(_matters(environment), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def places(environments: Mapping[str, Any]) -> dict[str, str]:
    """Give the first environment, by id, with which each compares: it may lack peers that the other has."""
    found: dict[str, str] = {}
    for id_, environment in environments.items():
        alike = (
            first
            for first in dict.fromkeys(found.values())
            if all(_alike(environment, environments[each]) for each in found if found[each] == first)
        )
        found[id_] = next(alike, id_)
    return found


def _alike(one: Any, other: Any) -> bool:
    try:
        first, second = _matters(one), _matters(other)
        for peer in {*first["versions"]} ^ {*second["versions"]}:
            if peer not in PEERS:
                return False
            first["versions"].pop(peer, None)
            second["versions"].pop(peer, None)
    except (KeyError, TypeError, AttributeError):  # a file from elsewhere
        return False
    return first == second


def _matters(environment: Mapping[str, Any]) -> dict[str, Any]:
    hardware = environment["hardware"]
    matters = {
        "device": str(environment["device"]).partition(":")[0],
        "cpu": _without(hardware["cpu"], "memory_bytes"),
        "gpu": _without(hardware["gpu"], "uuid"),
        "driver": environment["driver"],
        "versions": _without(environment["versions"], "ssmperf"),
        "torch": environment["torch"],
        "cpu_limit": environment["cpu_limit"],
        "variables": _without(environment["variables"], "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    }
    if SHARED_PROCESS in environment:
        matters[SHARED_PROCESS] = environment[SHARED_PROCESS]
    return matters


def versions() -> dict[str, str | None]:
    """List the versions of Python, the system and the packages that matter; None if not installed.

    Peers that are not installed are not listed.
    """
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "os": _os_name(),
        "kernel": platform.release(),
    }
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    for package in PEERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def cpu() -> dict[str, Any]:
    """Describe the CPU: its model, the cores that this process may use, and the host's memory."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or None,
    )
    kib = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal:")), None)
    return {
        "model": model,
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": None if kib is None else int(kib) * 1024,
    }


def gpu(device: str) -> dict[str, Any] | None:
    """Describe a GPU as CUDA reports it; None for a device that is no GPU."""
    if not device.startswith("cuda"):
        return None
    import torch

    properties = torch.cuda.get_device_properties(torch.device(device))
    return {
        "name": properties.name,
        "uuid": str(properties.uuid),
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "capability": f"{properties.major}.{properties.minor}",
        "sm_clock_hz": _khz(getattr(properties, "clock_rate", None)),
        "memory_clock_hz": _khz(getattr(properties, "memory_clock_rate", None)),
    }


def driver() -> str | None:
    """Get the version of the NVIDIA kernel driver, or None without one. Starts no CUDA."""
    for line in _lines("/proc/driver/nvidia/version"):
        words = [word for word in line.split() if word[0].isdigit() and "." in word]
        if words:
            return words[0]
    return None


def torch_settings() -> dict[str, Any]:
    """Describe torch: threads, the CUDA version that it was built for, matmul precision, determinism."""
    import torch

    return {
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def git_state(folder: Path) -> dict[str, Any]:
    """Get the commit of a package's checkout and whether it was changed, or the reason why there is none.

    A package that the repository does not track, as in a virtual environment inside some checkout, counts as
    not being in a checkout.
    """
    try:
        tracked = _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        if tracked is None:
            return {"commit": None, "dirty": None, "reason": "not run from a git checkout"}
        return {
            "commit": _git(folder, "rev-parse", "HEAD"),
            "dirty": bool(_git(folder, "status", "--porcelain")),
            "reason": None,
        }
    except FileNotFoundError:
        return {"commit": None, "dirty": None, "reason": "git is not installed"}
    except (OSError, subprocess.SubprocessError) as error:
        return {"commit": None, "dirty": None, "reason": f"git: {error}"}


def plugin_state(file: Path) -> dict[str, Any]:
    """Describe a plug-in file: its content's hash, the commit of its checkout, whether that was changed.

    Only changes of tracked files count, since a run's own folder is often an untracked one of that checkout.
    A file that its repository does not track, or that lies in none, has no commit.
    """
    state = {
        "file": file.name,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest()[:HASH_DIGITS],
        "commit": None,
        "dirty": None,
    }
    try:
        path = _git(file.parent, "ls-files", "--error-unmatch", "--full-name", "--", file.name)
        if not path:
            return state
        commit = _git(file.parent, "rev-parse", "--verify", "HEAD")
        changes = _git(file.parent, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):  # without git, the hash alone tells versions apart
        return state
    return {**state, "file": path, "commit": commit, "dirty": None if changes is None else bool(changes)}


def cpu_limit(cgroup: Path = CGROUP) -> float | None:
    """Get the number of cores that the container grants (cgroup v2, then v1), or None without a limit."""
    quota = _lines(cgroup / "cpu.max")
    if quota:
        allowed, period = quota[0].split()
        return None if allowed == "max" else int(allowed) / int(period)
    allowed_v1, period_v1 = (_lines(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if not allowed_v1 or not period_v1 or int(allowed_v1[0]) <= 0:
        return None
    return int(allowed_v1[0]) / int(period_v1[0])


@functools.cache
def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _git(folder: Path, *arguments: str) -> str | None:
    """Run a git command and return its output, or None if it fails."""
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_GIT_TIMEOUT_S
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _khz(rate: int | None) -> float | None:
    return None if rate is None else rate * 1e3


def _without(data: Mapping[str, Any] | None, *names: str) -> dict[str, Any] | None:
    return None if data is None else {name: value for name, value in data.items() if name not in names}
