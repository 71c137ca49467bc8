"""Is one configuration right? The examples of `ssmperf fuzz`, and the command that repeats one of them."""

from __future__ import annotations

from collections.abc import Iterable

from ssmperf import PASSES, Case, Record, Selection, Status
from ssmperf.suitekit import DIMENSIONS, Context, Judging, Section, product, suite

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
    shares_device=True,
    case_s={"cpu": 0.05, "cuda": 0.1},
    case_calls=6,
)
class Fuzz:
    """One case per subject, backend and axis, where models, backends and sizes are all named."""

    name: str

    def cases(self, selection: Selection) -> Iterable[Case]:
        if not (selection.models and selection.backends and selection.names_sizes):
            return ()
        return product(selection, self.name, passes=("forward_backward",), dtypes=("float32",), cache="cold")

    def measure(self, case: Case, context: Context) -> Record:
        judging = Judging(case, context, with_state=True)
        verdict, buffers = judging.first()
        if verdict.status is Status.OK:
            verdict = judging.twice(verdict, buffers)
        return context.record(case, verdict)
