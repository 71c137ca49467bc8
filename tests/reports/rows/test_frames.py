"""Only equal cases are compared, and only `ok` ones are ranked."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from ssmperf.reports.rows import frames, ranking
from ssmperf.reports.views.matrix import matrix

from ssmperf import Case, UnreadableRun
from ssmperf.suitekit import Section

# a value for every axis that differs from make_case's
OTHERS: dict[str, Any] = {
    "model": "gla",
    "recurrence": "linear_attention",
    "shape": {"B": 2, "T": 2048, "C": 64},
    "dtype": "bfloat16",
    "gate_dtype": "bfloat16",
    "layout": "time_last",
    "operand_source": "sigmoid",
    "device": "cuda",
    "pass_": "backward",
    "cache": "hot",
    "timing": "end-to-end",
    "level": "block",
    "seed": 1,
    "packing": "5,0,2",
    "call": "bonus",
    "suite": "memory",
}


def by_backend(table: Any, column: str) -> dict[str, Any]:
    return dict(zip(table["backend"], table[column], strict=True))


def test_one_row_per_record_with_the_shape_in_columns(fake: Any) -> None:
    table = frames.frame([fake.run([fake.timed(1.0), fake.timed(2.0, backend="fft", model=None)])])
    assert len(table) == 2
    assert list(table["shape"]) == ["B2 T1024 C64"] * 2
    assert list(table["T"]) == [1024, 1024] and table["H"].isna().all()
    assert list(table["subject"]) == ["mingru", "scan[model]"]


def test_the_key_holds_every_axis_of_a_case_but_the_backend() -> None:
    axes = {field.name.rstrip("_") for field in dataclasses.fields(Case)}
    assert set(frames.KEY) >= axes - {"backend"} and "run" in frames.KEY
    assert {name.rstrip("_") for name in OTHERS} == axes - {"backend"}


@pytest.mark.parametrize("axis", OTHERS)
def test_no_comparison_across_an_axis(fake: Any, axis: str) -> None:
    records = [fake.timed(1.0), fake.timed(0.5, backend="triton", **{axis: OTHERS[axis]})]
    table = ranking.ranked(frames.frame([fake.run(records)]), "latency_s")
    assert math.isnan(by_backend(table, "speedup")["triton"])
    assert list(table["rivals"]) == [1, 1]


def test_no_comparison_across_runs(fake: Any) -> None:
    one, two = fake.run([fake.timed(1.0)]), fake.run([fake.timed(0.5, backend="triton")])
    table = ranking.with_speedup(frames.frame([one, two]))
    assert table["run"].nunique() == 2
    assert math.isnan(by_backend(table, "speedup")["triton"])


@pytest.mark.parametrize("cpu", ["Another CPU", "Example CPU 9000"])
def test_no_comparison_across_environments(fake: Any, cpu: str) -> None:
    other = dataclasses.replace(fake.timed(0.5, backend="triton"), env_id="env2")
    run = fake.run([fake.timed(1.0), other])
    run.environments["env2"] = {"hardware": {"cpu": {"model": cpu}}}
    table = frames.frame([run])
    assert table["environment"].nunique() == 2 and "environment" in frames.varying_axes(table)
    assert math.isnan(by_backend(ranking.with_speedup(table), "speedup")["triton"])


def test_a_refusal_from_the_plan_belongs_to_the_only_environment(fake: Any) -> None:
    refused = dataclasses.replace(fake.failed("unsupported", "no", backend="fft"), env_id=None)
    table = frames.frame([fake.run([fake.timed(1.0), refused])])
    assert len(set(frames.keys(table))) == 1


def test_speedup_is_the_baseline_of_the_same_key_over_the_row(fake: Any) -> None:
    records = [
        fake.timed(3.0), fake.timed(1.5, backend="blelloch"),
        fake.timed(8.0, dtype="float64"), fake.timed(2.0, backend="blelloch", dtype="float64"),
    ]  # fmt: skip
    table = ranking.with_speedup(frames.frame([fake.run(records)]))
    assert list(table["speedup"]) == [1.0, 2.0, 1.0, 4.0]


def test_only_ok_records_are_ranked(fake: Any) -> None:
    records = [
        fake.timed(3.0),
        fake.timed(2.0, backend="triton"),
        fake.failed("wrong", "off", backend="fft"),
        fake.failed("unsupported", "no", backend="logspace"),
        fake.timed(1.0, backend="null", numbers={"latency_s": None}),
    ]
    table = ranking.ranked(frames.frame([fake.run(records)]), "latency_s")
    assert [name for name, best in by_backend(table, "fastest").items() if best] == ["triton"]
    assert set(table["rivals"]) == {2}
    assert list(table["backend"])[:2] == ["triton", "sequential"]
    assert table.set_index("backend")["speedup"].notna().sum() == 2


def test_a_failed_baseline_gives_no_speedup(fake: Any) -> None:
    records = [fake.failed("oom", "too large"), fake.timed(1.0, backend="triton")]
    table = ranking.with_speedup(frames.frame([fake.run(records)]))
    assert table["speedup"].isna().all()


def test_any_field_can_rank(fake: Any) -> None:
    records = [fake.timed(1.0, backend=name, numbers={"peak_bytes": size})
               for name, size in (("sequential", 400), ("triton", 100))]  # fmt: skip
    table = ranking.ranked(frames.frame([fake.run(records)]), "peak_bytes")
    assert by_backend(table, "speedup") == {"triton": 4.0, "sequential": 1.0}
    assert ranking.wins(table) == {"triton": 1}


def test_wins_count_contests_only(fake: Any) -> None:
    records = [fake.timed(1.0), fake.timed(2.0, backend="fft"), fake.timed(1.0, backend="fft", model="gla")]
    table = ranking.ranked(frames.frame([fake.run(records)]), "latency_s")
    assert ranking.wins(table) == {"sequential": 1}


def test_status_counts_add_up(fake: Any) -> None:
    run = fake.plausible(samples=1)
    counts = frames.status_counts(frames.frame([run]))
    assert sum(counts.values()) == len(run.records)
    assert next(iter(counts)) == "ok" and {"wrong", "nan", "oom", "unsupported"} <= set(counts)


def test_the_matrix_shows_the_worst(fake: Any) -> None:
    numbers = {"errors": {"output": 1e-6, "b": 3e-6}, "tolerances": {"output": 1e-5, "b": 4e-6}}
    records = [
        fake.timed(1.0, numbers=numbers),
        fake.failed("unsupported", "no half precision", dtype="float16"),
        fake.failed("crash", "segmentation fault", seed=3),
    ]
    table = ranking.ranked(frames.frame([fake.run(records)]), None)
    (cell,) = matrix(table, Section("", "", ())).cells.values()
    assert (cell.status, cell.cases, cell.ok, cell.partial) == ("crash", 3, 1, True)
    assert cell.error_ratio == pytest.approx(0.75) and cell.error == 3e-6
    assert set(cell.reasons) == {"no half precision", "segmentation fault"}


def test_frames_leave_their_input_alone(fake: Any) -> None:
    table = frames.frame([fake.run([fake.timed(1.0)])])
    before = table.copy(deep=True)
    ranking.ranked(table, "latency_s")
    assert table.equals(before)


def test_runs_of_the_same_name_are_told_apart(fake: Any) -> None:
    run = fake.run([fake.timed(1.0)])
    assert len(set(frames.run_names([run, run]))) == 2


@pytest.mark.parametrize("damaged", [["throughput"], {"throughput": {"title": "no question"}}])
def test_a_run_with_a_damaged_section_is_unreadable(fake: Any, damaged: Any) -> None:
    run = fake.run([fake.timed(1.0)], meta={"suites": damaged})
    with pytest.raises(UnreadableRun, match=str(run.path)):
        frames.sections([run], frames.frame([run]))


def test_sections_are_those_of_the_suites_that_ran(fake: Any) -> None:
    run = fake.run([fake.timed(1.0), fake.timed(1.0, suite="of_a_plugin")])
    found = frames.sections([run], frames.frame([run]))
    assert {name: section.title for name, section in found.items()} == {
        "throughput": "Throughput",
        "of_a_plugin": "of_a_plugin",
    }
    assert frames.sections([fake.run([], meta={"suites": None})], frames.frame([run])).keys() == found.keys()


def test_an_empty_run_has_an_empty_frame(fake: Any) -> None:
    table = ranking.ranked(frames.frame([fake.run([])]), "latency_s")
    assert len(table) == 0 and set(frames.KEY) <= set(table.columns)
