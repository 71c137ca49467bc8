"""A worker: a fresh process that runs one case after another and answers over a pipe.

A nursery forks it and calls `main` with a `WorkerConfig` and three inherited descriptors (`requests`,
`answers`, `judge`; also `partner` if there is one to take turns with). Requests and answers are JSON, one
object per line. The first answer is `{"ready"}`. A request is `{"case",
"number", "pair"}`, where `pair` is `Partner.pair`; its answer is `{"record", "healthy", "forked"}`. Before
it, any number of `{"phase"}` messages may come: "oracle" when the reference is being made, "timing" while
calls are being timed, "waiting" during the partner's turns, "windows" when the driver may ask for
[calls, writes], one line each and null at the end, "backend" when other time counts against the
backend again; the latter has a `{"progress"}` text during a search or a training. All messages about a
request have its number. stdout and stderr go to the log.

On a CPU, a case that needs a fresh process runs in a fork of this process, which has imported everything and
run nothing. CUDA does not survive a fork, so on a GPU the driver starts another worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ssmperf.engine import registry
from ssmperf.engine.cases.calls.call import complex_refusal
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.failure import REFUSED_VALUES, TRACEBACK, failure_of, message_of
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.processes.heap import give_back, keep_freed_memory
from ssmperf.engine.tune import tables
from ssmperf.errors import BrokenContract, SsmperfError, Unsupported, UnsupportedValues

if TYPE_CHECKING:
    from ssmperf.engine.execute.process_state import Snapshot

PR_SET_PDEATHSIG = 1
ANSWERED = 83  # exit status of a fork that has answered; not 0, since a backend may exit with 0
OUT_OF_MEMORY_WORDS = (
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
    "failed to allocate",
    "alloc_failed",  # a status of cuBLAS and cuFFT
)


def main(config: dict[str, Any]) -> None:
    """Answer requests until the pipe closes."""
    faulthandler.enable()
    requests = os.fdopen(config["requests"], "r")
    answers = _Answers(config["answers"], requests)
    context = _prepare(config, answers)
    _limit_memory(config)
    from ssmperf.engine.execute.process_state import Snapshot  # imports torch

    initial = Snapshot.take()
    for plugin in config["plugins"]:
        registry.load_plugin(plugin)
    tables.force(tables.from_json(config["rows"], strict=False))
    gc.collect()
    gc.freeze()  # so that collections see the cases' objects alone: a millisecond, for a tenth of a second
    answers.send({"ready": True})
    for count, line in enumerate(requests):
        request = json.loads(line)
        case, answers.number = Case.from_json(request["case"]), request["number"]
        context.judge.begin(request["number"])
        if context.partner is not None:
            context.partner.join(request["pair"])
            if request["pair"] is not None:
                keep_freed_memory()
        if case.device == "cpu" and "cpu" in registry.suite(case.suite).fresh_process:
            run_case_in_fork(case, context, answers, initial)
            continue
        watched = count % config["watch_every"] == 0
        record, differences = watched_case(case, context, initial if watched else None)
        if config["shared"]:
            give_back(config["device"])
        healthy = _healthy(config, record) and not context.broken and not differences
        answers.send({"record": record.to_json(), "healthy": healthy, "forked": False})


def run_case(case: Case, context: Any, *, passed_on: tuple[type[BaseException], ...] = ()) -> Record:
    """Run one case in this process; an exception from its backend becomes the record's status.

    Most kernels take real operands alone, so an exception over complex ones is a refusal.

    The exception's traceback goes to the log and into the record.

    passed_on: kinds of exceptions that are meant for the caller, such as KeyboardInterrupt in a process of
        the user's.
    """
    try:
        record = registry.suite(case.suite).measure(case, context)
        assert isinstance(record, Record)
        asked = getattr(context.judge, "asked", None)
        return record if asked is None else replace(record, numbers={**record.numbers, "judgements": asked})
    except passed_on:
        raise
    except BaseException as error:
        status, reason, notes = ended_by(error)
        if status is Status.CRASH and (refusal := complex_refusal(case.call, reason)):
            status, reason = Status.UNSUPPORTED, refusal
        if status in (Status.OOM, Status.CRASH):
            _log(case, reason, notes.get(TRACEBACK, ""))
        return _failed(case, context, status, reason, **notes)


def ended_by(error: BaseException) -> tuple[Status, str, dict[str, Any]]:
    """Give the status, reason and notes of a case that ended with an exception."""
    if isinstance(error, Unsupported):
        noted = {REFUSED_VALUES: True} if isinstance(error, UnsupportedValues) else {}
        return Status.UNSUPPORTED, message_of(error) or "the backend gave no reason", noted
    if isinstance(error, BrokenContract):
        return Status.WRONG, message_of(error), {}
    status, message = Status.CRASH, None
    if is_out_of_memory(error):
        # keep which memory ran out and how much was requested; drop the allocator's state and advice
        status, message = Status.OOM, ". ".join(message_of(error).split(". ")[:2])
    failure = failure_of(error, message=message)
    return status, failure.reason, {TRACEBACK: failure.traceback} if failure.traceback else {}


def watched_case(case: Case, context: Any, initial: Snapshot | None) -> tuple[Record, list[str]]:
    """Run a case and say what a foreign backend has replaced in this process since a snapshot."""
    from ssmperf.engine.execute.process_state import Snapshot
    from ssmperf.engine.trial.client import RemoteJudge

    record = run_case(case, context)
    if initial is None or not context.is_guest(case):
        return record, []
    differences = initial.difference(Snapshot.take())
    if type(context.judge) is not RemoteJudge:
        differences.append("the judge's client was replaced")
    return blame(record, differences), differences


def run_case_in_fork(case: Case, context: Any, answers: _Answers, initial: Snapshot) -> None:
    """Run one case in a forked child. If the child dies without answering, die the same way."""
    with contextlib.suppress(SsmperfError, ImportError):  # the case itself will report it
        registry.backend(case.owner, case.backend)  # import it here, once for all forks
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _die_with_parent(parent)
        answers.adopt()
        _forget_threads()
        record, _ = watched_case(case, context, initial)
        answers.send({"record": record.to_json(), "healthy": True, "forked": True})
        sys.stdout.flush()
        os._exit(ANSWERED)
    _, ending = os.waitpid(child, 0)
    if os.WIFSIGNALED(ending):
        signal.signal(os.WTERMSIG(ending), signal.SIG_DFL)
        os.kill(parent, os.WTERMSIG(ending))
    if os.WEXITSTATUS(ending) != ANSWERED:
        os._exit(os.WEXITSTATUS(ending))


def _forget_threads() -> None:
    """Make torch use one thread: others do not survive a fork, but torch would wait for them."""
    import torch

    torch.set_num_threads(1)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception means that memory ran out; torch on the CPU raises a RuntimeError."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = message_of(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in OUT_OF_MEMORY_WORDS)


def blame(record: Record, differences: Sequence[str]) -> Record:
    """Make a case `wrong` whose backend left modes or replaced functions behind; log every difference."""
    for difference in differences:
        print(f"{record.case}: {difference}", file=sys.__stderr__, flush=True)
    if not differences or record.status is not Status.OK:
        return record
    reason = f"it leaves the process changed: {'; '.join(differences[:3])}"
    command = {"command": record.numbers.get("command")}
    return Record(record.case, Status.WRONG, reason, record.env_id, command)


def _log(case: Case, reason: str, traceback: str) -> None:
    """Write a failure to the log, wherever the backend has redirected this process's own stderr."""
    with contextlib.suppress(OSError, ValueError):  # a backend may have closed it
        print(f"{case}: {reason}\n{traceback}", file=sys.__stderr__, flush=True)


