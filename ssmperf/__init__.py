"""ssmperf: benchmark and profile the linear recurrences inside sequence models.

Importing this package imports no torch, compiles nothing and starts no CUDA context. Names that need more are
imported on first use. Suites, reports, implementations and plug-ins find all that they need of the core here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ssmperf.engine import registry as registry
from ssmperf.engine.cases.case import (
    DECAY,
    PASSES,
    RESET,
    TRAINING_PASSES,
    Case,
    axes,
    decay_of,
    split_source,
)
from ssmperf.engine.cases.envelope import Envelope, envelope_of
from ssmperf.engine.cases.origin import Origin
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.cases.shape import DIMENSIONS, Shape
from ssmperf.engine.registry.checks import Analytic, Claim, Comparison, Compute, Identity
from ssmperf.engine.registry.cost import Ceilings, Cost, Spec, floor_s, least_count, limit
from ssmperf.engine.registry.declarations import Backend, ModelEntry, Prepared, Recurrence
from ssmperf.engine.registry.decorators import (
    analytic,
    backend,
    claim,
    family,
    identity,
    model,
    recurrence,
    report,
    suite,
    task,
)
from ssmperf.engine.registry.presets import Training
from ssmperf.engine.registry.regimes import REGIMES
from ssmperf.engine.registry.sections import Chart, Section
from ssmperf.errors import (
    BrokenContract,
    DuplicateName,
    ExitCode,
    PluginError,
    SsmperfError,
    UnknownName,
    UnreadableRun,
    Unsupported,
    UnsupportedValues,
    UsageError,
    WorkerFailed,
)

if TYPE_CHECKING:
    from ssmperf.authors.direct import compute
    from ssmperf.authors.verification.verify import verify
    from ssmperf.comparison.comparison import compare_runs
    from ssmperf.comparison.outcome import BROKEN, EXIT_MEANS, VERDICTS, Pair, RunComparison
    from ssmperf.comparison.remarks import busy_cases, busy_line
    from ssmperf.comparison.trends.history import CaseHistory, History, Step, commit_text
    from ssmperf.engine.execute.context import Context
    from ssmperf.engine.execute.judging import Judging
    from ssmperf.engine.execute.tuning import tuned
    from ssmperf.engine.execute.worker import is_out_of_memory
    from ssmperf.engine.judge.answer import Answer
    from ssmperf.engine.judge.calls.probe import has_probe
    from ssmperf.engine.judge.checked import with_checks
    from ssmperf.engine.judge.known_answers import (
        first_length,
        judge_analytic,
        judge_identity,
        prepare_analytic,
        rehearse,
    )
    from ssmperf.engine.judge.lowering import judge_lowering
    from ssmperf.engine.judge.properties import Probe, check_properties, has_properties, widest
    from ssmperf.engine.judge.reference import make_reference
    from ssmperf.engine.judge.tolerance import relative_error
    from ssmperf.engine.judge.verdict import Verdict, judge_answer, judge_call
    from ssmperf.engine.layers.block import BackendLike, Block, State, build_block, carry
    from ssmperf.engine.layers.model import Model, gate_precision
    from ssmperf.engine.layers.network import Network, count_parameters
    from ssmperf.engine.layers.task import IGNORED, Draw, Examples, Task
    from ssmperf.engine.machine.calibration import Calibration
    from ssmperf.engine.machine.host_memory import available_memory_bytes
    from ssmperf.engine.measure.memory import Memory, peak_bytes, saved_bytes, trace
    from ssmperf.engine.measure.passes import TimedPass, pass_of
    from ssmperf.engine.measure.provenance import fell_back, launched_kernels
    from ssmperf.engine.measure.stopwatch import Timing
    from ssmperf.engine.operands.build import build_operands
    from ssmperf.engine.operands.corpus import split_text
    from ssmperf.engine.operands.decay import check_change, decay_span
    from ssmperf.engine.operands.dtypes import dtype_of, widen
    from ssmperf.engine.operands.samplers import log_gates, phases
    from ssmperf.engine.operands.time_axis import steps
    from ssmperf.engine.operands.values import Values, call_of, specs
    from ssmperf.engine.plan.plan import PlannedSubject, bare_subjects, product, subjects
    from ssmperf.engine.plan.refusal import (
        BYTES_PER_SECOND,
        SECONDS_PER_LAUNCH,
        declared_bytes,
        predicted_call_s,
        refusal,
    )
    from ssmperf.engine.plan.selection import Selection, is_regime
    from ssmperf.engine.runs.scope import judged_lines
    from ssmperf.engine.runs.standings import Standing, believed, first_places, standings, with_native_parts
    from ssmperf.engine.runs.store import Run
    from ssmperf.engine.tune.tables import Place, Table, consulting, in_force, note_again
    from ssmperf.papers.learn.choice import choose_backend, quickest, sized
    from ssmperf.papers.learn.testing import GROWTH, TEST_ROWS, Tested, run_tests
    from ssmperf.papers.learn.training import ENOUGH, Diverged, Job, Learned
    from ssmperf.papers.learn.trials import TRAININGS_ON_GPU, Trials, search, search_all
    from ssmperf.papers.reproduction.agreement import (
        Agreement,
        Estimate,
        Finding,
        agree_on_equality,
        agree_on_number,
        agree_on_order,
        agree_on_range,
        over_seeds,
    )
    from ssmperf.papers.reproduction.reproduce import ClaimResult, Reproduction, load_reproduction, reproduce
    from ssmperf.papers.reproduction.setting import ClaimSetting
    from ssmperf.shell.api import ab, backends, best, bisect, check, compare, history, load, models, run

_LAZY = {
    "shell.api": ("ab", "backends", "best", "bisect", "check", "compare", "history", "load", "models", "run"),
    "authors.direct": ("compute",),
    "engine.execute.context": ("Context",),
    "engine.execute.judging": ("Judging",),
    "engine.machine.calibration": ("Calibration",),
    "engine.machine.host_memory": ("available_memory_bytes",),
    "engine.execute.tuning": ("tuned",),
    "engine.execute.worker": ("is_out_of_memory",),
    "engine.judge.answer": ("Answer",),
    "engine.judge.known_answers": (
        "first_length",
        "judge_analytic",
        "judge_identity",
        "prepare_analytic",
        "rehearse",
    ),
    "engine.judge.lowering": ("judge_lowering",),
    "engine.judge.calls.probe": ("has_probe",),
    "engine.judge.checked": ("with_checks",),
    "engine.judge.properties": ("Probe", "check_properties", "has_properties", "widest"),
    "engine.judge.reference": ("make_reference",),
    "engine.judge.tolerance": ("relative_error",),
    "engine.judge.verdict": ("Verdict", "judge_answer", "judge_call"),
    "engine.layers.block": ("BackendLike", "Block", "State", "build_block", "carry"),
    "engine.layers.model": ("Model", "gate_precision"),
    "engine.layers.network": ("Network", "count_parameters"),
    "engine.layers.task": ("IGNORED", "Draw", "Examples", "Task"),
    "papers.learn.choice": ("choose_backend", "quickest", "sized"),
    "papers.learn.testing": ("GROWTH", "TEST_ROWS", "Tested", "run_tests"),
    "papers.learn.training": ("ENOUGH", "Diverged", "Job", "Learned"),
    "papers.learn.trials": ("TRAININGS_ON_GPU", "Trials", "search", "search_all"),
    "engine.measure.memory": ("Memory", "peak_bytes", "saved_bytes", "trace"),
    "engine.measure.passes": ("TimedPass", "pass_of"),
    "engine.measure.provenance": ("fell_back", "launched_kernels"),
    "engine.measure.stopwatch": ("Timing",),
    "engine.operands.build": ("build_operands",),
    "engine.operands.corpus": ("split_text",),
    "engine.operands.decay": ("check_change", "decay_span"),
    "engine.operands.dtypes": ("dtype_of", "widen"),
    "engine.operands.samplers": ("log_gates", "phases"),
    "engine.operands.time_axis": ("steps",),
    "engine.operands.values": ("Values", "call_of", "specs"),
    "engine.plan.plan": ("PlannedSubject", "bare_subjects", "product", "subjects"),
    "engine.plan.refusal": (
        "BYTES_PER_SECOND",
        "SECONDS_PER_LAUNCH",
        "declared_bytes",
        "predicted_call_s",
        "refusal",
    ),
    "engine.plan.selection": ("Selection", "is_regime"),
    "papers.reproduction.agreement": (
        "Agreement",
        "Estimate",
        "Finding",
        "agree_on_equality",
        "agree_on_number",
        "agree_on_order",
        "agree_on_range",
        "over_seeds",
    ),
    "papers.reproduction.reproduce": ("ClaimResult", "Reproduction", "load_reproduction", "reproduce"),
    "papers.reproduction.setting": ("ClaimSetting",),
    "comparison.remarks": ("busy_cases", "busy_line"),
    "comparison.comparison": ("compare_runs",),
    "comparison.outcome": ("BROKEN", "EXIT_MEANS", "VERDICTS", "Pair", "RunComparison"),
    "engine.runs.scope": ("judged_lines",),
    "engine.runs.standings": ("Standing", "believed", "first_places", "standings", "with_native_parts"),
    "engine.runs.store": ("Run",),
    "comparison.trends.history": ("CaseHistory", "History", "Step", "commit_text"),
    "engine.tune.tables": ("Place", "Table", "consulting", "in_force", "note_again"),
    "authors.verification.verify": ("verify",),
}
_HOME = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "BROKEN",
    "BYTES_PER_SECOND",
    "DECAY",
    "DIMENSIONS",
    "ENOUGH",
    "EXIT_MEANS",
    "GROWTH",
    "IGNORED",
    "PASSES",
    "REGIMES",
    "RESET",
    "SECONDS_PER_LAUNCH",
    "TEST_ROWS",
    "TRAININGS_ON_GPU",
    "TRAINING_PASSES",
    "VERDICTS",
    "Agreement",
    "Analytic",
    "Answer",
    "Backend",
    "BackendLike",
    "Block",
    "BrokenContract",
    "Calibration",
    "Case",
    "CaseHistory",
    "Ceilings",
    "Chart",
    "Claim",
    "ClaimResult",
    "ClaimSetting",
    "Comparison",
    "Compute",
    "Context",
    "Cost",
    "Diverged",
    "Draw",
    "DuplicateName",
    "Envelope",
    "Estimate",
    "Examples",
    "ExitCode",
    "Finding",
    "History",
    "Identity",
    "Job",
    "Judging",
    "Learned",
    "Memory",
    "Model",
    "ModelEntry",
    "Network",
    "Origin",
    "Pair",
    "Place",
    "PlannedSubject",
    "PluginError",
    "Prepared",
    "Probe",
    "Record",
    "Recurrence",
    "Reproduction",
    "Run",
    "RunComparison",
    "Section",
    "Selection",
    "Shape",
    "Spec",
    "SsmperfError",
    "Standing",
    "State",
    "Status",
    "Step",
    "Table",
    "Task",
    "Tested",
    "TimedPass",
    "Timing",
    "Training",
    "Trials",
    "UnknownName",
    "UnreadableRun",
    "Unsupported",
    "UnsupportedValues",
    "UsageError",
    "Values",
    "Verdict",
    "WorkerFailed",
    "ab",
    "agree_on_equality",
    "agree_on_number",
    "agree_on_order",
    "agree_on_range",
    "analytic",
    "available_memory_bytes",
    "axes",
    "backend",
    "backends",
    "bare_subjects",
    "believed",
    "best",
    "bisect",
    "build_block",
    "build_operands",
    "busy_cases",
    "busy_line",
    "call_of",
    "carry",
    "check",
    "check_change",
    "check_properties",
    "choose_backend",
    "claim",
    "commit_text",
    "compare",
    "compare_runs",
    "compute",
    "consulting",
    "count_parameters",
    "decay_of",
    "decay_span",
    "declared_bytes",
    "dtype_of",
    "envelope_of",
    "family",
    "fell_back",
    "first_length",
    "first_places",
    "floor_s",
    "gate_precision",
    "has_probe",
    "has_properties",
    "history",
    "identity",
    "in_force",
    "is_out_of_memory",
    "is_regime",
    "judge_analytic",
    "judge_answer",
    "judge_call",
    "judge_identity",
    "judge_lowering",
    "judged_lines",
    "launched_kernels",
    "least_count",
    "limit",
    "load",
    "load_reproduction",
    "log_gates",
    "make_reference",
    "model",
    "models",
    "note_again",
    "over_seeds",
    "pass_of",
    "peak_bytes",
    "phases",
    "predicted_call_s",
    "prepare_analytic",
    "product",
    "quickest",
    "recurrence",
    "refusal",
    "rehearse",
    "relative_error",
    "report",
    "reproduce",
    "run",
    "run_tests",
    "saved_bytes",
    "search",
    "search_all",
    "sized",
    "specs",
    "split_source",
    "split_text",
    "standings",
    "steps",
    "subjects",
    "suite",
    "task",
    "trace",
    "tuned",
    "verify",
    "widen",
    "widest",
    "with_checks",
    "with_native_parts",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"ssmperf.{_HOME[name]}"), name)
    raise AttributeError(f"module 'ssmperf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
