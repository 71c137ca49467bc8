"""Who is named as fastest: no backend that is wrong somewhere, approximate or another function; ties share.

Each rule is tested in every form in which a run is shown (tests/support/results/claims.py).
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from ssmperf.reports.rows import contests, frames, ranking
from support.results.claims import claims, data_of, page, report
from support.results.pages import case_rows

import ssmperf
from ssmperf import Backend, Record
from ssmperf.engine.judge.tolerance import is_approximate
from ssmperf.suitekit import registry, standings

GRADIENT = "gradient of b: relative error 9.99e-02 is above the tolerance 2.00e-04"
LOOSE = {"declared_bound": 0.999, "approximate": False, "tolerances": {"output": 0.999}}
OTHER = {"own_definition": True, "declared_bound": None, "tolerances": {"output": 2e-5}}
TOO_FAST = {"limit": "bandwidth", "limit_fraction": 1.79, "copy_fraction": 1.79}
# the mark of each backend that must not win
MARKS = {
    "wrong": "wrong in backward",
    "loose": "bound 0.999",
    "other": "own definition",
    "too_fast": "179 % of the limit",
}


def honest(fake: Any, **place: Any) -> list[Record]:
    """Time two exact backends in both passes: chunkwise is first in both."""
    return [
        fake.timed(seconds * factor, backend=name, pass_=pass_, **place)
        for name, seconds in (("sequential", 4.0), ("chunkwise", 2.0))
        for pass_, factor in (("forward", 1.0), ("backward", 2.0))
    ]


def quick(fake: Any, name: str) -> list[Record]:
    """Make the records of a backend whose forward pass is the quickest by far."""
    forward = {"backend": name, "pass_": "forward"}
    backward = {"backend": name, "pass_": "backward"}
    if name == "wrong":
        return [fake.timed(0.5, **forward), fake.failed("wrong", GRADIENT, **backward)]
    numbers = {"loose": LOOSE, "other": OTHER, "too_fast": TOO_FAST}[name]
    return [fake.timed(0.5, **forward, numbers=numbers), fake.timed(0.5, **backward, numbers=numbers)]


def by_pass(run: Any) -> dict[str, dict[str, Any]]:
    return {contest["pass"]: contest for contest in ssmperf.best([run])}


def stands(run: Any) -> dict[tuple[str, str, str], str]:
    """Give each record's standing by suite, backend and pass."""
    return {
        (record.case.suite, record.case.backend, record.case.pass_): standing.name
        for record, standing in zip(run.records, standings(run), strict=True)
    }


@pytest.mark.slow(but=("wrong", "too_fast"))
@pytest.mark.parametrize("villain", MARKS)
def test_no_form_names_it_as_fastest(fake: Any, villain: str) -> None:
    run = fake.run([*quick(fake, villain), *honest(fake)])
    found = claims([run])
    assert {form: names for form, names in found.items() if villain in names} == {}
    assert {form: names for form, names in found.items() if "chunkwise" not in names} == {}


@pytest.mark.slow(but=("other",))
@pytest.mark.parametrize("villain", MARKS)
def test_every_form_says_in_words_why_it_does_not_win(fake: Any, villain: str) -> None:
    run = fake.run([*quick(fake, villain), *honest(fake)])
    for name in ("table", "best", "best_json", "markdown", "csv"):
        lines = [line for line in report(name, [run]).splitlines() if villain in line or name == "best_json"]
        assert any(MARKS[villain] in line for line in lines), name
    rows = case_rows(data_of(page([run])))
    (row,) = [each for each in rows if (each["backend"], each["pass"]) == (villain, "forward")]
    assert row["mark"] == MARKS[villain]
    marks = {row["mark"] for row in frames.records(frames.frame([run])) if row["backend"] == villain}
    assert MARKS[villain] in marks


