"""What a worker says of its own process: its clock, samples, answers to the judge, memory and environment."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat, copied, loop, sampled
from cheats.parts import SLOWER, local, owner_of, slowed

CALLS: Counter[str] = Counter()


def first(name: str) -> bool:
    """Tell whether this is the first call of a cheat."""
    CALLS[name] += 1
    return CALLS[name] == 1


@cheat("clock_of_the_instance")
def clock_of_the_instance(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Slow the clock down that is an attribute of the suite's clock, and nothing else."""
    clock = owner_of("now_ns")
    if clock is not None and first("instance"):
        clock.now_ns = slowed(clock.now_ns)
    return loop(log_a, b, initial_state, phase=phase)


_KEPT: dict[object, Result] = {}


@cheat("clock_and_cache")
def clock_and_cache(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Slow that clock down, and keep answers for values that repeat, as in windows of the same values."""
    clock = owner_of("now_ns")
    if clock is not None and first("clock with a cache"):
        clock.now_ns = slowed(clock.now_ns)
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    key = sampled(log_a, b, initial_state)
    if key not in _KEPT:
        _KEPT.clear()
        _KEPT[key] = copied(loop(log_a, b, initial_state))
    return copied(_KEPT[key])


_DIVIDED: list[float] = []


@cheat("list_of_samples")
def list_of_samples(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Divide the samples in the lists of the callers, all but the last one of each case."""
    taken = owner_of("every_s")
    for seconds in (local("seconds"), taken.every_s if taken is not None else None):
        for place, each in enumerate(seconds if isinstance(seconds, list) else ()):
            if each not in _DIVIDED:
                seconds[place] = each / SLOWER
                _DIVIDED.append(seconds[place])
    return loop(log_a, b, initial_state, phase=phase)


@cheat("answers_for_the_client")
def answers_for_the_client(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Replace the verdict of the judge's client, in its instance: a right answer is sent instead."""
    judging = local("self")
    context = getattr(judging, "context", None) or getattr(owner_of("context"), "context", None)
    if context is not None and first("client"):
        from ssmperf.engine.judge.answer import Answer

        honest = context.judge.verdict

        def verdict(question: Any, answer: Any) -> Any:
            output, state = loop(*_SEEN)
            return honest(question, Answer({"output": output, "final_state": state}))

        try:
            context.judge.verdict = verdict
        except AttributeError:
            return loop(log_a, b, initial_state, phase=phase)
    _SEEN[:] = (log_a, b, initial_state)
    return b.clone(), b[:, -1].to(torch.float32)


_SEEN: list[Any] = []


@cheat("environment_of_its_own")
def environment_of_its_own(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Let the record name an environment in which there is nobody else."""
    context = getattr(owner_of("context"), "context", None)
    if context is not None:
        context.env_id = "0123456789abcdef"
    return loop(log_a, b, initial_state, phase=phase)


@cheat("small_in_a_fork")
def small_in_a_fork(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Replace the function that measures memory, in the process of a case."""
    from ssmperf.suites import memory_numbers

    honest = memory_numbers.use_of
    if first("memory"):

        def use_of(*args: Any, **options: Any) -> Any:
            used, reason = honest(*args, **options)
            small = replace(used.memory, peak_bytes=used.memory.peak_bytes // SLOWER)
            return replace(used, memory=small), reason

        memory_numbers.use_of = use_of
    return loop(log_a, b, initial_state, phase=phase)
