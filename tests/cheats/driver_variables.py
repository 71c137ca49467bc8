"""A plug-in that changes what all later children of the process that loads it start with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import LEFT_BY_DRIVER, Result, cheat, loop

if "ssmperf.engine.execute.worker" not in sys.modules:
    os.environ[LEFT_BY_DRIVER] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(["/" + LEFT_BY_DRIVER, os.environ.get("PYTHONPATH", "")])


@cheat("variables_of_the_driver")
def variables_of_the_driver(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Work honestly; the import has set variables with which every later process starts."""
    return loop(log_a, b, initial_state, phase=phase)


@cheat("niceness_of_the_driver")
def niceness_of_the_driver(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Work honestly; the import has lowered the priority of every later process."""
    return loop(log_a, b, initial_state, phase=phase)


if "ssmperf.engine.execute.worker" not in sys.modules:
    os.nice(7)
