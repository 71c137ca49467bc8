"""Where another backend takes over: crossings are found where they are; noise and other work make none."""

from __future__ import annotations

from typing import Any

import pytest
from ssmperf.reports.rows import frames, ranking
from ssmperf.reports.rows.crossings import Crossing, crossings

LENGTHS = (64, 256, 1024, 4096)


def curve(fake: Any, seconds: dict[str, Any], *, tokens: int | None = 8192, **changes: Any) -> list[Any]:
    """Time backends by functions of T."""
    return [
        fake.timed(
            time(T), backend=name, shape={"B": tokens // T if tokens else 2, "T": T, "C": 8}, **changes
        )
        for name, time in seconds.items()
        for T in LENGTHS
    ]


def found(fake: Any, records: list[Any]) -> list[Crossing]:
    rows = frames.frame([fake.run(records)])
    return crossings(ranking.ranked(rows, "latency_s"), "latency_s")


@pytest.mark.parametrize("tokens", [8192, None])
def test_a_linear_time_overtakes_a_quadratic_one_where_they_cross(fake: Any, tokens: int | None) -> None:
    """They are equal at T = 500."""
    (crossing,) = found(
        fake, curve(fake, {"chunkwise": lambda T: T * 500.0, "surrogate": lambda T: T * T}, tokens=tokens)
    )
    assert (crossing.before, crossing.after) == ("surrogate", "chunkwise")
    assert (crossing.shortest, crossing.longest) == (256, 1024)
    assert crossing.at == pytest.approx(500)
    held = "8,192 tokens" if tokens else "B = 2"
    assert crossing.statement == (
        "mingru C8 float32 forward: chunkwise overtakes surrogate at about T = 500 "
        f"(measured at 256 and 1,024, {held})"
    )


def test_a_tie_at_the_crossing_does_not_hide_it(fake: Any) -> None:
    """They are equal at T = 256, one of the lengths, as far as their intervals tell."""
    times = {"chunkwise": lambda T: T * 257.0, "surrogate": lambda T: T * T}
    (crossing,) = found(fake, curve(fake, times))
    assert (crossing.before, crossing.after) == ("surrogate", "chunkwise")
    assert (crossing.shortest, crossing.longest) == (64, 1024)
    assert crossing.at == pytest.approx(257)
    again = {"chunkwise": lambda T: 1.0, "surrogate": lambda T: {64: 0.5, 256: 1.0, 1024: 0.5}.get(T, 1.0)}
    assert found(fake, curve(fake, again)) == []


def test_noise_and_what_cannot_win_make_no_crossing(fake: Any) -> None:
    level = {"blelloch": lambda T: 1.0, "triton": lambda T: 1.0 + 0.01 * (-1) ** LENGTHS.index(T)}
    assert found(fake, curve(fake, level)) == []
    wrong = fake.failed(
        "wrong", "it is", backend="surrogate", shape={"B": 128, "T": 64, "C": 8}, pass_="backward"
    )
    crossed = curve(fake, {"chunkwise": lambda T: T * 500.0, "surrogate": lambda T: T * T})
    assert [c.before for c in found(fake, crossed)] == ["surrogate"]
    rows = [
        record for record in crossed if record.case.shape["T"] != 64 or record.case.backend != "surrogate"
    ]
    assert found(fake, [*rows, wrong])[0].shortest == 256


def test_other_work_is_another_curve(fake: Any) -> None:
    """Half of the backends at one width, the others at another: nothing to compare."""
    narrow = curve(fake, {"chunkwise": lambda T: T * 500.0})
    wide = curve(fake, {"surrogate": lambda T: T * T}, dtype="bfloat16")
    assert found(fake, [*narrow, *wide]) == []
    rows = frames.frame([fake.run(narrow)])
    assert crossings(ranking.ranked(rows, None), None) == []
