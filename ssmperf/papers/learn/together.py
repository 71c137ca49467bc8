"""Trainings side by side on one device: an update of each in turn, each on a stream of its own.

The host gives an update to a training's stream and goes on to the next training. So the device has work of
all of them at once, and one that waits for its losses does not keep it from the others.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from ssmperf.papers.learn.data import Block
from ssmperf.papers.learn.training import Diverged, Job, Learned, training

Lane = Callable[[], AbstractContextManager[object]]  # in which the updates of one training are made
Updates = Generator[None, None, Learned]


@dataclass
class _Running:
    number: int
    job: Job
    updates: Updates
    lane: Lane


def train_together(
    jobs: Sequence[Job],
    checkpoints: Sequence[Path | None],
    at_once: int,
    on_step: Callable[[str], None],
) -> list[Learned | Diverged]:
    """Do what `train` does for several jobs on one device, so many at a time; give a result for each.

    Raises:
        Unsupported: a backend refuses the operands.
    """
    lanes = [_lane(jobs[0].device) for _ in range(min(at_once, len(jobs)))]
    blocks: dict[tuple[str, object], dict[int, Block]] = {}
    waiting, running = deque(enumerate(zip(jobs, checkpoints, strict=True))), list[_Running]()
    results: dict[int, Learned | Diverged] = {}

    def begin(number: int, job: Job, checkpoint: Path | None) -> _Running:
        def told(text: str) -> None:
            left = f"{len(jobs) - len(results)} of {len(jobs)} trainings are not done"
            on_step(f"{left}; {job.model}, {job.label}: {text}")

        shared = blocks.setdefault((job.task, job.draw), {})
        updates = training(job, checkpoint=checkpoint, on_step=told, blocks=shared)
        return _Running(number, job, updates, lanes.pop())

    with _one_thread(), contextlib.ExitStack() as stack:
        while waiting or running:
            while waiting and lanes:
                number, (job, checkpoint) = waiting.popleft()
                running.append(begin(number, job, checkpoint))
                stack.callback(_close, running[-1])
            for each in tuple(running):
                result = _next(each)
                if result is not None:
                    results[each.number] = result
                    running.remove(each)
                    lanes.append(each.lane)
    return [results[number] for number in range(len(jobs))]


def _next(each: _Running) -> Learned | Diverged | None:
    """Make the next update of a training; give its result if it has ended."""
    try:
        with each.lane():
            next(each.updates)
    except StopIteration as end:
        learned: Learned = end.value
        return learned
    except Diverged as error:
        return Diverged(f"{error} ({each.job.label})")
    return None


def _close(each: _Running) -> None:
    """End a training that has not ended; nothing happens to one that has."""
    with each.lane():
        each.updates.close()


def _lane(device: str) -> Lane:
    """Make a stream of a GPU. One training after another has it, so that no two share one."""
    if not device.startswith("cuda"):
        return contextlib.nullcontext
    stream = torch.cuda.Stream(device)
    return lambda: torch.cuda.stream(stream)


@contextlib.contextmanager
def _one_thread() -> Generator[None, None, None]:
    """Let torch use one thread for the host's work: to start several takes longer than these updates."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
