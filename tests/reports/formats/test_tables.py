"""The terminal table: order, marks, thresholds, and no colour in a pipe."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ssmperf.reports.formats import exports, failures, lengths, tables
from support.results.pages import Page

from ssmperf import Record, Status
from ssmperf.suitekit import Chart, Section, registry


def lines_with(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if re.search(rf"\b{word}\b", line)]


def test_rows_are_sorted_by_time_and_the_fastest_is_marked(fake: Any) -> None:
    records = [
        fake.timed(3e-3), fake.timed(1e-3, backend="triton"), fake.timed(2e-3, backend="blelloch"),
        fake.failed("wrong", "gradient of b is off", backend="fft"),
    ]  # fmt: skip
    text = tables.table([fake.run(records)])
    assert text is not None
    places = [text.rindex(name) for name in ("triton", "blelloch", "sequential", "fft")]
    assert places == sorted(places)
    assert [line for line in text.splitlines() if "▸" in line] == lines_with(text, "triton")
    assert "3.00×" in lines_with(text, "triton")[0] and "±2.0 %" in lines_with(text, "triton")[0]
    assert "wrong: gradient of b is off" in lines_with(text, "fft")[0]
    assert text.rstrip().endswith("4 cases: 3 ok · 1 wrong")


def test_a_heading_says_which_dtype_is_that_of_the_gates(fake: Any) -> None:
    records = [fake.timed(1.0, gate_dtype=dtype) for dtype in ("float32", "bfloat16")]
    text = str(tables.table([fake.run(records)]))
    assert "gate dtype float32" in text and "gate dtype bfloat16" in text


def test_a_suite_that_ranks_nothing_shows_its_own_columns_unless_they_are_errors(fake: Any) -> None:
    numbers = {"error_output": 1e-7, "errors": {"output": 1e-7}, "tolerances": {"output": 1e-5}}
    run = fake.run([fake.timed(1.0, numbers={**numbers, "same_state": False})])
    for columns, shown in ((("same_state",), True), (("error_output", "same_state"), False)):
        run.meta["suites"] = {"throughput": Section(title="Own", question="?", columns=columns).to_json()}
        text = str(tables.table([run]))
        assert ("same state" in text) is shown
        assert ("the worst error over its tolerance" in text) is not shown


def test_a_single_candidate_is_no_winner(fake: Any) -> None:
    assert "▸" not in str(tables.table([fake.run([fake.timed(1.0)])]))


def test_what_did_not_settle_says_so(fake: Any) -> None:
    text = str(tables.table([fake.run([fake.timed(1e-3, numbers={"converged": False})])]))
    assert "~1.00 ms" in text and "did not settle" in text


def test_a_host_that_is_slower_than_the_device_says_so(fake: Any) -> None:
    records = [
        fake.timed(60e-6, numbers={"issue_s": 400e-6}),
        fake.timed(90e-6, backend="triton", numbers={"issue_s": 80e-6}),
        fake.timed(95e-6, backend="blelloch"),
    ]
    text = str(tables.table([fake.run(records)]))
    assert [line for line in text.splitlines() if "host 400 µs" in line] == lines_with(text, "60.0 µs")
    assert text.count("host 400 µs") == 1 and "host 80" not in text
    assert "longer to issue the call than the device to run it" in text
    places = [
        line.index(time) for time in ("60.0 µs", "90.0 µs", "95.0 µs") for line in lines_with(text, time)
    ]
    assert len(places) == 3 and len(set(places)) == 1  # the numbers stay aligned
    assert "host" not in str(tables.table([fake.run(records[1:])]))


@pytest.mark.slow
def test_a_large_run_becomes_a_matrix_with_a_hint(fake: Any) -> None:
    run = fake.plausible(models=("gla", "longhorn", "rwkv6", "s5"), samples=2)
    text = str(tables.table([run]))
    assert len(text.splitlines()) < 60 < len(run.records)
    assert "--format csv" in text
    for name in (*{record.case.model for record in run.records}, "wrong", "nan", "unsupported"):
        assert name in text


def test_correctness_is_a_matrix_of_error_over_tolerance(fake: Any) -> None:
    numbers = {"latency_s": None, "errors": {"output": 3e-6}, "tolerances": {"output": 4e-6}}
    run = fake.run([fake.timed(1.0, suite="correctness", numbers=numbers)])
    assert "0.75" in lines_with(str(tables.table([run])), "mingru")[0]


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(fake: Any, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(tables, "PIPE_WIDTH", width)
    small = fake.plausible(models=("gla", "rwkv6"), lengths=(1024,), passes=("forward",), samples=2)
    many = fake.plausible(models=("gla", "linear_transformer", "s5"), samples=2)
    for run in (small, many):
        text = str(tables.table([run]))
        table_lines = [line for line in text.splitlines() if re.search(r"×|ms|µs", line)]
        assert table_lines and max(map(len, table_lines)) <= width
        assert "sequential" in text and "…" not in text


def test_a_file_gets_no_colour_codes(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert tables.table([fake.run([fake.timed(1.0)])], tmp_path / "table.txt") is None
    assert "\x1b" not in (tmp_path / "table.txt").read_text()


def test_a_forced_terminal_gets_colours(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in str(tables.table([fake.run([fake.timed(1.0)])]))


def test_hostile_text_is_shown_and_does_nothing(fake: Any) -> None:
    records = [
        fake.timed(1.0, model="[red]m[/red]", backend="\x1b[2Jb"),
        fake.failed("crash", "[/] \x1b]0;title\x07 boom", model="[red]m[/red]"),
    ]
    text = str(tables.table([fake.run(records)]))
    assert "[red]m[/red]" in text and "boom" in text and "\x1b" not in text and "\x07" not in text


def test_an_empty_run_has_a_summary(fake: Any) -> None:
    assert str(tables.table([fake.run([])])).strip() == "0 cases"


def test_formats_are_registered() -> None:
    assert {"table", "markdown", "csv", "parquet", "json", "html", "figures"} <= set(registry.reports())


def test_a_doubt_stands_beside_the_status_and_in_the_page(fake: Any, tmp_path: Path) -> None:
    doubt = "its peak memory is 8 bytes, its <b>output</b> has 64"
    run = fake.run([fake.timed(1.0, numbers={"doubts": [doubt]}), fake.timed(2.0, backend="triton")])
    text = str(tables.table([run]))
    assert f"ok, doubtful: {doubt[:20]}" in " ".join(text.split())
    assert text.count("doubtful") == 1
    registry.report("html")([run], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "doubtful: its peak memory" in page and "<b>output" not in page


def test_a_busy_machine_is_told_in_one_line(fake: Any) -> None:
    busy = [f"others used {cores} of 2 cores" for cores in (0.6, 1.3)]
    records = [
        fake.timed(1.0, numbers={"busy": busy[:1]}),
        fake.timed(2.0, backend="triton", numbers={"busy": busy[1:]}),
        fake.timed(2.0, backend="blelloch", numbers={"busy": []}),
    ]
    text = str(tables.table([fake.run(records)]))
    assert text.rstrip().endswith("busy: others used 0.6 to 1.3 of 2 cores, during 2 of 3 cases")
    assert "busy" not in str(tables.table([fake.run(records[2:])]))


@pytest.mark.parametrize("odd", ["text", 5, [3, None], None, {"a": 1}])
def test_what_is_no_list_of_texts_is_no_doubt(fake: Any, odd: object) -> None:
    assert "doubtful" not in str(tables.table([fake.run([fake.timed(1.0, numbers={"doubts": odd})])]))


def test_what_is_found_stands_beside_what_was_predicted_in_a_pipe(fake: Any) -> None:
    """Of the memory suite's numbers, the largest sizes come before what fits only a wider terminal."""
    section = registry.suite("memory").section
    sizes = {f"{kind}largest_{letter}": 987654 for kind in ("", "declared_", "predicted_") for letter in "TB"}
    numbers = {name: 1.234e9 for name in section.columns if name.endswith("_bytes")} | sizes
    numbers |= {
        "peak_over_declared": 1.06,
        "growth_exponent": 1.01,
        "declared_bound": 0.5,
        "approximate": True,
    }
    shape = {"B": 8, "T": 16384, "H": 16, "K": 128, "V": 128}
    place = {"suite": "memory", "backend": "surrogate_softmax", "dtype": "bfloat16", "shape": shape}
    record = Record(fake.case(**place), Status.OK, env_id="env1", numbers=numbers)
    text = str(tables.table([fake.run([record], meta={"suites": {"memory": section.to_json()}})]))
    (line,) = lines_with(text, "surrogate_softmax")
    assert line.count("987,654") == len(sizes)
    (dropped,) = lines_with(text, "too narrow here for")
    assert not re.search(r"largest|declared [TB]|predicted", dropped)


