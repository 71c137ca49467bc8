"""A backend that declares no dtypes is told so where its float64 is float32's, or raises."""

from __future__ import annotations

from pathlib import Path

from support.processes.in_process import records_of

from ssmperf import Status

PLUGIN = """
import ssmperf

DEFINITION = ssmperf.engine.registry.recurrence("scan").definition


@ssmperf.backend("scan", name="float32_inside", gates=("data",))
def float32_inside(log_a, b, initial_state=None, *, phase=None):
    state = None if initial_state is None else initial_state.float()
    return tuple(each.to(b.dtype) for each in DEFINITION(log_a.float(), b.float(), state))


@ssmperf.backend("scan", name="refusing_float64", gates=("data",))
def refusing_float64(log_a, b, initial_state=None, *, phase=None):
    if b.element_size() == 8:
        raise TypeError("no such pointer")
    return DEFINITION(log_a, b, initial_state)
"""


def test_float64_that_is_not_declared_away_is_named(own_registrations: None, tmp_path: Path) -> None:
    file = tmp_path / "plugin.py"
    file.write_text(PLUGIN)
    names = "float32_inside,refusing_float64"
    found = records_of("correctness", file, models="scan", backends=names, regime="s4d", axis=["T=9"])
    inside, refusing = (record for record in found if record.status is not Status.UNSUPPORTED)
    assert inside.status is Status.WRONG
    assert inside.reason == "lengths: accurate to float32 only: declare dtypes (float64)"
    assert refusing.status is Status.CRASH
    assert "no such pointer (in float64, in which properties are checked: if it takes none" in str(
        refusing.reason
    )