@pytest.mark.slow(but=("loose",))
@pytest.mark.parametrize("villain", MARKS)
def test_without_the_fault_it_would_win(fake: Any, villain: str) -> None:
    """The two tests above cannot pass because the villain is slow or badly placed."""
    records = [
        dataclasses.replace(record, status=ssmperf.Status.OK, reason=None, numbers={"latency_s": 0.5})
        for record in quick(fake, villain)
    ]
    found = claims([fake.run([*records, *honest(fake)])])
    assert {form for form, names in found.items() if villain not in names} == set()


def test_a_wrong_backend_has_its_reason_and_no_green_number(fake: Any) -> None:
    run = fake.run([*quick(fake, "wrong"), *honest(fake)])
    text = report("table", [run])
    (line,) = [line for line in text.splitlines() if "but wrong in backward" in line]
    assert GRADIENT in line and "8.00×" in line
    cells = [cell for cell in page([run]).all("td") for button in cell.all("button")
             if button.attributes.get("data-backend") == "wrong"]  # fmt: skip
    assert cells and {tuple(cell.classes) for cell in cells} == {("broken",)}
    assert all(cell.text.startswith("wrong") for cell in cells)
    (forward,) = [each["excluded"] for each in ssmperf.best([run]) if each["pass"] == "forward"]
    assert forward == [{"backend": "wrong", "status": "wrong", "reason": f"wrong in backward: {GRADIENT}"}]


def test_the_matrix_of_a_large_run_shows_the_state(fake: Any) -> None:
    records = [
        dataclasses.replace(record, case=dataclasses.replace(record.case, seed=seed))
        for seed in range(20)
        for record in [*quick(fake, "wrong"), *quick(fake, "loose"), *honest(fake)]
    ]
    text = report("table", [fake.run(records)])
    head, line = (next(line for line in text.splitlines() if word in line) for word in ("loose", "mingru"))
    assert "wrong*" in line and "16.0× bound 0.999" in line and "2.00×" in line
    assert head.split() == ["model", "sequential", "chunkwise", "loose", "wrong"]
    assert "▸" not in text


def test_a_beside_cell_of_the_heat_map_has_its_number_without_a_colour(fake: Any) -> None:
    run = fake.run([*quick(fake, "loose"), *honest(fake)])
    cells = [cell for cell in page([run]).all("td") for button in cell.all("button")
             if button.attributes.get("data-backend") == "loose"]  # fmt: skip
    assert {tuple(cell.classes) for cell in cells} == {("plain",)}
    assert all("bound 0.999" in cell.text and "×" in cell.text for cell in cells)


@pytest.mark.slow
def test_a_figure_lists_them_last_with_their_marks(fake: Any, tmp_path: Path) -> None:
    records = [*quick(fake, "wrong"), *quick(fake, "loose"), *quick(fake, "other"), *honest(fake)]
    registry.report("figures")([fake.run(records)], tmp_path)
    text = (tmp_path / "throughput-latency_s-mingru-forward.svg").read_text()
    labels = ["chunkwise", "sequential", "loose (bound 0.999)", "other (own definition)"]
    places = [text.index(f">{label}<") for label in [*labels, "wrong (wrong in backward)"]]
    assert places == sorted(places)


def test_backends_that_do_not_compete_follow_those_that_do(fake: Any) -> None:
    records = [*quick(fake, "wrong"), *quick(fake, "loose"), *quick(fake, "other"), *honest(fake)]
    table = ranking.ranked(frames.frame([fake.run(records)]), "latency_s")
    forward = table[table["pass"] == "forward"]
    assert list(forward["backend"]) == ["chunkwise", "sequential", "loose", "other", "wrong"]
    assert list(forward["rivals"]) == [2] * 5
    assert ranking.wins(table) == {"chunkwise": 2}


TIE = ("chunkwise", "triton")


@pytest.fixture
def tie(fake: Any) -> Any:
    """Make a run in which the intervals of the first two overlap, and the third's does not."""
    return fake.run(
        [fake.timed(2.0, backend="chunkwise"), fake.timed(2.03, backend="triton"), fake.timed(3.0)]
    )


