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


def test_json_has_it_behind_the_contests(run: Any) -> None:
    first, *found = ssmperf.best([run], T=4096)
    assert first["backend"] == "sequential" and "memory_of" not in first
    assert len(found) == 4 and found[-1]["memory_of"] == "mingru at T = 4,096 (B4 C64), float32"
    assert (found[-1]["use"], found[-1]["bytes"], found[-1]["forecast"]) == ("training", 2.0**22, "")


def test_a_workload_says_what_training_and_prefill_need(run: Any, fake: Any) -> None:
    """The lengths are those of its phases; other sizes, and packed sequences, are not its own."""
    sizes = SIZES | {"T": 131_072}
    forward, backward = (fake.timed(1.0, shape=sizes, pass_=pass_) for pass_ in ("forward", "backward"))
    packed = fake.timed(1.0, shape=SIZES, packing="4x1024")
    other = fake.timed(1.0, shape=SIZES | {"C": 128})
    timed = fake.run([forward, backward, packed, other])
    ids = {"train": [forward, backward], "prefill": [forward, packed, other]}
    timed.meta["workloads"] = {
        "small": {phase: [each.case.id for each in records] for phase, records in ids.items()}
    }
    found = ssmperf.best([timed, run], workload="small")
    told = [line for line in str(found).splitlines() if line.startswith("memory of")]
    assert [line.partition(":")[0] for line in told] == [
        f"memory of mingru at T = 131,072 (B4 C64), float32, {use}, beyond the operands"
        for use in ("prefill", "training")
    ]
    assert all("128 MiB (forecast from T = 4,096 by the power 1.00 of T)" in line for line in told)
    assert "forecast" in found._repr_html_()
    uses = [(each["use"], each["backend"]) for each in found if "memory_of" in each]
    assert uses == [(use, name) for use in ("prefill", "training") for name in ("chunkwise", "sequential")]
    (only,) = {each["use"] for each in ssmperf.best([timed, run], workload="small:train")
               if "memory_of" in each}  # fmt: skip
    assert only == "training"


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
