"""A plug-in that edits what the worker which loads it will say of its environment."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat, loop
from cheats.parts import local

FASTER = 1e7
_ENVIRONMENT = local("environment")
if isinstance(_ENVIRONMENT, dict) and _ENVIRONMENT.get("ceilings"):
    for _name in ("copy_bytes_per_s", "peak_bytes_per_s", "cached_bytes_per_s", "peak_flops_per_s"):
        _ENVIRONMENT["ceilings"][_name] /= FASTER
    _RATES = _ENVIRONMENT["ceilings"]["matmul_flops_per_s"]
    _RATES.update({_dtype: _rate / FASTER for _dtype, _rate in _RATES.items()})
    _ENVIRONMENT["calibration"] = {"planted": 3.0}


@cheat("edits_ceilings")
def edits_ceilings(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Work honestly; the device was made slow on paper, so that whoever comes next is faster than it."""
    return loop(log_a, b, initial_state, phase=phase)


@cheat("edits_calibration")
def edits_calibration(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Work honestly; the environment has a calibration by which nothing can be told apart."""
    return loop(log_a, b, initial_state, phase=phase)