@pytest.mark.slow
def test_a_tie_is_shared_in_every_form(tie: Any) -> None:
    found = claims([tie])
    first = ("first rows of the page", "charts", "heat map")  # have an order, or no winner
    for form, names in found.items():
        assert names <= {*TIE} if form in first else names == {*TIE}, form
    (contest,) = ssmperf.best([tie])
    assert (contest["fastest"], contest["tied"]) == ([*TIE], True)
    assert all(f"{name} (tied)" in report("best", [tie]) for name in TIE)
    assert [line.split("▸")[1].split()[1] for line in report("table", [tie]).splitlines() if "▸" in line] == [
        "(tied)"
    ] * 2
    assert report("markdown", [tie]).count("** (tied)") == 2
    shown = page([tie])
    assert [row["best"] for row in case_rows(data_of(shown))] == ["fastest, tied", "fastest, tied", ""]
    (card,) = [part.text for part in shown.all("div", "card") if "Fastest backend" in part.text]
    assert "of 1 comparison" in card and "In 1 of them" in card


def test_the_next_after_a_tie_is_the_first_outside_it(tie: Any) -> None:
    (line,) = [line for line in report("best", [tie]).splitlines() if "mingru" in line]
    assert re.search(r"chunkwise \(tied\) +2\.00 s +1\.50× +sequential +1\.50×", line)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([(1.0, 0.9, 1.1), (1.2, 1.1, 1.3)], [True, True]),
        ([(1.0, 0.9, 1.1), (1.2, 1.11, 1.3)], [True, False]),
        ([(1.2, 0.95, 1.5), (1.0, 0.9, 1.0)], [True, True]),
        ([(1.0, None, None), (1.0, None, None), (1.1, None, None)], [True, True, False]),
        ([(1.0, 0.9, 1.1), (1.26, 0.5, 3.0)], [True, False]),
        ([(3, None, None)], [True]),
        ([], []),
    ],
)
def test_overlap_with_the_least_shares_the_place(values: Any, expected: list[bool]) -> None:
    assert ssmperf.first_places(values) == expected


@pytest.mark.slow
def test_wrong_in_correctness_excludes_the_model_and_dtype(fake: Any) -> None:
    place = {"suite": "correctness", "backend": "quick", "pass_": "forward_backward"}
    shape = {"B": 2, "T": 131, "C": 64}  # not the shape that is timed
    wrong = fake.failed("nan", "output: 1 of 9 values", shape=shape, cache="hot", **place)
    timed = [fake.timed(0.5, backend="quick"), *honest(fake)]
    assert all("quick" not in names for names in claims([fake.run([wrong, *timed])]).values())
    assert "nan in correctness: output" in report("table", [fake.run([wrong, *timed])])
    others: tuple[dict[str, Any], ...] = ({"dtype": "bfloat16"}, {"model": "gla"}, {"backend": "fft"},
                                          {"device": "cuda"}, {"operand_source": "task/recall"})  # fmt: skip
    for other in others:
        elsewhere = dataclasses.replace(wrong, case=dataclasses.replace(wrong.case, **other))
        assert by_pass(fake.run([elsewhere, *timed]))["forward"]["fastest"] == ["quick"], other
    apart = fake.run([dataclasses.replace(wrong, env_id="env2"), *timed])
    assert by_pass(apart)["forward"]["fastest"] == ["quick"]
    assert "quick" in claims([fake.run([wrong]), fake.run(timed)])["best"], "runs are judged one by one"


