"""Read a command that repeats a case as the command line would."""

from __future__ import annotations

import shlex

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
    words = shlex.split(command)
    assert words[:3] == ["ssmperf", "run", "--suite"]
    choices: dict[str, object] = {}
    axes: list[str] = []
    for option, value in zip(words[4::2], words[5::2], strict=True):
        if option == "--axis":
            axes.append(value)
        elif option != "--plugin":
            choices[OPTIONS[option]] = int(value) if option == "--seed" else value
    selection, _ = select(axis=axes, **choices)  # type: ignore[arg-type]
    return [item.case for item in make_plan(selection, [words[3]]).cases]
