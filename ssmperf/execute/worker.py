"""A worker: a fresh process that runs one case after another and answers over a pipe.

Started as `python -m ssmperf.execute.worker` with its settings as JSON in argv[1]. Requests and
answers are JSON, one object a line, on two inherited descriptors (`requests`, `answers`). stdout and
stderr are the log.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import resource
import signal
import sys
from typing import IO, Any

from ssmperf import registry
from ssmperf.case import Case
from ssmperf.errors import Unsupported
from ssmperf.record import Record, Status

PR_SET_PDEATHSIG = 1
LONGEST_REASON = 500
OUT_OF_MEMORY_WORDS = ("can't allocate memory", "out of memory", "bad_alloc", "failed to allocate")


def main() -> None:
    """Answer requests until the pipe closes."""
    faulthandler.enable()
    config = json.loads(sys.argv[1])
    _die_with_parent(config["parent_pid"])
    requests, answers = os.fdopen(config["requests"], "r"), os.fdopen(config["answers"], "w")
    context, environment = _prepare(config)
    _answer(answers, {"ready": True, "env_id": context.env_id, "environment": environment})
    _limit_memory(config)
    for line in requests:
        case = Case.from_json(json.loads(line))
        record = run_case(case, context)
        healthy = _healthy(config["device"], record) and not context.broken
        _answer(answers, {"record": record.to_json(), "healthy": healthy})


def run_case(case: Case, context: Any) -> Record:
    """One case in this process; whatever its backend raises becomes the record's status."""
    try:
        record = registry.suite(case.suite).measure(case, context)
        assert isinstance(record, Record)
        return record
    except Unsupported as error:
        return _failed(case, context, Status.UNSUPPORTED, str(error))
    except BaseException as error:
        if is_out_of_memory(error):
            return _failed(case, context, Status.OOM, f"{type(error).__name__}: {_two_sentences(error)}")
        return _failed(case, context, Status.CRASH, f"{type(error).__name__}: {error}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out; torch on the CPU says it in a RuntimeError."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in OUT_OF_MEMORY_WORDS)


def _two_sentences(error: BaseException) -> str:
    """What ran out and how much was asked for, without the allocator's state and its advice."""
    return ". ".join(str(error).split(". ")[:2])


def _failed(case: Case, context: Any, status: Status, reason: str) -> Record:
    text = " ".join(reason.split()) or "no message"
    return Record(case, status, text[:LONGEST_REASON], context.env_id, {"command": context.command(case)})


def _prepare(config: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    import torch

    from ssmperf.environment import capture, env_id
    from ssmperf.execute.context import Context, Settings
    from ssmperf.roofline import Ceilings, measure_ceilings

    if config["device"].startswith("cuda"):
        torch.cuda.set_device(config["device"])
        torch.cuda.set_stream(torch.cuda.Stream())  # the default stream cannot be captured
    elif config["threads"]:
        torch.set_num_threads(config["threads"])
    for plugin in config["plugins"]:
        registry.load_plugin(plugin)
    registry.models()
    known = config["ceilings"]
    ceilings = Ceilings.from_json(known) if known else measure_ceilings(config["device"])
    environment = {**capture(config["device"]), "ceilings": ceilings.to_json()}
    settings = Settings(config["min_time_s"], config["max_time_s"])
    context = Context(config["device"], env_id(environment), settings, ceilings, tuple(config["plugins"]))
    return context, environment


def _healthy(device: str, record: Record) -> bool:
    """Whether this process can be trusted with another case."""
    if record.status not in (Status.CRASH, Status.OOM):
        return True
    if not device.startswith("cuda"):
        return record.status is Status.CRASH
    import torch

    try:
        torch.cuda.empty_cache()
        torch.cuda.synchronize(device)
        return bool((torch.ones(8, device=device) + 1).sum().item() == 16)
    except Exception:
        return False


def _limit_memory(config: dict[str, Any]) -> None:
    """Bound the address space on the CPU; CUDA reserves far more than it uses, so not there."""
    limit = config["memory_limit_bytes"]
    if limit is None or config["device"].startswith("cuda"):
        return
    with open("/proc/self/statm") as file:  # noqa: PTH123
        pages = int(file.read().split()[0])
    bound = pages * resource.getpagesize() + limit
    resource.setrlimit(resource.RLIMIT_AS, (bound, resource.RLIM_INFINITY))


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, and leave if it already has."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent process is gone")


def _answer(answers: IO[str], message: dict[str, Any]) -> None:
    answers.write(json.dumps(message, allow_nan=False) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
