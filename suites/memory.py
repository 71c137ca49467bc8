"""How much memory does each backend take, how does it grow with the length, and what sizes are too large?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ssmperf import Case, Record, Selection, Shape
from ssmperf.suitekit import (
    Chart,
    Context,
    Section,
    Training,
    predicted_call_s,
    product,
    registry,
    subjects,
    suite,
)

from .memory_numbers import PASSES, compiles_per_shape, is_slow, measure_memory

SECTION = Section(
    title="Memory",
    question="How much memory does each backend take beyond its operands, and how does that grow with T?",
    columns=(
        "peak_bytes",
        "peak_over_declared",
        "largest_T",
        "declared_largest_T",
        "predicted_largest_T",
        "largest_B",
        "declared_largest_B",
        "predicted_largest_B",
        "growth_exponent",
        "saved_bytes",
        "state_bytes",
        "left_bytes",
        "graph_bytes",
        "forward_peak_bytes",
        "parameter_bytes",
        "declared_peak_bytes",
    ),
    rank="peak_bytes",
    charts=(
        Chart(x="lengths", y="peaks_bytes", title="Peak memory against length"),
        Chart(x="lengths", y="declared_peaks_bytes", title="Declared peak memory against length"),
    ),
)

# Costs of a case on an H200, by records: predicted calls at its T (those of loops over time take two to three
# times longer); the two searches, which often end early; compilation at another length.
CALLS, SLOW_CALLS = 8, 7
SEARCHES_S = 0.7
COMPILE_S = 2.8


@suite(
    "memory",
    section=SECTION,
    fresh_process=("cpu",),
    levels=("op", "block"),
    same_operands=True,
    compiles_ahead=True,
    case_s={"cpu": 0.2, "cuda": 0.5},
)
class MemoryUse:
    """One case per shape, dtype and pass; see `memory_numbers.measure_memory` for its numbers.

    On a GPU and at smoke, a model's shape of the largest T stands for all: it is measured at shorter lengths,
    too. By default, only the widest pass (forward and backward, or forward for a backend without backward) is
    measured, and on a GPU only in bfloat16: name other passes and dtypes to have them. Members of families
    are measured only where they are named. If all models are measured, those whose operands have the same
    specs are measured once, and shown "as" the first of them: what a call allocates depends on the shapes
    and dtypes of its operands, not on their values. A case whose call is predicted to take long is measured
    at two lengths instead of three, and its largest sizes are predicted but not tried. Nor are those of a
    backend that is compiled anew for each shape, unless backends or sizes are named.

    At level block, a model's whole layer is measured, with the gradients of all its parameters.

    On a CPU, each case has a process of its own, which is a cheap fork. On a GPU, where starting a process
    takes longer than a case, cases share one: the numbers are differences of bytes that were asked of the
    caching allocator, so what is allocated before a call cancels; and a case that leaves memory behind, or
    whose search ended in an error, is the last of its process.
    """

    name: str
    section: Section
    judged_sizes = ("T",)  # it judges the shortest length alone
    case_s: Mapping[str, float]

    def cases(self, selection: Selection) -> Iterable[Case]:
        on_cpu = selection.device.type == "cpu"
        return (
            case
            for case in product(
                selection,
                self.name,
                passes=PASSES,
                dtypes=("float32",) if on_cpu else ("bfloat16",),
                cache="hot",
                shapes=longest if selection.scale.thinned or not on_cpu else tuple,
                about=subjects(selection, families=False),
                peers=selection.peers,
            )
            if selection.passes or case.pass_ == _widest_pass(case)
        )

    def forecast_s(self, case: Case, training: Training) -> float | None:
        """Forecast the seconds of a case on a GPU; None on a CPU, where the usual forecast holds."""
        if case.device == "cpu":
            return None
        slow = is_slow(case)
        calls_s = (SLOW_CALLS if slow else CALLS) * predicted_call_s(case)
        if compiles_per_shape(case):
            return self.case_s[case.device] + calls_s + COMPILE_S
        return self.case_s[case.device] + calls_s + (0.0 if slow else SEARCHES_S)

    def measure(self, case: Case, context: Context) -> Record:
        return measure_memory(case, context)


def longest(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Take the shape of the largest T alone: it is measured at shorter lengths too."""
    return (max(shapes, key=lambda shape: shape["T"]),)


def _widest_pass(case: Case) -> str:
    """Choose forward and backward, or forward alone for a backend that has no backward pass."""
    owner = case.model or case.recurrence
    if registry.import_problem(owner, case.backend):
        return PASSES[0]
    passes = registry.backend(owner, case.backend).passes
    return next((pass_ for pass_ in PASSES if pass_ in passes), PASSES[0])
