"""The command line that repeats one case."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ssmperf.case import Case


def repeating(
    case: Case, plugins: Sequence[str], preset: str | None = None, options: Sequence[str] = ()
) -> str:
    """The one command that repeats a case; options at their default are left out.

    plugins: the plug-in files of its run. preset: the preset that the run was given, if any: it sets how
    long a case is measured. options: further ones of the run.
    """
    words = ["ssmperf", "run", "--suite", case.suite]
    words += ["--models", case.model or case.recurrence]
    words += ["--backends", case.backend]
    words += ["--preset", preset] if preset else []
    words += ["--regime", case.operand_source] if case.operand_source != "model" else []
    for letter, size in case.shape.items():
        words += ["--axis", f"{letter}={size}"]
    words += ["--dtype", case.dtype]
    gates_follow = case.dtype == "float64"  # gates of float64 cases are float64 whatever is asked
    choices = [
        ("--gate-dtype", case.gate_dtype, case.gate_dtype if gates_follow else "float32"),
        ("--layout", case.layout, "channels_last"),
        ("--level", case.level, "op"),
        ("--timing", case.timing, "native"),
    ]
    for option, value, default in choices:
        words += [option, value] if value != default else []
    words += ["--pass", case.pass_, "--device", case.device, "--seed", str(case.seed)]
    for plugin in plugins:
        words += ["--plugin", plugin]
    return shlex.join([*words, *options])