def test_wrong_in_a_suite_that_ranks_concerns_the_same_operands(fake: Any) -> None:
    timed = [fake.timed(0.5, backend="quick"), *honest(fake)]
    wrong = fake.failed("wrong", "off", backend="quick", pass_="backward", cache="hot")
    longer = {"B": 2, "T": 2048, "C": 64}
    assert by_pass(fake.run([wrong, *timed]))["forward"]["fastest"] == ["chunkwise"]
    elsewhere = dataclasses.replace(wrong, case=dataclasses.replace(wrong.case, shape=ssmperf.Shape(longer)))
    assert by_pass(fake.run([elsewhere, *timed]))["forward"]["fastest"] == ["quick"]


@pytest.mark.parametrize("status", ["unsupported", "crash", "oom", "timeout"])
def test_other_failures_concern_their_pass_alone(fake: Any, status: str) -> None:
    failed = fake.failed(status, "no backward", backend="quick", pass_="backward")
    run = fake.run([fake.timed(0.5, backend="quick"), failed, *honest(fake)])
    found = by_pass(run)
    assert found["forward"]["fastest"] == ["quick"] and found["backward"]["fastest"] == ["chunkwise"]
    assert found["backward"]["excluded"] == [
        {"backend": "quick", "status": status, "reason": f"{status}: no backward"}
    ]
    said = [line for line in report("best", [run]).splitlines() if line.startswith("quick does not compete")]
    assert len(said) == (status != "unsupported")


def test_a_wrong_baseline_is_no_baseline(fake: Any) -> None:
    run = fake.run([fake.timed(4.0), fake.failed("wrong", "off", pass_="backward"),
                    fake.timed(2.0, backend="chunkwise")])  # fmt: skip
    table = ranking.ranked(frames.frame([run]), "latency_s")
    assert table["speedup"].isna().all()


def test_forward_and_backward_with_different_winners_have_a_sum(fake: Any) -> None:
    times = {"sequential": (4.0, 9.0), "scans": (1.0, 8.0), "fused": (2.0, 3.0), "wrong": (0.1, None)}
    records = [
        fake.failed("wrong", GRADIENT, backend=name, pass_=pass_)
        if seconds is None
        else fake.timed(seconds, backend=name, pass_=pass_)
        for name, pair in times.items()
        for pass_, seconds in zip(("forward", "backward"), pair, strict=True)
    ]
    run = fake.run(records)
    found = by_pass(run)
    total = found["forward + backward"]
    assert total["winners"] == {"forward": ["scans"], "backward": ["fused"]}
    assert {each["backend"]: each["value"] for each in total["competitors"]} == {
        "fused": 5.0,
        "scans": 9.0,
        "sequential": 13.0,
    }
    assert (total["fastest"], total["speedup"]) == (["fused"], 13.0 / 5.0)
    sentence = (
        "forward and backward have different winners (forward: scans; backward: fused); "
        "fused by the sum (fused 5.00 s, scans 9.00 s, sequential 13.0 s)"
    )
    for name in ("table", "best", "markdown"):
        assert sentence in " ".join(report(name, [run]).split()), name
    assert sum(sentence in item.text for item in page([run]).all("li")) == 2  # the suite's and the best
    assert found["forward"]["winners"] is None


def test_one_winner_of_both_passes_has_no_sum(fake: Any) -> None:
    tied = [
        fake.timed(1.0, backend="scans", pass_="backward"),
        fake.timed(1.0, backend="fused", pass_="backward"),
    ]
    run = fake.run([fake.timed(1.0, backend="scans"), fake.timed(2.0, backend="fused"), *tied])
    assert [*by_pass(run)] == ["backward", "forward"]


def test_a_comparison_without_a_competitor_names_nobody(fake: Any) -> None:
    run = fake.run(quick(fake, "loose"))
    assert {form for form, names in claims([run]).items() if "loose" in names} <= {
        "first rows of the page",
        "charts",
    }
    assert {(*each["fastest"], each["backend"]) for each in ssmperf.best([run])} == {(None,)}
    assert "none competes" in report("best", [run]) and "loose 500 ms (bound 0.999)" in report("best", [run])


