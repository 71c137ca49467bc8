"""Many trainings: over learning rates with the first seed, then over seeds with the best rate of each job."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ssmperf.engine import registry
from ssmperf.engine.execute.worker import is_out_of_memory
from ssmperf.engine.processes import surroundings
from ssmperf.engine.registry.presets import Training
from ssmperf.errors import Unsupported, WorkerFailed
from ssmperf.papers.learn.process import REFUSED
from ssmperf.papers.learn.together import train_together
from ssmperf.papers.learn.training import Diverged, Job, Learned, has_ended, train

PROCESS = "ssmperf.papers.learn.process"  # the module that a training's own process runs
TRAININGS_ON_GPU = 4  # at the same time, since a small network leaves a GPU idle
POLL_S = 0.1
OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Trials:
    """The trainings of a job that count: one per seed, with the chosen rate.

    rates: the validation accuracy of the first seed by learning rate; None for one that diverged.
    """

    learned: Sequence[Learned]
    rate: float
    rates: Mapping[float, float | None]


def search(job: Job, training: Training, folder: Path | None, on_step: OnStep) -> Trials:
    """Train at every learning rate with the job's seed, and then with the following seeds at the best rate.

    folder: for checkpoints; None keeps nothing.

    Raises:
        Diverged: no learning rate gives a finite loss, or another seed diverges at the best one.
        Unsupported: the backend refuses the operands.
    """
    (found,) = search_all([job], training, folder, on_step)
    if isinstance(found, Diverged):
        raise found
    return found


def search_all(
    jobs: Sequence[Job], training: Training, folder: Path | None, on_step: OnStep
) -> list[Trials | Diverged]:
    """Do what `search` does for several jobs whose trainings run side by side; give a result for each.

    Jobs may differ in anything but their device. With a single learning rate, all seeds run at once.

    Raises:
        Unsupported: a backend refuses the operands.
    """
    on_gpu = any(job.device.startswith("cuda") for job in jobs)
    at_once = training.side_by_side or (TRAININGS_ON_GPU if on_gpu else 1)
    grid = [[replace(job, rate=rate) for rate in training.rates] for job in jobs]
    with _folder(folder, needed=at_once > 1) as kept:

        def run(groups: Sequence[Sequence[Job]]) -> list[list[Learned | Diverged]]:
            results = iter(run_jobs([job for group in groups for job in group], kept, at_once, on_step))
            return [list(itertools.islice(results, len(group))) for group in groups]

        def others(first: Learned | Diverged | Job) -> list[Job]:
            job = first.job if isinstance(first, Learned) else first
            if isinstance(job, Diverged):
                return []
            return [replace(job, seed=job.seed + number) for number in range(1, training.seeds)]

        if len(training.rates) == 1:
            by_seed = run([[first, *others(first)] for (first,) in grid])
            by_rate, rest = [each[:1] for each in by_seed], [each[1:] for each in by_seed]
        else:
            by_rate = run(grid)
            rest = run([others(_best(each)) for each in by_rate])
    return [_trials(training.rates, *each) for each in zip(by_rate, rest, strict=True)]


def _trials(
    rates: Sequence[float], by_rate: Sequence[Learned | Diverged], rest: Sequence[Learned | Diverged]
) -> Trials | Diverged:
    """Join the results of one job: those of the first seed by rate, and those of the others at the best."""
    results = [_best(by_rate), *rest]
    learned = [each for each in results if isinstance(each, Learned)]
    if len(learned) < len(results):
        return next(each for each in results if isinstance(each, Diverged))
    accuracies = [each.accuracy if isinstance(each, Learned) else None for each in by_rate]
    return Trials(learned, learned[0].job.rate, dict(zip(rates, accuracies, strict=True)))


def _best(of_rates: Sequence[Learned | Diverged]) -> Learned | Diverged:
    """Choose the training with the best accuracy, of equal ones that with the least loss at its end."""
    sound = [each for each in of_rates if isinstance(each, Learned)]
    if not sound:
        return of_rates[0]
    return max(sound, key=lambda each: (each.accuracy, -each.losses[-1]))


def run_jobs(
    jobs: Sequence[Job], folder: Path | None, at_once: int, on_step: OnStep
) -> list[Learned | Diverged]:
    """Carry out trainings, one after another or several at a time.

    On a CPU these have a process each. On a GPU all are in this process and take turns: processes would share
    the device in slices of time, in each of which a small network leaves most of it idle.

    folder: for checkpoints, from which interrupted trainings go on; several processes need one.

    Raises:
        Unsupported: the backend refuses the operands.
        WorkerFailed: the process of a training has failed. MemoryError: it lacked memory.
    """
    if at_once > 1 and all(job.device.startswith("cuda") for job in jobs):
        checkpoints = [None if folder is None else checkpoint_of(job, folder) for job in jobs]
        return train_together(jobs, checkpoints, at_once, on_step)
    if at_once > 1 and len(jobs) > 1:
        assert folder is not None
        to_do = [job for job in jobs if not has_ended(checkpoint_of(job, folder), job)]
        _run_processes(to_do, folder, at_once, on_step)
    return [_result(job, folder, on_step) for job in jobs]


def checkpoint_of(job: Job, folder: Path) -> Path:
    """Name the file that keeps the state of a training; different jobs have different ones."""
    name = re.sub(r"[^\w.]+", "-", job.model)
    digest = hashlib.sha256(job.fingerprint.encode()).hexdigest()[:12]
    return folder / f"{name}-rate{job.rate:g}-seed{job.seed}-{digest}.pt"


def _result(job: Job, folder: Path | None, on_step: OnStep) -> Learned | Diverged:
    """Carry out a training, or read the result of one that has ended."""
    checkpoint = None if folder is None else checkpoint_of(job, folder)
    try:
        return train(
            job, checkpoint=checkpoint, on_step=lambda text: on_step(f"training {job.label}: {text}")
        )
    except Diverged as error:
        return Diverged(f"{error} ({job.label})")


def _run_processes(jobs: Sequence[Job], folder: Path, at_once: int, on_step: OnStep) -> None:
    """Run a process per training, so many at a time; each leaves the end of its training in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting = list(jobs)
    running: dict[subprocess.Popen[bytes], tuple[Job, Path]] = {}
    heard = 0
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                log = checkpoint_of(job, folder).with_suffix(".log")
                running[_start(job, folder, log, at_once)] = job, log
            time.sleep(POLL_S)
            told = sum(log.stat().st_size for _, log in running.values())
            for process in [each for each in running if each.poll() is not None]:
                _check(process.returncode, *running.pop(process))
                told = -1
            if told != heard:
                on_step(f"{len(waiting) + len(running)} of {len(jobs)} trainings are not done")
                heard = told
    finally:
        for process in running:
            process.kill()
            process.wait()


