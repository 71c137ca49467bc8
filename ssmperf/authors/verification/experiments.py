"""Run experiments on the faults that `ssmperf.verify` has found, each distinct fault once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ssmperf.engine.cases.calls.call import STATELESS, parse
from ssmperf.engine.cases.case import Case
from ssmperf.engine.diagnosis.experiments import FAILED, JudgeCase, can_be_explained, explained_by_experiments
from ssmperf.engine.execute.judging import Judging
from ssmperf.engine.judge.verdict import Verdict

MOST_FAULTS = 3


def with_experiments(
    verdicts: Mapping[str, Verdict], judgings: Mapping[str, Judging], judge: JudgeCase
) -> dict[str, Verdict]:
    """Add to the reasons of wrong verdicts what experiments show. Verdicts on the same fault are left alone.

    judgings: by the labels of the verdicts. judge: judges one call of a case.
    """
    faults: dict[object, str] = {}
    for label, verdict in verdicts.items():
        if label in judgings and verdict.status in FAILED and can_be_explained(judgings[label].case):
            faults.setdefault(_fault(verdict), label)
    found = {}
    for label in [*faults.values()][:MOST_FAULTS]:
        text = explained_by_experiments(_case_of(judgings[label]), verdicts[label], judge)
        if text:
            found[label] = replace(verdicts[label], reason=f"{verdicts[label].reason}. {text}")
    return found


def _fault(verdict: Verdict) -> object:
    """Give what two verdicts on the same fault share."""
    worst = next(iter(verdict.diagnosis), None)
    if worst is None:
        return verdict.status, verdict.reason
    return verdict.status, worst["object"], worst.get("kind")


def _case_of(judging: Judging) -> Case:
    """Give a case whose words say that it begins without a state, if it does."""
    case, call = judging.case, parse(judging.case.call)
    if judging.with_state or not judging.context.recurrence(case).has_state:
        return case
    words = dict.fromkeys((*call.circumstances, STATELESS))
    return replace(case, call=str(replace(call, circumstances=tuple(words))))