def test_of_stability_what_says_how_wrong_comes_before_what_it_is_sensitive_to(fake: Any) -> None:
    section = registry.suite("stability").section
    numbers = dict.fromkeys(section.columns, 0.0012) | {"first_wrong_step": 43884, "bound_holds": False}
    records = [
        Record(fake.case(suite="stability", backend="surrogate_raw"), Status.WRONG, "off", "env1", numbers)
    ]
    text = str(tables.table([fake.run(records, meta={"suites": {"stability": section.to_json()}})]))
    dropped = next(iter(lines_with(text, "too narrow here for")), "")
    names = ("error_output", "error_bound", "bound_holds", "error_final_state", "largest_finite_error")
    assert not [name for name in names if tables.units.label(name) in dropped]


LENGTH_TITLES = ("Error against length", "Accuracy against length")
LEARNING = Section(
    title="Extrapolation",
    question="",
    columns=("error_output",),
    charts=(
        Chart(x="T", y="error_output", title="Error against length"),
        Chart(x="test_lengths", y="accuracies", title="Accuracy against length", references=("chances",)),
        Chart(x="updates_done", y="losses", title="Loss while training"),
    ),
)


def test_a_suite_of_errors_and_trainings_has_both_by_length(fake: Any) -> None:
    """Each number of each length is there, with the interval of an accuracy, and what is wrong says so."""
    records = []
    for backend, errors in {
        "sequential": (1.1e-7, 2.2e-7, 3.3e-7),
        "blelloch": (4.4e-7, 5.5e-7, 6.6e-1),
    }.items():
        for T, error in zip((8, 64, 512), errors, strict=True):
            status = Status.WRONG if error > 0.1 else Status.OK
            numbers = {"error_output": error, "errors": {"output": error}, "tolerances": {"output": 1e-5}}
            case = fake.case(suite="extrapolation", backend=backend, shape={"B": 1, "T": T, "C": 64})
            records.append(Record(case, status, "far off" if error > 0.1 else None, "env1", numbers))
    lost = {"suite": "extrapolation", "backend": "blelloch", "shape": {"B": 1, "T": 4096, "C": 64}}
    records.append(fake.failed("nan", "no value is finite", **lost))
    records.append(fake.failed("crash", "diverged", **{**lost, "operand_source": "task/needle"}))
    for task, base in (("mqar", 0.5), ("needle", 0.3)):
        numbers = {
            "test_lengths": [32, 64, 128],
            "accuracies": [base, base - 0.1, None],
            "accuracies_low": [base - 0.04, base - 0.13, None],
            "accuracies_high": [base + 0.04, base - 0.07, None],
            "chances": [0.021, 0.022, 0.023],
            "losses": [3.0, 2.0],
            "updates_done": [10, 20],
        }
        case = fake.case(
            suite="extrapolation", shape={"B": 8, "T": 32, "C": 64}, operand_source=f"task/{task}"
        )
        records.append(Record(case, Status.OK, env_id="env1", numbers=numbers))
    text = str(tables.table([fake.run(records, meta={"suites": {"extrapolation": LEARNING.to_json()}})]))
    assert "Loss while training" not in text
    error, accuracy = (text[text.index(title) :].split("\n\n")[0] for title in LENGTH_TITLES)
    assert re.findall(r"\d\.\de-\d\d", error) == [
        f"{x:.1e}" for x in (1.1e-7, 2.2e-7, 3.3e-7, 4.4e-7, 5.5e-7, 6.6e-1)
    ]
    assert error.count("wrong") == 1 and "6.6e-01 wrong" in error
    assert "4,096" in error and error.count("nan") == 1 and "crash" not in error
    (mqar, by_chance), (needle, _) = (lines_with(accuracy, f"task/{name}") for name in ("mqar", "needle"))
    assert "0.5 ±0.04" in mqar and "0.4 ±0.03" in mqar and "0.2 ±0.03" in needle
    assert "by chance" in by_chance and "0.021" in by_chance and "0.022" in by_chance


