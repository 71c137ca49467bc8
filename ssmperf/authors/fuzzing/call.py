"""`ssmperf.fuzz`: a function of this process, or backends by their names, which then run in workers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ssmperf.engine import registry
from ssmperf.engine.execute.request import File, paths_of, select
from ssmperf.engine.plan.run_options import Names
from ssmperf.errors import UsageError

if TYPE_CHECKING:
    from ssmperf.authors.fuzzing.result import FuzzResult

EXAMPLES = 100  # where neither minutes nor examples are named
MISSING = "fuzz needs the package hypothesis: pip install hypothesis"


def fuzz(
    of: str,
    function: Callable[..., Any] | Names,
    *,
    examples: int | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    device: Any = "auto",
    plugin: File | Sequence[File] = (),
    out: File | None = None,
) -> FuzzResult:
    """Judge a function at random configurations: `assert ssmperf.fuzz("scan", fn, examples=200)`.

    Each example is judged as `ssmperf.verify` judges one. Each fault is shrunk to the smallest configuration
    that shows it.

    Args:
        of: a recurrence, or a model, whose operands are then its own.
        function: takes the recurrence's operands, by their names or in their order, and returns (output,
            final_state). It is called in this process, where nothing stops a hang; a crash is named by the
            next call. Or names of registered backends, which run in workers, and as a run in a folder.
        examples, minutes: when to end, whichever is first. By default after 100 examples.
        seed: equal seeds draw equal configurations and values; None draws a seed, which the report names.
        device: "auto", "cpu", "cuda" or "cuda:N".
        plugin: Python files that register backends. Their code is run.
        out: folder of the run, where there are workers; None makes a new one under `runs/`.

    Returns:
        A report that is true if no fault was found; `faults` has them.

    Raises:
        UsageError: a name or number is illegal, hypothesis is not installed, or the backend cannot run here.
    """
    check_installed()
    from ssmperf.authors.fuzzing import fuzz as work

    if minutes is None and examples is None:
        examples = EXAMPLES
    for file in paths_of(plugin):
        registry.load_plugin(file)
    limits: dict[str, Any] = {"minutes": minutes, "examples": examples}
    if callable(function):
        selection, devices = select(models=(of,), device=str(device))
        return work.fuzz_function(of, function, selection, devices[0], seed, **limits)
    asked = work.FuzzRequest.of(of, backends=function, seed=seed, device=str(device), out=out, **limits)
    return work.fuzz(asked)


def check_installed() -> None:
    """Raise UsageError if hypothesis is not installed."""
    if importlib.util.find_spec("hypothesis") is None:
        raise UsageError(MISSING)