def _failed(case: Case, context: Any, status: Status, reason: str, **numbers: Any) -> Record:
    return Record(case, status, reason, context.env_id, {"command": context.command(case), **numbers})


def _prepare(config: dict[str, Any], answers: _Answers) -> Any:
    import torch

    from ssmperf.engine.execute.context import Context, Settings
    from ssmperf.engine.plan.run_options import RunOptions
    from ssmperf.engine.processes.partner import Partner
    from ssmperf.engine.registry.cost import Ceilings
    from ssmperf.engine.registry.presets import Preset
    from ssmperf.engine.trial.client import RemoteJudge

    if config["device"].startswith("cuda"):
        torch.cuda.set_device(config["device"])
        torch.cuda.set_stream(torch.cuda.Stream())  # the default stream cannot be captured
    elif config["threads"]:
        torch.set_num_threads(config["threads"])
    warm_up(config["device"])
    registry.models()
    options, scale = RunOptions.from_json(config["options"]), Preset.from_json(config["scale"])
    return Context(
        config["device"],
        config["env_id"],
        Settings.of(scale, autotune=config["autotune"]),
        Ceilings.from_json(config["ceilings"]),
        on_phase=lambda phase: answers.send({"phase": phase}),
        on_progress=lambda text: answers.send({"phase": "backend", "progress": text}),
        on_windows=partial(answers.make_windows, config["device"]),
        options=options,
        words=tuple(config["words"]),
        nonce=options.nonce or 0,
        judge=RemoteJudge(config["judge"], config["device"]),
        training=scale.training,
        partner=Partner(config["partner"]) if "partner" in config else None,
        unfinished=None if config["unfinished"] is None else Path(config["unfinished"]).resolve(),
        specific=config["specific"],
    )


