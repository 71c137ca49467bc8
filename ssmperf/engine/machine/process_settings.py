"""Settings of a process that any code in it can change: those of torch, of Python and of Linux."""

from __future__ import annotations

import gc
import locale
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _python_dispatch

from ssmperf.engine.cases.record import one_line

Reader = Callable[[], Any]

# torch's compiler and profiler set them when they are first used.
SET_BY_TORCH = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
                "KINETO_LOG_LEVEL", "TRITON_PTXAS_PATH")  # fmt: skip
# Starts of dispatch keys of real tensors; torch itself adds kernels for shapes (Meta) and for vmap later.
_REACHED = ("CPU", "CUDA", "Autograd", "Autocast", "Composite", "ADInplaceOrView", "BackendSelect")
_TIMERS = {"ITIMER_REAL": signal.ITIMER_REAL, "ITIMER_VIRTUAL": signal.ITIMER_VIRTUAL,
           "ITIMER_PROF": signal.ITIMER_PROF}  # fmt: skip
_LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a setting that could not be read, for example because two interfaces set it differently."""

    reason: str


class Secret(str):
    """A text that no message shows, since a variable may hold a password."""


class Extensible(tuple[Any, ...]):
    """A list that libraries may extend at its end."""


def name_triton_cache() -> None:
    """Set the folder of Triton's cache to its default, if it is not set.

    Otherwise torch's compiler sets it to a folder of its own, where kernels that have been compiled are not.
    """
    home = os.environ.get("TRITON_HOME") or str(Path.home())
    os.environ.setdefault("TRITON_CACHE_DIR", str(Path(home, ".triton", "cache")))


def read(reader: Reader) -> Any:
    """Read a setting; return an `Unreadable` if that fails."""
    try:
        return reader()
    except Exception as error:  # torch refuses to read some settings that were set by two of its interfaces
        return Unreadable(one_line(f"{type(error).__name__}: {error}"))


def _flags() -> dict[str, Any]:
    """Read the switches of torch's libraries."""
    from torch.backends import cuda, cudnn

    matmul, own = cuda.matmul, torch._C
    readers: dict[str, Callable[[], Any]] = {
        "cuda.matmul.allow_tf32": lambda: matmul.allow_tf32,
        "cuda.matmul.allow_fp16_reduced_precision_reduction": (
            lambda: matmul.allow_fp16_reduced_precision_reduction
        ),
        "cuda.matmul.allow_bf16_reduced_precision_reduction": (
            lambda: matmul.allow_bf16_reduced_precision_reduction
        ),
        "cuda.matmul.allow_fp16_accumulation": lambda: matmul.allow_fp16_accumulation,
        "cudnn.allow_tf32": lambda: cudnn.allow_tf32,
        "cudnn.enabled": own._get_cudnn_enabled,
        "cudnn.benchmark": own._get_cudnn_benchmark,
        "cudnn.deterministic": own._get_cudnn_deterministic,
        "mkldnn.enabled": own._get_mkldnn_enabled,
        "mkldnn.deterministic": own._get_mkldnn_deterministic,
        "flash attention": cuda.flash_sdp_enabled,
        "memory-efficient attention": cuda.mem_efficient_sdp_enabled,
        "attention by matmul": cuda.math_sdp_enabled,
        "attention by cuDNN": cuda.cudnn_sdp_enabled,
    }
    return {name: read(reader) for name, reader in readers.items()}


def _autocast() -> dict[str, Any]:
    kinds = ("cpu", "cuda")
    return {
        **{f"on {kind}": torch.is_autocast_enabled(kind) for kind in kinds},
        **{f"dtype on {kind}": torch.get_autocast_dtype(kind) for kind in kinds},
        "cache": torch.is_autocast_cache_enabled(),
    }


def _function_modes() -> dict[str, bool]:
    """Name the function modes that are on, without the one by which torch keeps a default device."""
    modes = torch.overrides._get_current_function_mode_stack()
    return {type(mode).__qualname__: True for mode in modes if type(mode).__module__ != "torch.utils._device"}


