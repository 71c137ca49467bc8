"""The plug-in for pytest: what a kernel's own tests verify and measure, and what the session makes of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes import own_tests
from support.processes.in_process import CEILINGS
from support.processes.own_tests import HEAD, MEASURES

import ssmperf
from ssmperf import Status
from ssmperf.authors.verification.binding import taking_names
from ssmperf.engine.plan.nonce import as_text
from ssmperf.engine.runs.store import load
from ssmperf.shell.pytest_plugin import measuring
from ssmperf.shell.pytest_plugin.measuring import wanted

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[3]


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


def written(pytester: pytest.Pytester) -> list[Path]:
    return [file.parent for file in pytester.path.rglob("run.json")]


def test_the_plug_in_is_installed_under_this_name() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points.pytest11]\nssmperf = "{own_tests.PLUGIN}"\n' in text


TRIVIAL = """
import sys

def test_nothing():
    assert {"torch", "numpy", "pandas", "rich", "typer"}.isdisjoint(sys.modules)
    assert "ssmperf.shell.pytest_plugin.hooks" in sys.modules
"""


def test_a_session_that_uses_no_fixture_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "test_trivial.py").write_text(TRIVIAL)
    plugins = ["-p", "pytest_benchmark.plugin", "-p", own_tests.PLUGIN]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_session_that_measures_nothing_writes_nothing(run: Run, pytester: pytest.Pytester) -> None:
    code = (
        HEAD
        + """
def test_verified(ssmperf_session):
    assert ssmperf_session.verify("scan", mine, gates="data", T=9, C=2, device="cpu")

def test_wrong(ssmperf_session):
    ssmperf_session.verify("scan", lambda log_a, b, initial_state=None: (b, b[:, -1]), gates="data", T=9)
"""
    )
    result = run(code, "--ssmperf-out", "out")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Failed: scan/<lambda> wrong: *", "*relative error*"])
    assert written(pytester) == [] and not (pytester.path / "out").exists()
    assert "= ssmperf =" not in result.stdout.str()


def test_records_go_into_one_run(run: Run, pytester: pytest.Pytester) -> None:
    code = (
        HEAD
        + """
@pytest.mark.parametrize("pass_", ["forward", "backward", "decode"])
def test_passes(ssmperf_session, pass_):
    sizes = {**QUICK, "T": 1} if pass_ == "decode" else QUICK
    record = ssmperf_session.measure("scan", mine, pass_=pass_, **sizes)
    assert record.status == "ok" and record.numbers["latency_s"] > 0 and record.case.pass_ == pass_

def test_model(ssmperf_session):
    record = ssmperf_session.measure("gla", "chunkwise", dtype=torch.bfloat16, **QUICK)
    assert str(record.case).startswith("throughput gla chunkwise B") and record.case.dtype == "bfloat16"
"""
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # of which the smoke preset uses one
    try:
        before = torch.get_num_threads(), torch.get_default_dtype(), torch.get_rng_state()
        result = run(code)
        after = torch.get_num_threads(), torch.get_default_dtype(), torch.get_rng_state()
    finally:
        torch.set_num_threads(threads)
    result.assert_outcomes(passed=4)
    assert result.ret == 0
    (folder,) = written(pytester)
    assert folder.parent.name == "runs" and folder.name.endswith("-pytest")
    result.stdout.fnmatch_lines(["*= ssmperf =*", f"4 cases: 4 ok; run written to runs/{folder.name}"])
    records = load(folder).records
    assert [record.status for record in records] == [Status.OK] * 4
    assert {record.case.backend for record in records} == {"mine", "chunkwise"}
    nonce = json.loads((folder / "run.json").read_text())["nonce"]
    assert (
        records[0].numbers["command"] == f"pytest 'test_own.py::test_passes[forward]' --ssmperf-nonce {nonce}"
    )
    assert records[0].numbers["samples"] == len(records[0].numbers["samples_s"]) >= 6
    (environment,) = load(folder).environments.values()
    assert environment["shared_process"] == "pytest" and environment["ceilings"] is not None
    assert environment["torch"]["threads"] == (2 if "OMP_NUM_THREADS" in os.environ else 1)
    assert before[:2] == after[:2] and torch.equal(before[2], after[2])


BAD = (
    HEAD
    + """
def test_wrong(ssmperf_session):
    def wrong(log_a, b, initial_state=None):
        y, h = mine(log_a, b, initial_state)
        return y + 1, h
    ssmperf_session.measure("scan", wrong, **QUICK)

def test_crash(ssmperf_session):
    def crashes(log_a, b, initial_state=None):
        raise RuntimeError("no <luck>")
    ssmperf_session.measure("scan", crashes, **QUICK)

