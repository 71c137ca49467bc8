"""ssmperf: benchmarks and profiles the linear recurrences inside sequence models.

Importing it imports no torch, compiles nothing and starts no CUDA context; the functions that need
more import it when they are called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ssmperf.case import Case, Shape
from ssmperf.checks import analytic, identity
from ssmperf.cost import Cost, Spec
from ssmperf.errors import (
    DuplicateName,
    PluginError,
    SsmperfError,
    UnknownName,
    UnreadableRun,
    Unsupported,
    UsageError,
)
from ssmperf.native import Prepared
from ssmperf.record import Record, Status
from ssmperf.recurrence import (
    Backend,
    ModelEntry,
    Recurrence,
    backend,
    family,
    model,
    recurrence,
)
from ssmperf.report import report
from ssmperf.suite import Chart, Section, suite

if TYPE_CHECKING:
    from ssmperf.api import backends, load, models, run
    from ssmperf.block import Block, build_block
    from ssmperf.direct import compute
    from ssmperf.layer import Model, gate_precision
    from ssmperf.network import Network, count_parameters
    from ssmperf.store import Run

_LAZY = {
    "run": "api",
    "load": "api",
    "compute": "direct",
    "models": "api",
    "backends": "api",
    "Run": "store",
    "Block": "block",
    "build_block": "block",
    "Model": "layer",
    "gate_precision": "layer",
    "Network": "network",
    "count_parameters": "network",
}

__all__ = [
    "Backend",
    "Block",
    "Case",
    "Chart",
    "Cost",
    "DuplicateName",
    "Model",
    "ModelEntry",
    "Network",
    "PluginError",
    "Prepared",
    "Record",
    "Recurrence",
    "Run",
    "Section",
    "Shape",
    "Spec",
    "SsmperfError",
    "Status",
    "UnknownName",
    "UnreadableRun",
    "Unsupported",
    "UsageError",
    "analytic",
    "backend",
    "backends",
    "build_block",
    "compute",
    "count_parameters",
    "family",
    "gate_precision",
    "identity",
    "load",
    "model",
    "models",
    "recurrence",
    "report",
    "run",
    "suite",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"ssmperf.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'ssmperf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