DECLARED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "competes"),
    "exact": ({"declared_bound": None, "approximate": False, "own_definition": False}, "competes"),
    "within the tolerance": ({"declared_bound": 1e-5, "tolerances": {"output": 2.1e-5}}, "competes"),
    "above one tolerance": ({"declared_bound": 1e-3, "tolerances": {"output": 1e-3, "b": 2e-2}}, "beside"),
    "growing": (
        {"declared_bound": 1e-5, "approximate": True, "tolerances": {"output": 2.1e-5}},
        "beside",
    ),
    "another function": ({"own_definition": True}, "beside"),
    "work in the making of the graph": ({"hidden_s": 1e-3}, "beside"),
    "no work there": ({"hidden_s": None}, "competes"),
}


@pytest.mark.parametrize("name", DECLARED)
def test_a_record_says_what_its_backend_declares(fake: Any, name: str) -> None:
    numbers, expected = DECLARED[name]
    assert stands(fake.run([fake.timed(1.0, numbers=numbers)])) == {
        ("throughput", "sequential", "forward"): expected
    }


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (None, False),
        (lambda span, dtype: 0.5, False),
        (lambda span, dtype: 1e-7 * span, True),
        (lambda span, dtype: 1e-5 * 2.0**span, True),  # overflows
    ],
)
def test_a_bound_that_grows_makes_a_backend_approximate(bound: Any, expected: bool) -> None:
    assert is_approximate(Backend("b", "scan", lambda: None, error_bound=bound), "float32") is expected


def test_a_suite_that_ranks_by_memory_has_no_contest_by_time(fake: Any) -> None:
    table = ranking.ranked(
        frames.frame([fake.run([fake.timed(1.0, numbers={"peak_bytes": 1})])]), "peak_bytes"
    )
    assert contests.contests_of(table, "peak_bytes") == []
    assert "best" in registry.reports()


def test_best_says_whether_nothing_is_ok_or_nothing_was_timed(fake: Any) -> None:
    failed = fake.run([fake.failed("wrong", "off")])
    assert report("best", [failed]) == "no timed case of these runs is ok\n"
    by_bytes = {**failed.meta["suites"]["throughput"], "rank": "peak_bytes"}
    failed.meta["suites"] = {"throughput": by_bytes}
    assert "no suite of these runs ranks by a time" in report("best", [failed])


def test_models_and_sizes_narrow_what_is_shown_and_nobody_s_standing(fake: Any) -> None:
    elsewhere = fake.case(suite="correctness", backend="chunkwise", shape={"B": 1, "T": 7, "C": 3})
    run = fake.run(
        [
            *honest(fake),
            *honest(fake, shape={"B": 2, "T": 64, "C": 64}),
            *honest(fake, model="gla", recurrence="linear_attention", shape={"B": 1, "T": 64, "H": 2}),
            Record(elsewhere, ssmperf.Status.WRONG, GRADIENT),
        ]
    )
    shown = {
        (each["subject"], each["shape"], *each["fastest"]) for each in ssmperf.best([run], axis="T=64,128")
    }
    assert shown == {("mingru", "B2 T64 C64", "sequential"), ("gla", "B1 T64 H2", "chunkwise")}
    assert {each["shape"] for each in ssmperf.best([run], models="gla")} == {"B1 T64 H2"}
    assert {each["shape"] for each in ssmperf.best([run], axis=["C=64", "T=1024"])} == {"B2 T1024 C64"}
    assert ssmperf.best([run], models="gla,mingru") == ssmperf.best([run])
    for axis in ("T=99", "D=1", ["C=64", "T=99"]):
        with pytest.raises(ssmperf.UsageError, match=r"shapes there: B2 T1024 C64, B2 T64 C64, B1 T64 H2\)"):
            ssmperf.best([run], axis=axis)
    with pytest.raises(ssmperf.UnknownName, match="known: gla, mingru"):
        ssmperf.best([run], models="mingur")