def test_a_block_by_length_is_bounded(fake: Any) -> None:
    records = []
    for place in range(lengths.MOST_LINES + 5):
        for T in (8, 64):
            case = fake.case(suite="extrapolation", backend=f"b{place}", shape={"B": 1, "T": T, "C": 64})
            records.append(Record(case, Status.OK, env_id="env1", numbers={"error_output": 1e-7}))
    text = str(tables.table([fake.run(records, meta={"suites": {"extrapolation": LEARNING.to_json()}})]))
    assert "and 5 more:" in text


def test_a_size_at_which_a_search_ended_early_is_a_lower_bound(fake: Any, tmp_path: Path) -> None:
    """So is it in the terminal, in Markdown and on the page; a power of two sizes says that it is of two."""
    section = registry.suite("memory").section
    ended, found = (
        {"peak_bytes": 2.0**20, "largest_T": size, "largest_T_reason": reason, "growth_exponent": 1.954,
         "lengths": lengths}
        for size, reason, lengths in ((57344, "the search ended after 1 s", [512, 2048]),
                                      (81920, None, [512, 1024, 2048]))
    )  # fmt: skip
    records = [
        Record(fake.case(suite="memory", backend=name), Status.OK, env_id="env1", numbers=numbers)
        for name, numbers in (("blelloch", ended), ("triton", found), ("sequential", found))
    ]
    run = fake.run(records, meta={"suites": {"memory": section.to_json()}})
    text = str(tables.table([run]))
    (bound,), (exact,) = lines_with(text, "blelloch"), lines_with(text, "triton")
    assert "≥57,344" in bound and "1.95 (2 sizes)" in bound
    assert " 81,920" in exact and "sizes" not in exact
    ends = {"growth_exponent_low": 0.63, "growth_exponent_high": 1.53, "predicted_largest_T": 5376,
            "predicted_largest_T_low": 5376, "predicted_largest_T_high": 23_600_000}  # fmt: skip
    unsure = Record(fake.case(suite="memory"), Status.OK, env_id="env1", numbers={**found, **ends})
    told = str(tables.table([fake.run([unsure], meta=run.meta)]))
    assert "5,376–23.6 M" in told and "0.63–1.53" in told
    assert "vs sequential: sequential's peak memory over the backend's (above 1× is better)" in text
    assert "  ≥ largest T is at least that: the search ended after 1 s" in text.splitlines()
    written = str(exports.markdown([run]))
    assert "≥57,344" in written and " 81,920" in written and "≥81,920" not in written
    registry.report("html")([run], tmp_path / "page.html")
    page = str(Page((tmp_path / "page.html").read_text()).data)
    assert "≥57,344" in page and "≥81,920" not in page


