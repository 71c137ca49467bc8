"""Compile kernels in several processes beside each other, before anything is measured.

Nearly all of a kernel's first call is its compilation, which keeps one core busy and leaves its result in a
folder. So the first calls of kernels are made here, and those of the worker find them compiled. Whatever goes
wrong is left out: the worker makes every first call again, and its record says how that went.

A nursery forks each process and calls `main` with `device`, `nonce`, `rows`, and three inherited descriptors:
`cases`, a file of JSON; `work`, a pipe with the numbers of the cases that no process has taken; and `done`, a
pipe for a line of JSON a case, `{"id", "seconds"}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.processes.cores import count_cores
from ssmperf.engine.processes.nursery import Child, Nursery, NurseryEnded
from ssmperf.engine.tune import tables
from ssmperf.errors import UnknownName

if TYPE_CHECKING:
    import torch

MODULE = __name__  # that a process runs
DEVICES = ("cuda",)  # on which kernels are compiled
FEWEST = 4  # cases that are worth the processes
MOST = 10_000  # whose numbers a pipe holds
MOST_BESIDE = 8  # processes
CORES_EACH = 2  # a call's kernels are compiled beside each other, too
ROOM_BYTES = 8 << 30  # free memory of a GPU that a process asks for before each case
LIMIT_S = 300.0
NUMBER = struct.Struct("<I")
START_S = 60.0


def worth(cases: Iterable[Case]) -> list[Case]:
    """List cases that compile kernels of this package, one for each kind of call."""
    found: dict[tuple[object, ...], Case] = {}
    for case in cases:
        if case.device in DEVICES and registry.suite(case.suite).compiles_ahead:
            with contextlib.suppress(UnknownName):
                if registry.backend(case.owner, case.backend).kernels:
                    found.setdefault((case.owner, case.backend, case.operand_key, case.gradients), case)
    return list(found.values())[:MOST]


def processes(cases: int, devices: int = 1) -> int:
    """Count the processes of each device for so many cases; 0 if fewer than two would have work.

    devices: that compile at the same time, and share the cores.
    """
    count = min(MOST_BESIDE, count_cores() // (CORES_EACH * devices), cases)
    return count if count > 1 and cases >= FEWEST else 0


def compile_ahead(
    cases: Sequence[Case],
    count: int,
    nursery: Nursery,
    config: Mapping[str, Any],
    log: Path,
    on_progress: Callable[[Case, str], None] = lambda case, text: None,
) -> dict[str, float]:
    """Make the first calls of cases; return their seconds by the id of the case, as far as they worked.

    count: of processes. config: `device`, `nonce` and `rows`.
    """
    work, theirs = os.pipe()
    os.write(theirs, b"".join(map(NUMBER.pack, range(len(cases)))))
    os.close(theirs)
    done, theirs = os.pipe()
    children: list[Child] = []
    try:
        with tempfile.TemporaryFile() as file, log.open("ab") as output:
            file.write(json.dumps([case.to_json() for case in cases]).encode())
            file.flush()
            inherited = {"cases": file.fileno(), "work": work, "done": theirs}
            for _ in range(count):
                children.append(nursery.start(MODULE, config, output.fileno(), inherited, START_S))
    except (NurseryEnded, OSError):
        pass  # the next start of a worker reports it
    finally:
        os.close(theirs)
        os.close(work)
    try:
        return _gathered(done, {case.id: case for case in cases}, children, on_progress)
    finally:
        os.close(done)
        for child in children:
            child.close()


def _gathered(
    done: int, cases: Mapping[str, Case], children: Sequence[Child], on_progress: Callable[[Case, str], None]
) -> dict[str, float]:
    """Read the output of processes, until all have ended or their time is up."""
    found: dict[str, float] = {}
    poll, ends_s, rest = select.poll(), time.monotonic() + LIMIT_S, b""
    running = {child.descriptor for child in children}
    for descriptor in (done, *running):
        poll.register(descriptor, select.POLLIN)
    while ready := dict(poll.poll(max(0.0, ends_s - time.monotonic()) * 1e3)):
        if done not in ready:  # first, since a process may have written before it ended
            for descriptor in ready:
                poll.unregister(descriptor)
                running.discard(descriptor)
            if running:
                continue
            break
        if not (data := os.read(done, 1 << 16)):
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            found[message["id"]] = message["seconds"]
            text = f"compiling kernels, {len(children)} cases beside each other: {len(found)} of {len(cases)}"
            on_progress(cases[message["id"]], text)
    return found


def main(config: dict[str, Any]) -> None:
    """Make first calls as long as there are any that nobody has taken."""
    import torch

    device = torch.device(config["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream())
    tables.force(tables.from_json(config["rows"], strict=False))
    given = json.loads(os.pread(config["cases"], os.fstat(config["cases"]).st_size, 0))
    while _has_room(device) and (number := os.read(config["work"], NUMBER.size)):
        case = Case.from_json(given[NUMBER.unpack(number)[0]])
        try:
            seconds = first_call_s(case, device, config["nonce"])
        except Exception as error:  # the worker meets it again, and its record says so
            print(f"{case}: {type(error).__name__}: {error}", flush=True)
            continue
        os.write(config["done"], (json.dumps({"id": case.id, "seconds": seconds}) + "\n").encode())


def first_call_s(case: Case, device: torch.device, nonce: int) -> float:
    """Time the first call of a case, with its backward pass if it has one."""
    import torch

    from ssmperf.engine.judge.answer import call_backend, contract_of
    from ssmperf.engine.operands.dtypes import dtype_of
    from ssmperf.engine.operands.subject import subject_of
    from ssmperf.engine.operands.values import call_of

    subject = subject_of(case, str(device))
    values = subject.values(nonce, with_state=case.decodes or registry.suite(case.suite).continues)
    function = subject.function(registry.backend(case.owner, case.backend).function, dtype_of(case.dtype))
    begin = time.perf_counter()
    call_of("forward_backward" if case.gradients else "forward", function, values)()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - begin
    if case.gradients:  # the judge asks for outputs alone, and for gradients with the final state's
        expected = contract_of(subject, registry.recurrence(case.recurrence).definition, values)
        for gradients in (False, True):
            call_backend(function, values, expected, gradients=gradients, poison=False)
    return seconds


def _has_room(device: torch.device) -> bool:
    """Tell whether a GPU has memory for another case, after what this process no longer needs is free."""
    import torch

    if device.type != "cuda":
        return True
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0] >= ROOM_BYTES
