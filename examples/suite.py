"""A suite: one question and its numbers. It judges a first call as every suite does, then compares two more.

    ssmperf run --suite repetition --plugin examples/suite.py --models hgrn

The table has one row per backend, with both answers.
"""

import torch

from ssmperf import Status
from ssmperf.suitekit import Judging, Section, call_of, product, suite

SECTION = Section(
    title="Repetition",
    question="Does a second call on the same values give the same bits?",
    columns=("same_output", "same_state"),
)


@suite("repetition", section=SECTION)
class Repetition:
    """One forward case per subject, backend and shape."""

    def cases(self, selection):
        return product(selection, self.name, passes=("forward",), dtypes=("float32",), cache="hot")

    def measure(self, case, context):
        verdict, values = Judging(case, context).first()
        if verdict.status is not Status.OK:
            return context.record(case, verdict)
        call = call_of(case.pass_, context.function(case), values)
        pairs = zip(call(), call(), strict=True)
        same_output, same_state = (torch.equal(first, second) for first, second in pairs)
        return context.record(case, verdict, same_output=same_output, same_state=same_state)