def test_each_backend_that_fails_is_named_however_many_failures_another_has(fake: Any) -> None:
    """Reasons that differ in numbers alone are one kind; other kinds come after those of other backends."""
    section = Section(title="Stability", question="", columns=("error_output",), envelope=("T",))
    objects = "abcdefghijklmnop"
    many = [
        fake.failed("wrong", f"gradient of {name}: relative error {T}e-2", suite="stability", backend="fft",
                    shape={"B": 1, "T": T, "C": 1})
        for name in objects for T in (16, 32)
    ]  # fmt: skip
    few = [
        fake.failed("wrong", "final state: 1.5 × the exact one", suite="stability", backend="triton"),
        fake.failed("nan", "output is NaN from step 7 on", suite="stability", backend="blelloch"),
    ]
    text = str(tables.table([fake.run([*many, *few], meta={"suites": {"stability": section.to_json()}})]))
    told = [
        line.split(":")[0].strip() for line in text.splitlines() if line.startswith(("  wrong ", "  nan "))
    ]
    assert told[:3] == ["wrong mingru fft (2 cases)", "wrong mingru triton", "nan mingru blelloch"]
    assert len(told) == failures.MOST_FAILURES
    assert f"and {len(objects) + 2 - failures.MOST_FAILURES} more kinds of failure" in text
