"""Costs of cases: their sum by suite, the most expensive ones first, and nothing if no case has a time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ssmperf.reports.pages.html import html
from ssmperf.reports.rows import costs, frames


def table(fake: Any, spent: list[float | None], **changes: Any) -> Any:
    records = [
        fake.timed(1.0, backend=f"b{place}", numbers={} if each is None else {"spent_s": each}, **changes)
        for place, each in enumerate(spent)
    ]
    return frames.frame([fake.run(records)])


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(spent=st.lists(st.one_of(st.none(), st.integers(1, 90)), min_size=1, max_size=20))
def test_the_most_expensive_cases_come_first_and_none_beyond_them_costs_more(
    fake: Any, spent: list[int | None]
) -> None:
    known = sorted((each for each in spent if each is not None), reverse=True)
    found = costs.costs(table(fake, [*spent]))
    if not known:
        assert found is None
        return
    assert found is not None
    assert [line[2] for line in found["most"]] == [costs.duration(each) for each in known[: costs.MOST_CASES]]
    assert found["cases"] == len(known) and found["total"] == costs.duration(sum(known))
    assert [name for name, *_ in found["suites"]] == ["throughput"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12.3 ms"),
        (4.2, "4.20 s"),
        (99.4, "99.4 s"),
        (100, "2 min"),
        (5940, "99 min"),
        (11160, "3.1 h"),
    ],
)
def test_a_duration_has_the_unit_that_a_person_takes(seconds: float, text: str) -> None:
    assert costs.duration(seconds) == text


def test_the_page_names_the_suite_that_took_most_and_failed_cases(fake: Any) -> None:
    records = [fake.timed(1.0, numbers={"spent_s": 3.0})]
    failed = fake.failed("timeout", "no answer", suite="correctness", backend="blelloch")
    records.append(type(failed)(failed.case, failed.status, failed.reason, "env1", {"spent_s": 1.0}))
    text = html([fake.run(records)])
    assert text is not None
    part = text[text.index('id="costs"') : text.index('id="environment"')]
    assert part.index("throughput 3.00 s (75 %)") < part.index("correctness 1.00 s (25 %)")
    assert part.index("throughput mingru sequential") < part.index("correctness mingru blelloch")
    without = html([fake.run([fake.timed(1.0)])])
    assert without is not None and 'id="costs"' not in without
