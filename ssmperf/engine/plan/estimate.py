"""A rough forecast of how long a run will take, before anything is measured.

A case takes what cases of its suite usually take, and as many calls as they make, each as long as its
backend's declarations predict. A suite that trains networks forecasts those cases itself. A kernel that is
compiled takes that time once for each of its kinds of operands, or for each of their shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.plan.refusal import declared_bytes, gate_kind, predicted_call_s
from ssmperf.engine.registry.presets import ON_CPU, PRESETS, Training
from ssmperf.errors import UnknownName

START_S = {"cpu": 3.0, "cuda": 8.0}  # until the first case of a round runs
COMPILE_S = 2.0  # as in records of an H200
SHAPE_S = 1.4  # of a backend that is compiled for each shape: a scan forward, or one backward
COMPILED_BESIDE = 4  # kernels, where a suite has them compiled before its cases
LATER_ROUNDS = 0.45  # of the first one's time: references and compiled kernels are there
GROUPS = 8  # of cases with the same operands, that are worth the start of another worker
SHARED_BYTES = 12 << 30  # that a call may need beside others, by its backend's declaration
SHARED_GAIN = 0.3  # of each further worker of a GPU, which runs one process at a time: six on an H200


def expected_s(
    cases: Iterable[Case],
    *,
    rounds: int = 1,
    devices: int = 1,
    workers: int = 1,
    training: Training | None = None,
) -> float:
    """Forecast the seconds of a run that measures some cases in each of its rounds, on some devices.

    workers: that share a device in suites whose cases may.
    training: how the run trains networks; None means as the smoke preset does.
    """
    how = PRESETS[ON_CPU].training if training is None else training
    together, alone = parted(cases)
    gain = 1 + SHARED_GAIN * (workers_for(together, workers) - 1)
    work_s = _work_s(alone, rounds, how) + _work_s(together, rounds, how) / gain
    start_s = max((START_S[case.device] for case in (*alone[:1], *together[:1])), default=0)
    return rounds * start_s + work_s / devices


def parted(cases: Iterable[Case]) -> tuple[list[Case], list[Case]]:
    """Part cases into those that may share a device, and those that need it to themselves."""
    together: list[Case] = []
    alone: list[Case] = []
    for case in cases:
        (together if may_share(case) else alone).append(case)
    return together, alone


def may_share(case: Case) -> bool:
    """Whether a case may run beside others: nothing of it is measured, and its call leaves them memory."""
    if not registry.suite(case.suite).shares_device:
        return False
    try:  # known answers are small, in shapes that declarations do not take
        return gate_kind(case) is None or (declared_bytes(case) or 0) <= SHARED_BYTES
    except UnknownName:  # in this process; its workers may know it
        return True


def workers_for(cases: Sequence[Case], most: int) -> int:
    """Choose how many workers share a device, for cases that may share it."""
    return max(1, min(most, len({case.operand_key for case in cases}) // GROUPS))


def work_s(cases: Iterable[Case], training: Training | None = None) -> float:
    """Forecast the seconds of some cases by one worker, without its start; `training` as for `expected_s`."""
    return _work_s(cases, 1, PRESETS[ON_CPU].training if training is None else training)


def _work_s(cases: Iterable[Case], rounds: int, how: Training) -> float:
    """Forecast the seconds of some cases by one worker in each round, without its start."""
    first, kernels = 0.0, set()
    shapes: dict[tuple[object, ...], float] = {}
    for case in cases:
        suite = registry.suite(case.suite)
        own_s = suite.forecast_s(case, how) if hasattr(suite, "forecast_s") else None
        first += suite.case_s[case.device] if own_s is None else own_s
        try:
            backend = registry.backend(case.owner, case.backend)
        except UnknownName:  # in this process; a version that is compared may know it
            continue
        first += suite.case_calls * predicted_call_s(case) if own_s is None else 0.0
        if case.device == "cuda" and backend.compiles_per_shape:
            passes = 2 if case.gradients else 1
            kind = str(gate_kind(case)).endswith("_complex")
            shapes[case.recurrence, case.backend, kind, case.shape, passes] = passes * SHAPE_S
        if case.device == "cuda" and backend.kernels:
            direction = "forward" if case.pass_ in ("forward", "decode") else "backward"
            beside = COMPILED_BESIDE if suite.compiles_ahead else 1
            kernels.add((beside, case.recurrence, case.backend, gate_kind(case), case.dtype, direction))
    compiled = sum(COMPILE_S / beside for beside, *_ in kernels) + sum(shapes.values())
    return first * (1 + LATER_ROUNDS * (rounds - 1)) + compiled