def test_refused(ssmperf_session):
    def refuses(log_a, b, initial_state=None):
        raise ssmperf.Unsupported("never")
    ssmperf_session.measure("scan", refuses, **QUICK)

def test_cached(ssmperf_session):
    kept = []
    def caches(log_a, b, initial_state=None):
        if len(kept) < 6:
            kept.append(mine(log_a, b, initial_state))
        return kept[-1]
    ssmperf_session.measure("scan", caches, **QUICK)

def test_skips(ssmperf_session):
    def skips(log_a, b, initial_state=None):
        pytest.skip("not today")
    ssmperf_session.measure("scan", skips, **QUICK)
"""
)


def test_what_is_not_ok_fails_its_test_and_has_no_time(run: Run, pytester: pytest.Pytester) -> None:
    result = run(BAD, "--ssmperf-out", "out")
    result.assert_outcomes(failed=4, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "*Failed: throughput scan[[]sigmoid/data[]] wrong * is wrong: output: relative error*",
            "*is crash: RuntimeError: no <luck> at *test_own.py:* (crashes)",
            "*is unsupported: never",
            "*caches * is wrong: *",
        ]
    )
    run_ = load(pytester.path / "out")
    statuses = {record.case.backend: record.status for record in run_.records}
    assert statuses == {
        "wrong": Status.WRONG, "crashes": Status.CRASH, "refuses": Status.UNSUPPORTED, "caches": Status.WRONG
    }  # fmt: skip
    assert all(record.numbers.get("latency_s") is None for record in run_.records)
    assert len(run_.meta["plan"]["case_ids"]) == 5  # with the one that never ended


def mine(log_a: Any, b: Any, initial_state: Any = None) -> None: ...


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "size": ({"K": 4}, "unknown size of scan 'K'"),
    "keyword": ({"dtyp": "float32"}, "did you mean dtype?"),
    "pass": ({"pass_": "sideways"}, "forward_backward"),
    "several gates": ({"gates": "data,const"}, "one of the gates"),
    "several regimes": ({"regime": "sigmoid,slow"}, "one of the regime"),
    "cold CPU": ({"cache": "cold"}, "always measured with a hot cache"),
    "long decode": ({"pass_": "decode", "T": 2}, "T must be 1"),
    "no state": ({"of": "long_conv", "function": "fft", "pass_": "decode"}, "no state to continue from"),
    "time": ({"time": -1}, "above 0 seconds"),
    "precision": ({"precision": "5"}, "between 0 and 1"),
    "taken name": ({"name": "blelloch"}, "is a registered backend of scan"),
    "name of a backend": ({"function": "sequential", "name": "other"}, "leave out name"),
    "unprintable": ({"name": "a\nb"}, "printable"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_illegal_arguments_are_refused(name: str) -> None:
    options, text = REFUSED[name]
    with pytest.raises(ssmperf.UsageError) as caught:
        wanted(**{"of": "scan", "function": mine, "device": "cpu", **options})
    assert text in str(caught.value)


def test_a_workload_has_the_model_the_sizes_and_the_pass() -> None:
    qwen = {"H": 32, "G": 16, "K": 128, "V": 128}
    quick = {"function": "chunkwise", "device": "cpu"}
    decoded = wanted("qwen3-next-80b:decode", **quick, B=3, dtype="bfloat16").case
    assert (decoded.model, decoded.pass_, decoded.dtype) == ("gated_deltanet", "decode", "bfloat16")
    assert dict(decoded.shape) == {"B": 3, "T": 1, **qwen}
    trained = wanted("qwen3-next-80b:train@tp8", **quick, pass_="backward").case
    assert (trained.pass_, dict(trained.shape)) == ("backward", {**qwen, "B": 1, "T": 128, "H": 4, "G": 2})
    with pytest.raises(ssmperf.UsageError, match="leave out the axis H"):
        wanted("qwen3-next-80b:train", **quick, H=2)


def test_a_case_belongs_to_one_test(run: Run, pytester: pytest.Pytester) -> None:
    code = (
        HEAD
        + """
@pytest.mark.parametrize("number", [1, 2])
def test_same(ssmperf_session, number):
    ssmperf_session.measure("scan", mine, **QUICK)

@pytest.mark.parametrize("number", [1, 2])
def test_named(ssmperf_session, number):
    ssmperf_session.measure("scan", mine, name=f"mine {number}", **QUICK)

def test_twice(ssmperf_session):
    for _ in range(2):
        ssmperf_session.measure("scan", mine, name="other", **QUICK)
