"""The plug-in for pytest compares what was measured with a baseline, and the session ends accordingly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes import own_tests
from support.processes.in_process import CEILINGS
from support.processes.own_tests import MEASURES

import ssmperf
from ssmperf import Status
from ssmperf.engine.runs.store import load
from ssmperf.shell.pytest_plugin import measuring

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    own_tests.prepare()


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Run a test file in this process, on a machine whose ceilings are known."""
    monkeypatch.setattr(measuring, "measure_ceilings", lambda device: CEILINGS)

    def run(code: str, *arguments: Any, **options: Any) -> pytest.RunResult:
        pytester.makepyfile(test_own=code)
        return own_tests.run(pytester, *arguments, **options)

    return run


Run = Callable[..., pytest.RunResult]


def altered(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Copy a run with every record changed."""
    target.mkdir()
    (target / "run.json").write_text((source / "run.json").read_text())
    lines = [json.loads(line) for line in (source / "records.jsonl").read_text().splitlines()]
    for line in lines:
        change(line)
    (target / "records.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return target


def faster(factor: float) -> Callable[[dict[str, Any]], None]:
    def change(line: dict[str, Any]) -> None:
        for name in ("latency_s", "latency_low_s", "latency_high_s"):
            line[name] /= factor
        line["samples_s"] = [each / factor for each in line["samples_s"]]

    return change


def narrow(line: dict[str, Any]) -> None:
    """Give a record a time without noise, and a machine that was not busy."""
    line["samples_s"] = [line["latency_s"] * (1 + each * 1e-6) for each in range(20)]
    line["latency_s"] = line["latency_low_s"] = line["latency_high_s"] = line["samples_s"][10]
    line["busy"] = []


@pytest.fixture
def baseline(run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of MEASURES, whose times later sessions measure again exactly."""
    run(MEASURES, "--ssmperf-out", "first").assert_outcomes(passed=1)
    base = altered(pytester.path / "first", pytester.path / "base", narrow)
    (record,) = load(base).records

    def again(case: Any, facts: Any, **given: Any) -> ssmperf.Record:
        return ssmperf.Record(case.case, Status.OK, None, facts.env_id, dict(record.numbers))

    monkeypatch.setattr("ssmperf.shell.pytest_plugin.session.measured", again)
    return base


VERDICTS: dict[str, tuple[float, tuple[str, ...], int, str]] = {
    "same": (1.0, (), 0, "no regression: 1 case, 1 same"),
    "slower": (2.0, (), 1, "a regression: 1 case, 1 slower"),
    "faster": (0.5, (), 0, "1 faster"),
    "wide threshold": (2.0, ("--ssmperf-threshold", "150%"), 0, "1 same"),
    "cannot tell": (1.06, ("--ssmperf-threshold", "5.9%"), 1, "cannot tell: 1 case, 1 ambiguous"),
    "may be unsure": (1.06, ("--ssmperf-threshold", "5.9%", "--ssmperf-unsure", "pass"), 0, "1 ambiguous"),
}


@pytest.mark.slow(but=("same", "slower"))
@pytest.mark.parametrize("name", VERDICTS)
def test_the_baseline_decides(name: str, run: Run, pytester: pytest.Pytester, baseline: Path) -> None:
    factor, options, status, text = VERDICTS[name]
    if name.startswith(("cannot", "may")):
        base = altered(baseline, pytester.path / "other", lambda line: (faster(factor)(line), busy(line)))
    else:
        base = altered(baseline, pytester.path / "other", faster(factor))
    result = run(MEASURES, "--ssmperf-out", "new", "--ssmperf-baseline", base, *options)
    result.assert_outcomes(passed=1)
    assert result.ret == status, result.stdout.str()
    assert text in result.stdout.str()
    # the same procedure and the same answer as that of `ssmperf check`
    words = {"threshold": options[1]} if options else {}
    unsure = options[3] if len(options) > 2 else "fail"
    found = ssmperf.check(pytester.path / "new", baseline=base, unsure=unsure, **words)
    assert text in found.conclusion and found.attempts == 2
    assert found.ok == (status == 0)


def busy(line: dict[str, Any]) -> None:
    line["busy"] = ["others used 1.9 of 2 cores"]


def test_cases_that_no_test_measured_are_no_failure(
    run: Run, pytester: pytest.Pytester, baseline: Path
) -> None:
    lines = (baseline / "records.jsonl").read_text().splitlines()
    other = {**json.loads(lines[0]), "backend": "gone"}
    del other["case_id"]
    (baseline / "records.jsonl").write_text("\n".join([*lines, json.dumps(other)]) + "\n")
    result = run(MEASURES, "--ssmperf-baseline", baseline, "--ssmperf-out", "new")
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"1 case of {baseline} were not measured here"])
    assert ssmperf.check(pytester.path / "new", baseline=baseline).ok


def test_a_case_that_the_baseline_lacks_cannot_be_told(run: Run, baseline: Path) -> None:
    (baseline / "records.jsonl").write_text("")
    assert run(MEASURES, "--ssmperf-baseline", baseline, "--ssmperf-out", "new").ret == 1
    passing = ("--ssmperf-baseline", baseline, "--ssmperf-out", "newer", "--ssmperf-unsure", "pass")
    assert run(MEASURES, *passing).ret == 0


def test_a_session_that_measures_nothing_does_not_pass(run: Run, baseline: Path) -> None:
    """Such as one on a machine that has lost its GPU."""
    skipped = "import pytest\ndef test_own():\n    pytest.skip('no GPU here')\n"
    result = run(skipped, "--ssmperf-baseline", baseline)
    assert result.ret == 1 and "no case was measured" in result.stdout.str()
    assert run(skipped, "--ssmperf-baseline", baseline, "--ssmperf-unsure", "pass").ret == 0
    assert run(skipped).ret == 0


def test_a_session_that_only_lists_its_tests_compares_nothing(run: Run, baseline: Path) -> None:
    result = run(MEASURES, "--ssmperf-baseline", str(baseline), "--collect-only")
    assert result.ret == pytest.ExitCode.OK
    assert "nothing can be compared" not in result.stdout.str()


def test_a_wrong_case_counts_in_the_comparison(run: Run, pytester: pytest.Pytester, baseline: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def wrong(case: Any, facts: Any, **given: Any) -> ssmperf.Record:
        return ssmperf.Record(case.case, Status.WRONG, "planted", facts.env_id, {})

    monkeypatch.setattr("ssmperf.shell.pytest_plugin.session.measured", wrong)
    result = run(MEASURES, "--ssmperf-baseline", baseline)
    assert result.ret == 1 and "wrong, lost or missing cases: 1 case, 1 wrong" in result.stdout.str()


def test_a_run_of_tests_and_a_run_of_workers_differ_in_a_note(baseline: Path) -> None:
    base, new = load(baseline), load(baseline)
    (id_,) = base.environments
    environment = {name: value for name, value in base.environments[id_].items() if name != "shared_process"}
    records = [ssmperf.Record(each.case, each.status, None, "other", each.numbers) for each in base.records]
    other = ssmperf.Run(base.path, {**base.meta, "environments": {"other": environment}}, records)
    found = ssmperf.compare_runs(other, new)
    assert found.differences == ()
    assert any("shared_process: none and pytest" in note for note in found.notes)
