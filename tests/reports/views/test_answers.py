"""The sentences about a workload, where backends share the first place and where they do not."""

from __future__ import annotations

from typing import Any

import pytest
from ssmperf.reports.rows import frames, ranking
from ssmperf.reports.rows.answers import PhaseAnswer, answers
from ssmperf.reports.views.texts.answers import brief, cards, lines

PACKED = {"packing": "600,424", "shape": {"B": 1, "T": 1024, "C": 64}}
PLAIN = {"shape": {"B": 1, "T": 2048, "C": 64}}


def found_in(fake: Any, *forms: tuple[dict[str, Any], dict[str, float]]) -> list[PhaseAnswer]:
    """Answer about the prefill of one workload by a run, in which its forms have a time per backend."""
    records = [
        fake.timed(seconds, backend=name, **form) for form, times in forms for name, seconds in times.items()
    ]
    phases = {"prefill": [record.case.id for record in records]}
    run = fake.run(records, meta={"workloads": {"layer": phases}})
    return answers([run], ranking.parts([run], frames.frame([run])))


def sentences(fake: Any, *forms: tuple[dict[str, Any], dict[str, float]]) -> list[tuple[str, str]]:
    """Say what a run answers, as `found_in` does."""
    return lines(found_in(fake, *forms))


def test_the_head_of_a_workload_says_each_fact_once(fake: Any) -> None:
    found = found_in(fake, (PLAIN, {"chunkwise": 2.0}), (PACKED, {"chunkwise": 1.0}))
    for answer, commit in zip(found, ("aaaaaaaaaa", "bbbbbbbbbb"), strict=True):
        answer.contest.update(commit=commit, date="2026-01-02T12:00:00")
    head = str(cards(found)[0])
    assert head.endswith(", 2026-01-02, commit aaaaaaaaaa, commit bbbbbbbbbb)")
    assert head.count(found[0].contest["dtype"]) == 1


def test_backends_with_overlapping_intervals_share_the_first_place(fake: Any) -> None:
    ((label, text),) = sentences(fake, (PLAIN, {"sequential": 4.0, "blelloch": 2.01, "chunkwise": 2.0}))
    assert label == "prefill"
    assert text.startswith("chunkwise and blelloch 2.00 s (tied), 2.00× ahead of sequential at B 1, T 2,048;")


def test_a_tie_of_all_is_ahead_of_none(fake: Any) -> None:
    ((_, text),) = sentences(fake, (PLAIN, {"blelloch": 2.01, "chunkwise": 2.0}))
    assert text.startswith("chunkwise and blelloch 2.00 s (tied) at B 1, T 2,048;")


def test_one_winner_is_ahead_of_the_next(fake: Any) -> None:
    ((_, text),) = sentences(fake, (PLAIN, {"blelloch": 3.0, "chunkwise": 2.0}))
    assert text.startswith("chunkwise 2.00 s, 1.50× ahead of blelloch at B 1, T 2,048;")


@pytest.mark.parametrize(("next_", "by"), [(2.004, "under 1 %"), (2.03, "1.01×"), (3.0, "1.50×")])
def test_a_small_lead_is_no_ratio(next_: float, by: str) -> None:
    competitors = [{"backend": "fla", "value": 2.0}, {"backend": "flash_qla", "value": next_}]
    contest = {"backend": "fla", "fastest": ["fla"], "field": "latency_s", "value": 2.0}
    assert brief({**contest, "competitors": competitors}) == f"fla 2.00 s, {by} ahead of flash_qla"


def test_a_form_with_the_same_tie_is_the_same_whoever_is_listed_first(fake: Any) -> None:
    ((_, text),) = sentences(
        fake, (PLAIN, {"blelloch": 2.01, "chunkwise": 2.0}), (PACKED, {"blelloch": 1.0, "chunkwise": 1.01})
    )
    assert text.endswith("; the same at packed 600,424")
