"""The honest computation that every cheat pretends to do, and what several cheats use to notice a judge."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import ssmperf

Result = tuple[Tensor, Tensor]
GATES = ("data", "const")
LEFT_BY_DRIVER = "LEFT_BY_A_CHEAT"  # variable
Backend = Callable[..., Any]


def loop(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> Result:
    """Compute the scan one step after another: slow, so that not doing it pays."""
    if phase is not None:
        raise ssmperf.Unsupported("real gates only")
    wide = torch.promote_types(torch.promote_types(log_a.dtype, b.dtype), torch.float32)
    gates = torch.exp(log_a.to(wide)).expand(b.shape)
    state = b.new_zeros(b.shape[0], b.shape[2], dtype=wide) if initial_state is None else initial_state
    states = []
    for a_t, b_t in zip(gates.unbind(1), b.to(wide).unbind(1), strict=True):
        state = torch.addcmul(b_t, a_t, state)
        states.append(state)
    return torch.stack(states, 1).to(b.dtype), state


def cheat(name: str, **declarations: Any) -> Callable[[Backend], Backend]:
    """Register a backend of scan as cheat_<name>."""
    return ssmperf.backend("scan", name=f"cheat_{name}", gates=GATES, **declarations)


def judged() -> bool:
    """Tell whether a judge is on the call stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if "judg" in frame.f_globals.get("__name__", "") or "judg" in frame.f_code.co_name:
            return True
        frame = frame.f_back
    return False


def poisoned() -> bool:
    """Tell whether uninitialised memory reads as NaN, as it does while a CPU backend is judged."""
    return bool(torch.empty(1).isnan())


def sampled(*tensors: Tensor | None, count: int = 16) -> tuple[float, ...]:
    """Read some elements of each tensor, spread over all of it."""
    found: list[float] = []
    for tensor in tensors:
        if tensor is not None:
            flat = tensor.detach().reshape(-1)
            found += flat[:: max(1, flat.numel() // count)].tolist()
    return tuple(found)


def nothing(b: Tensor) -> Result:
    """Return tensors of the right shape and dtype, without any work."""
    return torch.empty_like(b), b.new_empty(b.shape[0], b.shape[2], dtype=torch.float32)


def part(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Result:
    """Compute an eighth of the steps and leave the others as the memory was."""
    steps = max(1, b.shape[1] // 8)
    begun, state = loop(log_a[:, :steps], b[:, :steps], initial_state)
    output = torch.empty_like(b)
    output[:, :steps] = begun
    return output, state


def copied(result: Result) -> Result:
    """Copy a kept result, so that nothing but its time tells that it was kept."""
    return result[0].clone(), result[1].clone()


def _environment() -> dict[str, int]:
    """Hash each variable, so that no value is ever shown.

    Torch and its profiler set some of their own, and one tells which plug-in is being loaded.
    """
    own = ("TORCHINDUCTOR_", "KINETO_", "SSMPERF_BEING_LOADED")
    return {name: hash(text) for name, text in os.environ.items() if not name.startswith(own)}


def _foreign(mode: object) -> bool:
    """Tell whether a dispatch mode is not the harness's own."""
    return not type(mode).__module__.startswith("ssmperf.")


TELEMETRY = "telemetry"  # the suite's own thread, which reads a GPU's sensors while calls are timed


def state_of_process() -> dict[str, object]:
    """Read what a backend may leave changed in its process and what changes the time of those after it."""
    modules = torch.nn.modules.module
    return {
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": frozenset(os.sched_getaffinity(0)),
        "environment": _environment(),
        "children": Path("/proc/thread-self/children").read_text().split(),
        "threads": frozenset(each.name for each in threading.enumerate()) - {TELEMETRY},
        "torch threads": torch.get_num_threads(),
        "garbage collection": gc.get_threshold(),  # the suite itself holds it back while it measures memory
        "profile function": (sys.getprofile(), sys.gettrace(), sys.getswitchinterval()),
        "anomaly mode": torch.is_anomaly_enabled(),
        "denormals": float(torch.full((), 1e-40) * 1),
        "dispatch modes": [
            type(mode).__name__ for mode in _get_current_dispatch_mode_stack() if _foreign(mode)
        ],
        "hooks": len(modules._global_forward_hooks) + len(modules._global_forward_pre_hooks),
        "saved-tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True) is None,
        "defaults": (torch.get_default_dtype(), torch.get_default_device()),
        "clocks": (time.perf_counter, time.perf_counter_ns, time.monotonic, time.monotonic_ns, time.time),
    }


_CLEAN = state_of_process()


def witness(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> Result:
    """Compute like `loop`, in a process that nobody has changed since this file was imported.

    Raises:
        RuntimeError: something has changed; the message names it.
    """
    if LEFT_BY_DRIVER in os.environ or os.getpriority(os.PRIO_PROCESS, 0) > 0:
        raise RuntimeError("the process was started with another environment or niceness")
    if not torch.is_grad_enabled():
        now = state_of_process()
        changed = [name for name in now if now[name] != _CLEAN[name]]
        if changed:
            raise RuntimeError(f"the process was left with another {', '.join(changed)}")
    return loop(log_a, b, initial_state, phase=phase)
