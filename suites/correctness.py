"""Is each backend right? Outputs, final state and every gradient against the float64 oracle."""

from __future__ import annotations

from collections.abc import Iterable

from ssmperf import Case, Record, Section, Shape, suite
from ssmperf.execute.context import Context, decay_span
from ssmperf.plan import Selection, product

SECTION = Section(
    title="Correctness",
    question="Does each backend give the recurrence's outputs, final state and gradients?",
    columns=("error_output", "error_final_state", "error_gradients", "error_bound", "decay_span"),
)


@suite("correctness", section=SECTION)
class Correctness:
    """One case a shape and dtype: forward and backward from a random initial state."""

    name: str
    section: Section

    def cases(self, selection: Selection) -> Iterable[Case]:
        on_cpu = selection.device.type == "cpu"
        return product(
            selection,
            self.name,
            passes=("forward_backward",),
            dtypes=("float32",) if on_cpu else ("float32", "bfloat16"),
            cache="hot",
            shapes=ragged,
        )

    def measure(self, case: Case, context: Context) -> Record:
        verdict, buffers = context.verify(case, with_state=True)
        span = decay_span(context.recurrence(case), buffers.operands)
        bound = context.backend(case).error_bound
        return context.record(
            case, verdict, decay_span=span, error_bound=bound(span, case.dtype) if bound else None
        )


def ragged(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """The least shape at a T that no tile divides, as one sequence where T is long."""
    first = min(shapes, key=lambda shape: shape["T"])
    odd = first.with_(T=first["T"] + 3)
    return (odd.with_(B=1) if odd["T"] > 1024 else odd,)