def warm_up(device: str) -> None:
    """Let torch load and start its lazy parts now, so that no first call and no fork pays for them."""
    import torch

    from ssmperf.engine.judge.poison import poisoned

    x = torch.ones(8, 8, device=device, requires_grad=True)
    with poisoned(x.device, like=[]):
        y = x @ x
    torch.autograd.grad(y, x, torch.ones_like(y))  # with an explicit gradient, torch imports sympy
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _healthy(config: dict[str, Any], record: Record) -> bool:
    """Tell whether this process can run another case, as far as crashes and memory are concerned."""
    device = config["device"]
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
    """Limit the address space on the CPU; not with CUDA, which reserves far more than it uses.

    Addresses of sparse memory are reserved before, and do not count.
    """
    if config["device"].startswith("cuda"):
        return
    from ssmperf.engine.operands.calls.sparse_memory import reserve  # imports torch

    reserve()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = pages * resource.getpagesize() + config["memory_limit_bytes"]
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        bound = min(bound, hard)
    resource.setrlimit(resource.RLIMIT_AS, (bound, hard))


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; exit if it is already dead."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent process is gone")


class _Answers:
    """The pipe to the driver. A process that a backend forked off exits instead of answering too."""

    def __init__(self, descriptor: int, requests: IO[str]) -> None:
        self._pipe, self._pid, self._requests = os.fdopen(descriptor, "w"), os.getpid(), requests
        self.number: str | None = None

    def adopt(self) -> None:
        """Allow the current process, a fork, to answer."""
        self._pid = os.getpid()

    def make_windows(
        self, device: str, call: Callable[[], Any], fresh: Callable[[], None], replays: bool
    ) -> None:
        """Write values and make calls as often as the driver asks, time and again, until it asks for none.

        fresh: writes values for a call. replays: whether a call is the replay of a graph.
        """
        import torch

        self.send({"phase": "windows", "replays": replays})
        while asked := json.loads(self._requests.readline()):
            calls, writes = asked
            for number in range(max(calls, writes)):
                if number < writes:
                    fresh()
                if number < calls:
                    call()
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)
            self.send({"phase": "windows"})

    def send(self, message: dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            os._exit(1)
        numbered = {**message, "number": self.number}
        self._pipe.write(json.dumps(numbered, allow_nan=False) + "\n")
        self._pipe.flush()
