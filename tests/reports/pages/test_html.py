"""The page: complete, self-contained, and inert whatever text it holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ssmperf.reports.pages import html as page
from support.results.pages import Page

from ssmperf.suitekit import Chart, Section

HOSTILE = "</script><img src=x onerror=alert(1)><!--\u2028'\"{{ 7*7 }}"


def parse(*runs: Any) -> Page:
    return Page(str(page.html(runs)))


def test_every_record_and_suite_is_on_the_page(fake: Any) -> None:
    run = fake.plausible(models=("gla", "rwkv6"), lengths=(256, 512), samples=3)
    found = parse(run)
    fields = [{name: text for name, text, _ in each["fields"]} for each in found.details]
    records = {record.case.id: record for record in run.records}
    assert sorted(each["case_id"] for each in fields) == sorted(records)
    for row, each in zip(found.rows, fields, strict=True):
        case = records[each["case_id"]].case
        assert (row["subject"], row["backend"], row["shape"]) == (case.model, case.backend, str(case.shape))
        assert row["status"] == records[each["case_id"]].status
    headings = " ".join(found.texts)
    for section in run.meta["suites"].values():
        assert section["title"] in headings and section["question"] in headings
    assert found.open == []


def test_a_record_unfolds_to_the_configuration_that_it_ran_with(fake: Any) -> None:
    rows = {"scan/triton:forward/half": {"steps": 8, "warps": 2, "registers": None}}
    run = fake.run([fake.timed(1.0, numbers={"configuration": rows}), fake.timed(2.0, backend="fft")])
    shown = [field for each in parse(run).details for field in each["fields"] if ":" in field[0]]
    assert shown == [["scan/triton:forward/half", "steps 8, warps 2", ""]]


def test_nothing_is_fetched(fake: Any) -> None:
    found = parse(fake.plausible(models=("gla",), samples=2))
    for tag, attributes in found.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
        assert "src" not in attributes and "srcset" not in attributes
        assert attributes.get("href", "#").startswith("#")
    (policy,) = found.having(**{"http-equiv": "Content-Security-Policy"})
    assert "default-src 'none'" in policy["content"] and "http" not in policy["content"]
    style = str(page.html([fake.run([])])).split("<style>")[1].split("</style>")[0]
    assert "url(" not in style and "@import" not in style


def test_hostile_text_is_inert_everywhere(fake: Any) -> None:
    place = {"model": HOSTILE, "operand_source": HOSTILE}
    numbers = {"command": HOSTILE, "clock": HOSTILE, HOSTILE: HOSTILE, "kernels": [HOSTILE],
               "configuration": {HOSTILE: {HOSTILE: HOSTILE}, "t:k": HOSTILE},
               "errors": {HOSTILE: 1e-3}, "tolerances": {HOSTILE: 1e-2}, "busy": [HOSTILE]}  # fmt: skip
    records = [
        fake.timed(1.0, backend=HOSTILE, numbers=numbers, **place),
        fake.timed(1.0, numbers=numbers, **place),
        fake.failed("crash", HOSTILE, backend="b", **place),
        fake.timed(1.0, suite=HOSTILE, device=HOSTILE),
    ]
    chart = Chart(x="T", y="latency_s", title=HOSTILE)
    section = Section(HOSTILE, HOSTILE, ("clock", HOSTILE), "latency_s", (chart,)).to_json()
    meta = {"tag": HOSTILE, "command": HOSTILE, "created": HOSTILE, "suites": {"throughput": section}}
    facts = {"env1": {HOSTILE: {HOSTILE: HOSTILE}, "calibration": HOSTILE, "calibration_reason": HOSTILE}}
    run = fake.run(records, meta=meta, environments=facts, path=Path(HOSTILE))
    text = str(page.html([run]))
    found = Page(text)
    assert "<img" not in text and "{{ 7*7 }}" in text
    assert found.open == []
    assert all(not name.startswith("on") for _, attributes in found.elements for name in attributes)
    assert found.details[0]["command"].startswith("</script><img src=x")
    assert found.data["charts"][0]["panels"][0]["name"].startswith("</script>")
    scripts = [attributes for tag, attributes in found.elements if tag == "script"]
    assert sum("type" not in attributes for attributes in scripts) == 4  # those that the browser runs
    assert all(attributes["type"].endswith("+gzip") for attributes in scripts if "type" in attributes)


def test_an_opened_row_shows_errors_of_elements_and_of_rows(fake: Any) -> None:
    numbers = {"errors": {"output": 1e-3, "log_a": 2e-3}, "tolerances": {"output": 1e-2, "log_a": 2e-2},
               "row_errors": {"output": 3e-3}, "row_tolerances": {"output": 3e-2}}  # fmt: skip
    found = Page(str(page.html([fake.run([fake.timed(1.0, numbers=numbers)])])))
    output, gate = found.details[0]["errors"]
    assert output == ["output", "1.0e-03", "1.0e-02", "3.0e-03", "3.0e-02"]
    assert gate[0] == "log_a" and gate[3:] == ["–", "–"]


def test_an_opened_row_shows_the_traceback_line_by_line(fake: Any) -> None:
    text = f"Traceback:\n  File \x1b[31mx.py\n{HOSTILE}"
    crash = dataclasses.replace(fake.failed("crash", "no", backend="b"), numbers={"traceback": text})
    found = parse(fake.run([fake.timed(1.0), crash]))
    shown = {each.get("traceback"): each for each in found.details}
    assert set(shown) == {None, "\n".join(["Traceback:", "  File  [31mx.py", *HOSTILE.splitlines()])}
    assert all(name != "traceback" for each in shown.values() for name, *_ in each["fields"])


def test_only_the_fastest_right_row_is_marked(fake: Any) -> None:
    records = [fake.timed(3.0), fake.timed(1.0, backend="triton"), fake.failed("nan", "nan", backend="fft")]
    rows = parse(fake.run(records)).rows
    assert {row["backend"]: row["best"] for row in rows} == {"triton": "fastest", "sequential": "", "fft": ""}


def test_a_host_that_is_slower_than_the_device_says_so(fake: Any) -> None:
    records = [
        fake.timed(60e-6, numbers={"issue_s": 400e-6}),
        fake.timed(90e-6, backend="triton", numbers={"issue_s": 80e-6}),
    ]
    notes = [row["notes"] for row in parse(fake.run(records)).rows]
    assert notes == [{"latency_s": "±2.0 % · host 400 µs"}, {"latency_s": "±2.0 %"}]


def test_a_failed_row_says_why_in_place_of_numbers(fake: Any) -> None:
    found = parse(fake.run([fake.timed(1.0), fake.failed("oom", "96 GiB is too much", backend="fft")]))
    told = {row["backend"]: (row["reason"], row["latency_s"]) for row in found.rows}
    assert told == {"sequential": ("", "1.00 s"), "fft": ("96 GiB is too much", None)}
    assert "Cases that did not end ok" in found.texts


def test_several_runs_have_a_column_that_tells_them_apart(fake: Any) -> None:
    runs = [fake.run([fake.timed(1.0)], meta={"tag": tag}) for tag in ("old", "new")]
    found = parse(*runs)
    assert {row["run"] for row in found.rows} == {"old", "new"} and "run" in found.rows[0]["shown"]
    assert found.having(**{"data-axis": "run"})


def test_a_suite_that_the_run_does_not_describe_still_has_its_section(fake: Any) -> None:
    found = parse(fake.run([fake.timed(1.0, suite="novel")], meta={"suites": {}}))
    assert "novel" in found.texts


def test_a_busy_machine_is_told_at_the_top_and_at_the_case(fake: Any) -> None:
    busy = fake.timed(1.0, numbers={"busy": ["throttled: power cap"]})
    idle = fake.timed(2.0, backend="triton", numbers={"busy": []})
    text = str(page.html([fake.run([busy, idle])]))
    found = Page(text)
    assert "busy machine" in text and "throttled: power cap, during 1 of 2 cases" in text
    told = [[field for field in detail["fields"] if field[0] == "busy"] for detail in found.details]
    assert [len(fields) for fields in told] == [1, 0]
    assert told[0][0][1] == "throttled: power cap"
    assert "busy machine" not in str(page.html([fake.run([idle])]))


def test_the_environment_shows_what_the_machine_can_tell_apart(fake: Any) -> None:
    spread = {"spread": 0.02, "largest": 0.05, "degrees": 9.0, "cases": 3, "rounds": 10}
    data = {
        "format": "ssmperf calibration",
        "schema_version": 1,
        "device": "Example GPU",
        "created": "2026-01-02T03:04:05+00:00",
        "kinds": {"10-100us host": spread},
    }
    facts = {"device": "cuda:0", "calibration": data, "calibration_reason": None}
    text = str(page.html([fake.run([fake.timed(1.0)], environments={"env1": facts})]))
    assert "10-100us host" in text and "±2.0 %" in text and "2026-01-02T03:04:05" in text
    assert "calibration_reason" not in text
    without = {"device": "cuda:0", "calibration": None, "calibration_reason": "not calibrated: …"}
    assert "not calibrated" in str(page.html([fake.run([fake.timed(1.0)], environments={"env1": without})]))


def test_the_command_of_a_run_can_be_copied(fake: Any) -> None:
    meta = {"command": None, "argv": ["run", "--out", "a b"]}
    assert "ssmperf run --out 'a b'" in parse(fake.run([fake.timed(1.0)], meta=meta)).texts
    assert "command" not in parse(fake.run([fake.timed(1.0)], meta={"command": None, "argv": []})).texts


def test_samples_are_thinned_out_and_counted(fake: Any) -> None:
    series = [1.0 + i for i in range(1000)]
    found = parse(fake.run([fake.timed(1.0, numbers={"samples_s": series})]))
    (detail,) = found.details
    assert detail["count"] == 1000 and 2 < len(detail["samples"]) <= 120


def test_a_page_without_charts_carries_no_plotting_library(fake: Any) -> None:
    run = fake.run([fake.timed(1.0)], meta={"suites": {}})
    assert len(str(page.html([run]))) < 100_000


def test_numbers_sort_by_their_value(fake: Any) -> None:
    found = parse(fake.run([fake.timed(2e-3), fake.timed(900e-6, backend="triton")]))
    assert [row["values"]["latency_s"] for row in found.rows] == [900e-6, 2e-3]


@pytest.mark.slow
def test_a_page_of_thousands_of_cases_is_small(fake: Any) -> None:
    few, many = (
        fake.plausible(models=[f"model{place}" for place in range(count)], samples=30) for count in (4, 40)
    )
    sizes = [len(str(page.html([run]))) for run in (few, many)]
    more = len(many.records) - len(few.records)
    assert more > 2000 and (sizes[1] - sizes[0]) / more < 1500