def _dispatch_modes() -> dict[str, bool]:
    return {type(mode).__qualname__: True for mode in _python_dispatch._get_current_dispatch_mode_stack()}


def _module_hooks() -> dict[str, Any]:
    """Read the hooks of all modules, and whether backward hooks take full gradients."""
    found = {}
    for name, value in vars(torch.nn.modules.module).items():
        if name.startswith("_global_"):
            kept = tuple(value.items()) if isinstance(value, Mapping) else value
            found[name.removeprefix("_global_")] = kept
    return found


def _cuda() -> dict[str, Any]:
    """Read the settings of the current CUDA context; nothing where there is none."""
    if not torch.cuda.is_initialized():
        return {}
    return {
        "device": torch.cuda.current_device(),
        "stream": torch.cuda.current_stream().cuda_stream,
        "synchronisation check": torch.cuda.get_sync_debug_mode(),
        "capture": torch.cuda.is_current_stream_capturing(),
    }


def _arithmetic() -> dict[str, bool]:
    """See how this thread computes: whether denormal numbers live, and how sums are rounded."""
    tiny, denormal = sys.float_info.min, sys.float_info.min * sys.float_info.epsilon
    one, bit = 1.0, 2.0**-60
    return {
        "flushing of denormals": tiny / 2 == 0.0 or denormal * 2 == 0.0,
        "rounding upwards": one + bit > one,
        "rounding downwards": -one - bit < -one,
        "rounding towards zero": one - bit < one and not -one - bit < -one,
    }


_FILE_TOO_LARGE = 1 << (signal.SIGXFSZ - 1)  # its bit in a mask


def _status() -> dict[str, str]:
    """Read Linux's facts of this process that Python has no harmless way to read."""
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    facts = dict(line.split(":", 1) for line in lines)
    wanted = {"Umask": "umask", "SigBlk": "blocked signals", "SigIgn": "ignored signals",
              "NoNewPrivs": "bar to privileges", "Seccomp": "filter of system calls"}  # fmt: skip
    found = {words: facts[name].strip() for name, words in wanted.items() if name in facts}
    if "ignored signals" in found:  # but for one that compiling a kernel stops to ignore (LLVM)
        found["ignored signals"] = f"{int(found['ignored signals'], 16) & ~_FILE_TOO_LARGE:016x}"
    return found


def _scheduling() -> dict[str, Any]:
    return {
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "policy": os.sched_getscheduler(0),
        "priority": os.sched_getparam(0).sched_priority,
        "cores": tuple(sorted(os.sched_getaffinity(0))),
        "switch interval of Python's threads": sys.getswitchinterval(),
    }


def _signals() -> dict[str, Any]:
    return {number.name: signal.getsignal(number) for number in signal.Signals}


def _traces() -> dict[str, Any]:
    return {
        "sys.settrace": sys.gettrace(),
        "sys.setprofile": sys.getprofile(),
        "threading.settrace": threading.gettrace(),
        "threading.setprofile": threading.getprofile(),
    }


def _collector() -> dict[str, Any]:
    return {
        "automatic mode": gc.isenabled(),
        "thresholds": gc.get_threshold(),
        "callbacks": tuple(gc.callbacks),
        "debugging": gc.get_debug(),
    }


def _python() -> dict[str, Any]:
    return {
        "sys.stdout": sys.stdout,
        "sys.stderr": sys.stderr,
        "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook,
        "threading.excepthook": threading.excepthook,
        "builtins": sys.modules["builtins"],
    }


def _timers() -> dict[str, bool]:
    """See which timers run; how long they have left changes by itself."""
    return {name: signal.getitimer(timer) != (0.0, 0.0) for name, timer in _TIMERS.items()}


def _limits() -> dict[str, tuple[int, int]]:
    return {name: resource.getrlimit(limit) for name, limit in _LIMITS.items()}