"""
    )
    result = run(code, "--ssmperf-out", "out")
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        ['*test_own.py::test_same[[]1[]] has measured "throughput*before: give another `name`*',
         '*this test has measured "throughput*before*']
    )  # fmt: skip
    names = {record.case.backend for record in load(pytester.path / "out").records}
    assert names == {"mine", "mine 1", "mine 2", "other"}


def test_a_test_may_be_repeated(run: Run, pytester: pytest.Pytester) -> None:
    """As plug-ins do that run failed tests again: the last record counts."""

    class Twice:
        def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
            from _pytest.runner import runtestprotocol

            for _ in range(2):
                runtestprotocol(item, nextitem=nextitem)
            return True

    run(MEASURES, "--ssmperf-out", "out", plugins=(Twice(),)).assert_outcomes(passed=2)
    lines = (pytester.path / "out" / "records.jsonl").read_text().splitlines()
    assert len(lines) == 2 and len(load(pytester.path / "out").records) == 1


ILLEGAL: dict[str, tuple[tuple[str, ...], str]] = {
    "threshold": (("--ssmperf-baseline", "base", "--ssmperf-threshold", "5"), "write 5%"),
    "baseline": (("--ssmperf-baseline", "nowhere"), "is not a run folder"),
    "folder": (("--ssmperf-out", "."), "is not empty"),
    "nonce": (("--ssmperf-nonce", "xyz"), "hexadecimal"),
    "xdist": (("--ssmperf-out", "new", "-n", "2"), "refused under pytest-xdist"),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_options_end_the_session_at_once(name: str, run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "base").mkdir()
    (pytester.path / "base" / "run.json").write_text('{"schema_version": 1}')
    options, text = ILLEGAL[name]
    result = run(MEASURES, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert text in result.stderr.str() and "Traceback" not in result.stderr.str()
    assert "passed" not in result.stdout.str()


def test_a_worker_of_xdist_verifies_and_does_not_measure(run: Run, pytester: pytest.Pytester) -> None:
    """As a worker sees it, whose configuration has `workerinput`."""

    class Worker:
        @pytest.hookimpl(tryfirst=True)
        def pytest_configure(self, config: Any) -> None:
            config.workerinput = {"workerid": "gw0"}

    code = (
        MEASURES
        + """
def test_verified(ssmperf_session):
    ssmperf_session.verify("scan", mine, gates="data", T=9, C=2, device="cpu")
"""
    )
    result = run(code, "-p", "no:xdist", plugins=(Worker(),))
    result.assert_outcomes(passed=1, failed=1)
    assert "measuring is refused under pytest-xdist" in result.stdout.str()
    assert written(pytester) == []


def test_the_nonce_repeats_the_values(run: Run, pytester: pytest.Pytester) -> None:
    code = (
        HEAD
        + """
def test_it(ssmperf_session):
    seen = []
    def noting(log_a, b, initial_state=None):
        seen.append(float(b.detach().double().sum()))
        return mine(log_a, b, initial_state)
    ssmperf_session.measure("scan", noting, **QUICK)
    print("first", seen[0])
"""
    )
    nonces = [as_text(4096), as_text(4096), as_text(2 * 4096)]
    outputs = [run(code, "-s", "--ssmperf-nonce", nonce).stdout.str() for nonce in nonces]
    first, again, other = (re.findall(r"first (\S+)", text) for text in outputs)
    assert first == again != other


def test_a_function_with_all_operands_is_called_as_it_is() -> None:
    scan = ssmperf.engine.registry.recurrence("scan")

    def whole(log_a: Any, b: Any, initial_state: Any = None, *, phase: Any = None) -> None: ...

    def part(log_a: Any, b: Any, initial_state: Any = None) -> None: ...

    assert taking_names(whole, scan) is whole and taking_names(part, scan) is not part


def blocks() -> dict[str, str]:
    text = (ROOT / "docs" / "pytest.md").read_text()
    return {
        block.partition("\n")[0].removeprefix("# "): block
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    }


@pytest.mark.slow
def test_the_examples_of_the_document_pass(run: Run, pytester: pytest.Pytester) -> None:
    examples = blocks()
    assert set(examples) == {"test_my_scan.py", "test_add.py"}
    for name, code in examples.items():
        pytester.path.joinpath(name).write_text(code)
    names = [*examples, "--ssmperf-out", "runs/main", "--benchmark-max-time", "0.05"]
    result = own_tests.run(pytester, *names)
    assert result.ret == 0, result.stdout.str()
    result.assert_outcomes(passed=6)
    assert [record.status for record in load(pytester.path / "runs" / "main").records] == [Status.OK] * 2


def test_the_document_names_every_option_and_keyword() -> None:
    text = (ROOT / "docs" / "pytest.md").read_text()
    options = re.findall(
        r'"(--ssmperf-[a-z]+)"', (ROOT / "ssmperf" / "shell" / "pytest_plugin" / "hooks.py").read_text()
    )
    assert len(options) == 5 and all(option in text for option in options)
    assert [name for name in measuring.FIELDS if f"`{name}`" not in text] == []
