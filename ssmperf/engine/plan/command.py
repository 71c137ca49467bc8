"""The command line that repeats one case."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ssmperf.engine import registry
from ssmperf.engine.cases.case import DECAY, Case, axes


def command_that_repeats(case: Case, options: Sequence[str] = ()) -> str:
    """Compose the command line that repeats a case.

    options: further options of the run, such as the preset, which sets how long a case is measured.
    """
    return shlex.join(["ssmperf", "run", *words_that_select(case), *options])


def words_that_select(case: Case) -> list[str]:
    """List the options that select one case; most of those at their default are left out."""
    words = ["--suite", case.suite, "--models", case.owner, "--backends", case.backend]
    for letter, size in case.shape.items():
        words += ["--axis", f"{letter}={size}"]
    words += ["--device", case.device]
    for name, declared in axes().items():
        value = getattr(case, name)
        # the gates of a float64 case are float64, whatever its gate dtype says
        ignored = name == "gate_dtype" and case.dtype == "float64"
        # a suite with operands of other decay would run these, too
        told = name == "operand_source" and case.model is not None and DECAY in _sources(case.suite)
        changed = value != declared.default and not ignored
        if declared.help and (declared.always_repeated or changed or told):
            words += [declared.option, str(value)]
    return words


def _sources(suite: str) -> tuple[str, ...]:
    """List the sources of operands that a suite declares; none if this process does not know the suite."""
    known = registry.suites().get(suite)
    return () if known is None else known.sources
