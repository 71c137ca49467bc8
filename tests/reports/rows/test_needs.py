"""`best` at a length says what calls need there: measured by the memory suite, or forecast by growth."""

from __future__ import annotations

from typing import Any

import pytest
from support.results.claims import report

import ssmperf
from ssmperf.suitekit import registry

GROWTH = {"lengths": [1024, 2048, 4096], "peaks_bytes": [2**20, 2**21, 2**22], "growth_exponent": 1.0}
SIZES = {"B": 4, "T": 4096, "C": 64}


@pytest.fixture
def run(fake: Any) -> Any:
    records = [
        fake.timed(1.0, suite="memory", shape=SIZES, pass_=pass_, backend=backend,
                   numbers=GROWTH | {"peak_bytes": 2**22, "capacity_bytes": 2**26})
        for pass_ in ("forward_backward", "forward") for backend in ("chunkwise", "sequential")
    ]  # fmt: skip
    found = fake.run([*records, fake.timed(1.0, shape=SIZES)])
    found.meta["suites"]["memory"] = registry.suite("memory").section.to_json()
    return found


def test_a_length_that_nobody_ran_is_forecast(run: Any) -> None:
    lines = str(ssmperf.best([run], T=131_072)).splitlines()
    forecast = (
        "128 MiB (forecast from T = 4,096 by the power 1.00 of T), more than the 64.0 MiB that were free"
    )
    for use, line in zip(("prefill", "training"), lines, strict=True):
        place = f"memory of mingru at T = 131,072 (B4 C64), float32, {use}, beyond the operands"
        assert line == f"{place}: chunkwise {forecast}; sequential {forecast}; Example CPU 9000"
    assert "forecast" in ssmperf.best([run], T=131_072)._repr_html_()


def test_a_measured_length_says_so(run: Any) -> None:
    (line,) = str(ssmperf.best([run], T=2048, pass_="training")).splitlines()
    assert "training, beyond the operands: chunkwise 2.00 MiB (measured); sequential 2.00 MiB" in line
    both = str(ssmperf.best([run], models="mingru", T=4096)).splitlines()
    assert "peak memory not measured" in both[0] and sum("4.00 MiB (measured)" in line for line in both) == 2


def test_what_cannot_be_forecast_is_refused(run: Any, fake: Any) -> None:
    for sizes in ({"C": 65, "T": 131_072}, {"C": 65}):
        with pytest.raises(ssmperf.UsageError):
            str(ssmperf.best([run], **sizes))
    with pytest.raises(ssmperf.UsageError):
        str(ssmperf.best([fake.run([fake.timed(1.0)])], T=131_072))


def test_the_table_explains_its_words(run: Any) -> None:
    text = report("table", [run])
    assert "power of T: the p of peak" in text and "predicted: " not in text
