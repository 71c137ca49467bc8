"""One case in a process of its own: its first call, or a call whose kernels a profiler watches.

Run as `python -m ssmperf.authors.profiling.process JOB`, where JOB is the JSON object that `run` makes. The
process writes its answer into the file that the job names: `{"numbers"}`, or `{"status", "reason"}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssmperf.authors.profiling.measurement import Failed
from ssmperf.authors.profiling.subjects import ProfiledCall, synchronize
from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Status
from ssmperf.engine.execute.worker import ended_by, warm_up

FIRST_CALL, WATCHED = "first call", "watched call"
LATER_CALLS, LATER_S = 20, 2.0
LONGEST_OUTPUT = 2000  # characters of the output's end


def run(
    task: str,
    case: Case,
    device: str,
    timeout_s: float,
    *,
    variables: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
) -> tuple[dict[str, Any], str]:
    """Carry out a task with a case in a fresh process; return its numbers and its output.

    variables: added to the environment. under: the words of a command that starts the process.

    Raises:
        Failed: the backend refuses the case or fails, the time is over, or the process died.
        Aborted: the command or the process ended without an answer.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log"
        job = {
            "task": task,
            "case": case.to_json(),
            "device": device,
            "plugins": list(registry.plugins()),
            "answer": str(answer),
        }
        words = [*under, sys.executable, "-P", "-m", __name__, json.dumps(job)]
        code = _run(words, {**os.environ, **(variables or {})}, log, timeout_s)
        output = log.read_text(errors="replace")
        if code is None:
            raise Failed(Status.TIMEOUT, f"it took more than {timeout_s:g} s")
        said = json.loads(answer.read_text()) if answer.exists() else {}
    if "status" in said:
        raise Failed(Status(said["status"]), said["reason"])
    if code < 0:
        raise Aborted(f"its process was killed by {signal.Signals(-code).name}", output)
    if code or "numbers" not in said:
        raise Aborted(f"its process ended with exit code {code}", output)
    return said["numbers"], output


class Aborted(Failed):
    """A process ended without an answer. output: all that it wrote."""

    def __init__(self, reason: str, output: str) -> None:
        lines = output[-LONGEST_OUTPUT:].strip().splitlines()
        super().__init__(Status.CRASH, f"{reason}: {lines[-1]}" if lines else reason)
        self.output = output


def _run(words: Sequence[str], variables: Mapping[str, str], log: Path, timeout_s: float) -> int | None:
    """Run a command to its end and return its exit code; None if it was ended after the time."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=variables, start_new_session=True
        )
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:  # also when a user interrupts: a profiler's children belong to the session
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(text: str) -> None:
    """Carry out a job, and write the answer."""
    job = json.loads(text)
    tasks = {FIRST_CALL: first_call, WATCHED: watched_call}
    try:
        for file in job["plugins"]:
            registry.load_plugin(file)
        with _on(job["device"]):
            said: dict[str, Any] = {"numbers": tasks[job["task"]](Case.from_json(job["case"]), job["device"])}
    except Exception as error:
        status, reason, _ = ended_by(error)
        said = {"status": str(status), "reason": reason}
    Path(job["answer"]).write_text(json.dumps(said))


@contextlib.contextmanager
def _on(device: str) -> Iterator[None]:
    """Make a GPU the current one, and start CUDA and torch's lazy parts."""
    import torch

    with torch.cuda.device(device) if device.startswith("cuda") else contextlib.nullcontext():
        warm_up(device)
        yield


def first_call(case: Case, device: str) -> dict[str, Any]:
    """Time the first call, and later ones from idle to idle: the seconds of the median.

    The time has no imports, no start of CUDA, no draw of operands and no first gradient of torch's own.
    """
    subject = ProfiledCall.of(case, device)
    synchronize(device)
    start_s = time.perf_counter()
    call = subject.call()
    call()
    synchronize(device)
    first_s = time.perf_counter() - start_s
    later: list[float] = []
    while len(later) < LATER_CALLS and sum(later) < LATER_S:
        start_s = time.perf_counter()
        call()
        synchronize(device)
        later.append(time.perf_counter() - start_s)
    return {"first_s": first_s, "later_s": statistics.median(later)}


def watched_call(case: Case, device: str) -> dict[str, Any]:
    """Make a call that compiles, and one between the marks at which a profiler begins and ends."""
    import torch

    call = ProfiledCall.of(case, device).call()
    call()
    synchronize(device)
    torch.cuda.profiler.start()
    call()
    synchronize(device)
    torch.cuda.profiler.stop()
    return {}


if __name__ == "__main__":
    main(sys.argv[1])