def _check(code: int, job: Job, log: Path) -> None:
    """Raise the error of a training's process, unless it has ended well."""
    if not code:
        return
    if code < 0:
        raise WorkerFailed(f"the training of {job.label} was killed by signal {-code}; was memory short?")
    lines = log.read_text(errors="replace").strip().splitlines()
    said = lines[-1] if lines else f"exit code {code}"
    if code == REFUSED:
        raise Unsupported(said)
    if is_out_of_memory(RuntimeError(said)):
        raise MemoryError(said)
    raise WorkerFailed(f"the training of seed {job.seed} at rate {job.rate:g}: {said}")


def _start(job: Job, folder: Path, log: Path, at_once: int) -> subprocess.Popen[bytes]:
    asked = {
        "job": {**asdict(job), "sizes": dict(job.sizes)},
        "checkpoint": str(checkpoint_of(job, folder)),
        "plugins": registry.plugins(),
        "threads": max(1, torch.get_num_threads() // at_once),
    }
    with log.open("wb") as file:
        command = [*surroundings.interpreter(), "-m", PROCESS, json.dumps(asked)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


@contextlib.contextmanager
def _folder(folder: Path | None, *, needed: bool) -> Iterator[Path | None]:
    """Give the folder for checkpoints, or a temporary one if there is none and one is needed."""
    if folder is not None or not needed:
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)
