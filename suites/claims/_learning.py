"""Trainings of networks for claims: variants side by side, one row per variant and seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssmperf.authoring import repeated_share
from ssmperf.suitekit import (
    ClaimSetting,
    Diverged,
    Job,
    Learned,
    Training,
    Trials,
    choose_backend,
    registry,
    run_tests,
    search_all,
    sized,
)

TEXT = "language"  # the task whose rows come from a text
ROWS = "trainings"  # key of the rows in the numbers of a piece
# Without backends that take long to compile.
BACKENDS = ("triton", "torch_sdpa", "chunkwise", "hillis_steele", "blelloch", "surrogate", "sequential")
PARTS = 32  # points of a loss curve
TINY_T, TINY_WIDTH = 16, 16
SIDE_BY_SIDE = 8  # of networks with a width of 64


@dataclass(frozen=True, slots=True)
class Variant:
    """A network to train.

    model: its name, with options. sizes: those of the model; None means those that give the plan's width.
    hidden: width inside the channel mixing; None means the block's own.
    """

    model: str
    sizes: Mapping[str, int] | None = None
    hidden: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How the variants of a piece are trained and tested.

    task: its name, with options. T, batch: of the training. updates: at most, of a training, which ends
    early at 99 % on its validation rows. rates: the first seed tries each, the others take the best.
    width, layers: of the network. decay: of the weights. warm_up: updates; None means a tenth.
    growth: lengths of the tests, as multiples of T. rows: of a test. side_by_side: trainings on a GPU.
    """

    task: str
    T: int
    batch: int
    updates: int
    rates: tuple[float, ...]
    width: int = 64
    layers: int = 2
    decay: float = 0.1
    warm_up: int | None = None
    growth: tuple[int, ...] = (1,)
    rows: int = 512
    seeds: int = 3
    side_by_side: int = SIDE_BY_SIDE

    @property
    def tiny(self) -> Plan:
        """The same at sizes that only try the code."""
        name, _, _ = self.task.partition(":")
        options = {"mqar": "vocabulary=32", "selective_copying": "tokens=2"}
        return replace(
            self,
            task=f"{name}:{options[name]}" if name in options else name,
            T=TINY_T,
            batch=2,
            updates=2,
            rates=self.rates[:1],
            width=TINY_WIDTH,
            layers=1,
            warm_up=None,
            growth=self.growth[:2],
            rows=2,
            seeds=2,
        )


def lengths(standard: Sequence[int], setting: ClaimSetting) -> Sequence[int]:
    """List the lengths of the trainings of a claim: its own, or one that is tiny."""
    return (TINY_T,) if setting.smoke else standard


Probe = Callable[[Learned, ClaimSetting], dict[str, Any]]


def trained(
    setting: ClaimSetting, plan: Plan, variants: Mapping[str, Variant], *, probe: Probe | None = None
) -> dict[str, Any]:
    """Train all variants side by side and test them.

    What has ended in the piece's folder is not trained again.

    probe: looks into a trained network; what it gives is added to the network's row.

    Returns:
        `{"trainings": [...]}`: a row per variant and seed with its accuracies and losses by length; or a row
        with a reason for a variant that diverged.
    """
    plan = plan.tiny if setting.smoke else plan
    seeds = setting.seeds or plan.seeds
    training = Training(
        plan.T,
        plan.batch,
        plan.width,
        plan.updates,
        seeds,
        plan.rates,
        models=None,
        tasks=None,
        layers=plan.layers,
        side_by_side=plan.side_by_side if setting.on_gpu else 1,
    )
    jobs = {name: job_of(variant, plan, setting) for name, variant in variants.items()}
    results = search_all(list(jobs.values()), training, setting.unfinished, setting.on_progress)
    rows: list[dict[str, Any]] = []
    for (name, job), result in zip(jobs.items(), results, strict=True):
        shared = {"variant": name, "T": job.sizes["T"], "smoke": setting.smoke, **described(job)}
        if isinstance(result, Diverged):
            rows.append({**shared, "seed": None, "status": "diverged", "reason": str(result)})
        else:
            rows += [{**shared, **row} for row in tested(result, plan, setting, probe)]
    return {ROWS: rows}


def job_of(variant: Variant, plan: Plan, setting: ClaimSetting) -> Job:
    """Make the job of a variant with the first rate and seed."""
    own = None if setting.smoke else variant.sizes
    chosen = sized(variant.model, plan.width) if own is None else own
    sizes = {**chosen, "B": plan.batch, "T": plan.T}
    backend = choose_backend(
        variant.model,
        sizes,
        setting.device,
        updates=plan.updates,
        growth=plan.growth[-1],
        among=BACKENDS,
    )
    return Job(
        model=variant.model,
        sizes=sizes,
        backend=backend,
        task=plan.task,
        rate=plan.rates[0],
        seed=0,
        updates=plan.updates,
        device=setting.device,
        layers=plan.layers,
        corpus=setting.corpus,
        hidden=variant.hidden,
        decay=plan.decay,
        warm_up=plan.warm_up,
    )


def described(job: Job) -> dict[str, Any]:
    """Say what is trained, and how."""
    return {
        "model": job.model,
        "sizes": dict(job.sizes),
        "layers": job.layers,
        "backend": job.backend,
        "task": job.task,
        "corpus": job.corpus,
        "most_updates": job.updates,
        "decay": job.decay,
        "warm_up": job.warm_up,
        "hidden": job.hidden,
        "repeated_share": repeated_share(_path(job.corpus)) if job.task == TEXT else None,
    }


def _path(corpus: str | None) -> Path | None:
    return None if corpus is None else Path(corpus)


def tested(
    trials: Trials, plan: Plan, setting: ClaimSetting, probe: Probe | None
) -> Iterator[dict[str, Any]]:
    """Test the networks of a variant; give a row per seed."""
    for each in trials.learned:
        found = run_tests(
            registry.task(plan.task),
            [each],
            each.job.backend,
            setting.device,
            growth=plan.growth,
            rows=plan.rows,
            on_progress=setting.on_progress,
        )
        yield {
            "seed": each.job.seed,
            "status": "ok",
            "reason": found.reason,
            "rate": each.job.rate,
            "updates": each.updates,
            "ended_early": each.ended_early,
            "validation_by_rate": {f"{rate:g}": accuracy for rate, accuracy in trials.rates.items()},
            "chance": found.chance,
            "guess_loss": registry.task(plan.task).guess_loss,
            "accuracies": by_length(found.lengths, found.accuracies),
            "losses": by_length(found.lengths, found.losses),
            "by_reach": {str(T): of_seed for T, (of_seed,) in found.by_reach.items()},
            "loss_curve": each.curve(PARTS),
            "train_s": each.train_s,
            "without_graph": each.without_graph or None,
            **({} if probe is None else probe(each, setting)),
        }


def by_length(lengths: Sequence[int], found: Sequence[Sequence[float] | None]) -> dict[str, float | None]:
    """Give the number of a single seed by length; None where it was not tested or is not finite."""
    return {
        str(T): values[0] if values and math.isfinite(values[0]) else None
        for T, values in zip(lengths, found, strict=True)
    }
