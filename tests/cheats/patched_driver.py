"""A plug-in that changes the process which loads it to make a plan, and leaves workers alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat, loop

if "ssmperf.engine.execute.worker" not in sys.modules:

    def _patch_driver() -> None:
        """Divide the time in each record of one backend as it is read, and stop the driver's clock."""
        from ssmperf import Record
        from ssmperf.engine.execute import lane

        lane.too_fast = lambda *times: None

        honest = Record.from_json.__func__

        def from_json(cls: Any, data: dict[str, Any]) -> Any:
            if data.get("backend") == "cheat_patched_driver" and data.get("latency_s"):
                data = {**data, "latency_s": data["latency_s"] / 10}
            return honest(cls, data)

        Record.from_json = classmethod(from_json)

    _patch_driver()


@cheat("patched_driver")
def patched_driver(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Do the honest work in the worker; the time was changed where the driver reads records."""
    return loop(log_a, b, initial_state, phase=phase)
