"""Read a command that repeats a case as the command line would."""

from __future__ import annotations

import shlex
from typing import Any

from ssmperf.engine.cases.case import Case
from ssmperf.engine.execute.request import select
from ssmperf.engine.plan.plan import make_plan

OPTIONS = {
    "--models": "models",
    "--backends": "backends",
    "--preset": "preset",
    "--axis": "axis",
    "--regime": "regime",
    "--dtype": "dtype",
    "--gate-dtype": "gate_dtype",
    "--layout": "layout",
    "--level": "level",
    "--timing": "timing",
    "--pass": "pass_",
    "--device": "device",
    "--seed": "seed",
}


def repeated(command: str) -> list[Case]:
    """List the cases that a command plans."""
    suites, choices = chosen(command)
    selection, _ = select(**choices)
    return [item.case for item in make_plan(selection, suites).cases]


def chosen(command: str) -> tuple[list[str], dict[str, Any]]:
    """Read the suites of a command and its other choices, but for plug-ins."""
    words = shlex.split(command)
    assert words[:3] == ["ssmperf", "run", "--suite"]
    choices: dict[str, Any] = {}
    axes: list[str] = []
    for option, value in zip(words[4::2], words[5::2], strict=True):
        if option == "--axis":
            axes.append(value)
        elif option != "--plugin":
            choices[OPTIONS[option]] = int(value) if option == "--seed" else value
    return words[3].split(","), {**choices, "axis": axes}
