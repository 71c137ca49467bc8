"""Is one configuration right? The examples of `ssmperf fuzz`, and the command that repeats one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ssmperf import PASSES, Case, Record, Selection, Status
from ssmperf.suitekit import DIMENSIONS, Context, Judging, Section, Verdict, product, suite

NEAR = 3.0  # an error below so many tolerances may be rounding
OTHERS = 4  # draws of other values on which such an example is judged again
APART = 300  # added to the number of a draw for each of them

SECTION = Section(
    title="Fuzz",
    question="Which configurations, drawn at random, is each backend wrong at?",
    columns=("error_output", "error_final_state", "error_gradients"),
    rows="topic",
    coverage=(
        *("backend", "dtype", "gate_dtype", "layout", "pass", "operand_source", "packing", "call"),
        *DIMENSIONS,
    ),
)


@suite(
    "fuzz",
    section=SECTION,
    passes=PASSES,
    compiles_ahead=True,
    continues=True,
    shares_device=True,
    case_s={"cpu": 0.05, "cuda": 0.1},
    case_calls=6,
)
class Fuzz:
    """One case per subject, backend and axis, where models, backends and sizes are all named."""

    name: str
    continues: bool
    decided_by_most = True  # of the judgements of an example whose error is near its tolerance

    def cases(self, selection: Selection) -> Iterable[Case]:
        if not (selection.models and selection.backends and selection.names_sizes):
            return ()
        return product(selection, self.name, passes=("forward_backward",), dtypes=("float32",), cache="cold")

    def measure(self, case: Case, context: Context) -> Record:
        judging = Judging(case, context, with_state=self.continues)
        verdict, buffers = judging.first()
        if verdict.status is Status.OK:
            verdict = judging.twice(verdict, buffers)
        near = verdict.status is Status.WRONG and 1 < verdict.excess < NEAR
        if not near:
            return context.record(case, verdict)
        verdict, note = judged_again(judging, verdict)
        return context.record(case, verdict, near_tolerance=note)


def judged_again(judging: Judging, near: Verdict) -> tuple[Verdict, str]:
    """Judge an example on other values, and say how often it was right: it is wrong unless most are right.

    The errors of the few elements of small results do not average out, so that one in some thousand right
    examples exceeds its tolerance a little. An error that comes from the configuration shows on most values.

    near: the verdict on the example's own values, little above its tolerance.
    """
    found = [dataclasses.replace(judging, offset=APART * (number + 1)).first()[0] for number in range(OTHERS)]
    right = [verdict for verdict in found if verdict.status is Status.OK]
    far = any(verdict.status is not Status.OK and not 1 < verdict.excess < NEAR for verdict in found)
    note = f"{near.excess:.2g} of its tolerance; right on {len(right)} of {OTHERS} other draws of its values"
    if far or 2 * len(right) <= OTHERS:
        return near, note
    return right[0], note