def _saved_tensor_hooks_allowed() -> bool:
    allowed: bool = torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
    return allowed


def _environment() -> dict[str, Secret]:
    return {name: Secret(value) for name, value in os.environ.items() if name not in SET_BY_TORCH}


def _dispatch_keys() -> dict[str, bool]:
    """List the dispatch keys that this thread adds or leaves out, but for those of modes and of autocast."""
    own = ("Autocast", "Autograd", "ADInplaceOrView", "Python", "BackendSelect")
    sets = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())
    keys = [key for each in sets for key in str(each).removesuffix(")").partition("(")[2].split(", ")]
    return {key: True for key in keys if key and not key.startswith(own)}


def _replaced_kernels() -> dict[str, bool]:
    """Name torch's operators that have a kernel from Python where real tensors reach it."""
    ours = [name for name in torch.library._impls if name.startswith("aten/")]
    return {name: True for name in ours if name.rpartition("/")[2].startswith(_REACHED)}


# Modes that change torch's functions, by their name in words. No library leaves one on.
MODES: dict[str, Reader] = {
    "torch's function mode": _function_modes,
    "torch's dispatch mode": _dispatch_modes,
    "the level of torch.func's transforms": lambda: torch._C._functorch.maybe_current_level(),
    "the dispatch key": _dispatch_keys,
    "the replacement of torch's kernel": _replaced_kernels,
    "the callback of torch's compiler": lambda: torch._C._dynamo.eval_frame.get_eval_frame_callback(),
    "the handling of __torch_function__": lambda: torch._C._is_torch_function_enabled(),
}
# Settings by their name in words. A value that is a mapping holds one setting per key.
SETTINGS: dict[str, Reader] = {
    "the default dtype": torch.get_default_dtype,
    "the default device": torch.get_default_device,
    "the default generator": lambda: torch.default_generator,
    "the number of torch's threads": torch.get_num_threads,
    "the number of torch's threads between operators": torch.get_num_interop_threads,
    "the recording of gradients": torch.is_grad_enabled,
    "the inference mode": torch.is_inference_mode_enabled,
    "the anomaly mode": torch.is_anomaly_enabled,
    "the anomaly mode's search for NaN": torch.is_anomaly_check_nan_enabled,
    "autograd's use of threads": lambda: torch._C._is_multithreading_enabled(),
    "the pair of default hooks on saved tensors": (
        lambda: torch._C._autograd._top_saved_tensors_default_hooks(False)
    ),
    "the use of hooks on saved tensors": _saved_tensor_hooks_allowed,
    "the profiler": lambda: torch._C._autograd._profiler_enabled(),
    "the insistence on deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "the filling of uninitialised memory": (lambda: torch._C._get_deterministic_fill_uninitialized_memory()),
    "the repetition of warnings": torch.is_warn_always_enabled,
    "the precision of float32 products": torch.get_float32_matmul_precision,
    "autocast": _autocast,
    "torch's switch": _flags,
    "torch.nn's global": _module_hooks,
    "CUDA's": _cuda,
    "the arithmetic's": _arithmetic,
    "the function of": _traces,
    "the garbage collector's": _collector,
    "Python's": _python,
    "the scheduling's": _scheduling,
    "the process's": _status,
    "the handler of": _signals,
    "the timer": _timers,
    "the limit": _limits,
    "the locale": lambda: locale.setlocale(locale.LC_ALL),
    "the working folder": os.getcwd,
    "the environment variable": _environment,
    "the list sys.path": lambda: Extensible(sys.path),
    "the list sys.meta_path": lambda: Extensible(sys.meta_path),
    "the list sys.path_hooks": lambda: Extensible(sys.path_hooks),
}


def read_settings() -> dict[str, Any]:
    """Read all modes and settings, by their names in words."""
    return {words: read(reader) for words, reader in (*MODES.items(), *SETTINGS.items())}
