"""A long run says first how long it takes, and an interrupted one shows what it has measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ssmperf.engine.execute import run as running
from ssmperf.engine.execute.request import Request
from ssmperf.engine.plan.plan import make_plan
from ssmperf.shell.cli import main
from ssmperf.shell.terminal.expectation import say_if_long, words


def request_of(suite: str, **options: Any) -> Request:
    return Request.of(suite, out=None, resume=False, argv=(), device="cpu", **options)


def test_backends_that_take_most_of_the_time_are_named() -> None:
    backends = "blelloch,hillis_steele,sequential"
    request = request_of("throughput", models="scan", backends=backends, preset="standard")
    cases = make_plan(request.selection, request.suites).to_run
    text = words(request, cases, 600.0)
    assert text.startswith(f"{len(cases)} cases, about 10 min; blelloch and hillis_steele take 8 min of it")
    assert text.endswith("(named, so not skipped)")


def test_without_few_slow_backends_a_run_names_none() -> None:
    request = request_of("throughput", models="scan", backends="blelloch,sequential", axis=["T=4096"])
    cases = make_plan(request.selection, request.suites).to_run
    assert words(request, cases, 600.0) == f"{len(cases)} cases, about 10 min"


def test_backends_are_said_to_be_named_only_where_a_suite_would_leave_them_out() -> None:
    backends = "blelloch,hillis_steele,sequential"
    request = request_of("throughput", models="scan", backends=backends, axis=["T=8192"])
    cases = make_plan(request.selection, request.suites).to_run
    text = words(request, cases, 600.0)
    assert "blelloch" in text and "named" not in text


def test_a_short_run_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    request = request_of("correctness", models="hgrn", backends="sequential", axis=["T=5", "C=2"])
    cases = make_plan(request.selection, request.suites).to_run
    say_if_long(request, cases)
    assert cases and capsys.readouterr().err == ""


def test_an_interrupted_run_shows_its_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute = running.execute

    def interrupted(*args: Any, **options: Any) -> Any:
        execute(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "execute", interrupted)
    out = str(tmp_path / "run")
    options = ["--models", "hgrn", "--backends", "sequential", "--axis", "T=5", "--axis", "C=2"]
    monkeypatch.setattr(
        "sys.argv", ["ssmperf", "run", "--suite", "correctness", *options, "--device", "cpu", "--out", out]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 130
    assert "hgrn" in shown.out and "1 ok" in shown.out and "--resume" in shown.err
