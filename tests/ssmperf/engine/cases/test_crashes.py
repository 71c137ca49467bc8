"""A crash names the line of the backend's author, and its traceback is where it is looked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.places import place
from support.processes.in_process import records_of
from support.processes.quick_processes import command
from support.results.pages import Page

import ssmperf
from ssmperf import PluginError, Record, Status
from ssmperf.engine.cases.compilers import complaint_of
from ssmperf.engine.cases.failure import LONGEST_TRACEBACK, bounded, failure_of, fatal_failure
from ssmperf.engine.cases.place import is_authors
from ssmperf.engine.cases.record import LONGEST_REASON
from ssmperf.shell import cli
from ssmperf.shell.terminal import display
from ssmperf.suitekit import registry

PLUGINS = Path(__file__).parents[3] / "support" / "plugins"
PLUGIN = PLUGINS / "crashing.py"
KERNELS = PLUGINS / "crashing_kernels.py"
CUDA = PLUGINS / "crashing.cu"
at = partial(place, PLUGIN)
EXPECTED = {
    "helper": f"TypeError: 'int' object is not subscriptable {at('# of an int', 'helper')}",
    "torch": at("# b has three axes", "in_torch"),
    "library": at("# no JSON", "in_library"),
    "wordy": at("raise ValueError(", "wordy"),
    "deep": at("# without end", "descend"),
    "backward": at("# another size", "backward"),
    "nvrtc": 'RuntimeError: identifier "missing" is undefined: `x[i] = missing;` '
    + place(CUDA, "x[i] = missing;", "first"),
    "nvrtc_text": 'RuntimeError: identifier "missing" is undefined, line 9 of program: `x[i] = missing;` '
    + at("# which is no file", "nvrtc_text"),
}
OF_TRITON = {
    5: "CompilationError: AttributeError(\"'tensor' object has no attribute 'no_such_method'\"): "
    f"`return y.no_such_method(n)` {place(KERNELS, 'return y.no_such_method', 'helper')}",
    6: "CompilationError: arange's range must be a power of 2: `tl.store(x + tl.arange(0, n), 0.0)` "
    + place(KERNELS, "tl.arange(0, n)", "no_power_of_two"),
    7: 'CompileTimeAssertionFailure: n must be 4: `tl.static_assert(n == 4, "n must be 4")` '
    + place(KERNELS, "tl.static_assert(", "asserts"),
}


def run_in_process(name: str, T: int = 5) -> Record:
    (record,) = records_of(
        "correctness", PLUGIN, models="hgrn", backends=f"crashing_{name}", axis=[f"T={T}", "C=3", "B=2"]
    )
    return record


@pytest.mark.parametrize("name", EXPECTED)
def test_the_reason_ends_in_the_authors_line(own_registrations: None, name: str) -> None:
    record = run_in_process(name)
    assert record.status is Status.CRASH
    reason = str(record.reason)
    assert reason.endswith(EXPECTED[name])
    assert len(reason) <= LONGEST_REASON
    text = record.numbers["traceback"]
    assert text.startswith("Traceback (most recent call last):")
    assert len(text) <= LONGEST_TRACEBACK
    assert text.splitlines()[-1].strip()
    assert Record.from_json(json.loads(record.to_line())).numbers["traceback"] == text


@pytest.mark.parametrize("T", OF_TRITON)
def test_an_error_of_triton_names_the_kernels_line(own_registrations: None, T: int) -> None:
    pytest.importorskip("triton")
    record = run_in_process("triton", T)
    assert (record.status, record.reason) == (Status.CRASH, OF_TRITON[T])
    assert "^" in record.numbers["traceback"]


@pytest.mark.slow
def test_the_line_of_a_kernel_that_is_interpreted() -> None:
    pytest.importorskip("triton")
    code = (
        "import os; os.environ['TRITON_INTERPRET'] = '1'\n"
        "import torch, crashing_kernels as k\n"
        "from ssmperf.engine.cases.failure import failure_of\n"
        "try: k.calls_helper[(1,)](torch.zeros(8), 8)\n"
        "except Exception as error: print(failure_of(error).reason)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=with_plugins())
    expected = place(KERNELS, "return y.no_such_method", "helper")
    assert (
        done.stdout.strip() == f"AttributeError: 'tensor' object has no attribute 'no_such_method' {expected}"
    )


def with_plugins() -> dict[str, str]:
    root = PLUGINS.parents[2]  # first, since the folder tests/ssmperf would stand for the package
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (root, PLUGINS))), "OMP_NUM_THREADS": "1"}


def test_a_built_in_backend_is_named_by_its_file() -> None:
    function = registry.backend("scan", "blelloch").function
    with pytest.raises(RuntimeError) as raised:
        function(torch.zeros(2, 5, 3), torch.zeros(2, 5, 4))
    assert " at impls/scan/" in failure_of(raised.value).reason.replace(f"{PLUGINS.parents[2]}/", "")


def test_causes_in_a_circle_come_to_an_end() -> None:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert failure_of(one).reason == "RuntimeError: one"


def test_whose_code_a_file_is() -> None:
    assert is_authors(str(PLUGIN)) and is_authors(sys.modules["ssmperf.impls.scan"].__file__ or "")
    suites = __import__("importlib").import_module("ssmperf.suites.correctness")
    for module in (cli, suites, torch.nn.functional, json):
        assert not is_authors(str(module.__file__))
    assert not is_authors("<string>") and not is_authors("cuda/core/_program.pyx")


def test_without_an_author_the_innermost_line_is_named() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        tail = error.__traceback__.tb_next  # type: ignore[union-attr]
        assert "json/decoder.py:" in failure_of(error.with_traceback(tail)).reason


def test_a_plug_in_that_cannot_be_loaded_names_its_line(tmp_path: Path) -> None:
    for source, line in (("import ssmperf\nx = 1\nx[0]\n", 3), ("def f():\n  return (1\n", 2)):
        file = tmp_path / "broken.py"
        file.write_text(source)
        with pytest.raises(PluginError, match=f"broken.py:{line}"):
            registry.load_plugin(file)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run crashing backends in workers, with --debug; give the run's folder and stderr."""
    out = tmp_path_factory.mktemp("crashes") / "run"
    words = ["run", "--suite", "correctness,memory", "--models", "hgrn", "--axis", "T=5", "--axis", "C=3"]
    words += ["--backends", "crashing_helper,crashing_fatal", "--plugin", str(PLUGIN), "--device", "cpu"]
    words += ["--pass", "forward_backward", "--debug", "--out", str(out)]
    done = command(*words, PYTHONPATH=with_plugins()["PYTHONPATH"])
    assert done.returncode == 0, done.stderr
    return out, done.stderr


@pytest.mark.parametrize("suite", ["correctness", "memory"])  # memory forks the worker for each case
def test_a_process_that_dies_names_its_last_line(run: tuple[Path, str], suite: str) -> None:
    found = {r.case.backend: r for r in ssmperf.load(run[0]).records if r.case.suite == suite}
    record = found["crashing_fatal"]
    assert record.status is Status.CRASH
    expected = f"the worker was killed by SIGSEGV {at('# in backward', 'backward')}"
    assert record.reason == expected
    assert record.numbers["traceback"].startswith("Fatal Python error: Segmentation fault")
    assert "--backends crashing_fatal" in record.numbers["command"]
    assert f"--plugin {PLUGIN}" in record.numbers["command"]
    assert found["crashing_helper"].reason == EXPECTED["helper"]


def test_the_traceback_is_in_the_log_and_on_the_page_and_printed(run: tuple[Path, str]) -> None:
    folder, stderr = run
    records = ssmperf.load(folder).records
    log = (folder / "logs" / "worker-cpu.log").read_text()
    page = registry.report("html")([ssmperf.load(folder)], None)
    shown = [row.get("traceback", "") for row in Page(page).details]
    for record in records:
        last = record.numbers["traceback"].splitlines()[-1]
        assert last in log
        assert any(last in text for text in shown)
        assert f"  {last}" in stderr.splitlines()


def test_without_debug_only_the_reason_is_printed(capsys: pytest.CaptureFixture[str], run: Any) -> None:
    records = ssmperf.load(run[0]).records
    for debug in (False, True):
        shown = display.LineProgress(debug=debug)
        shown.begin(len(records), 0)
        for record in records:
            shown.finish(record)
        assert ("Traceback" in capsys.readouterr().err) == debug


@pytest.mark.slow
def test_the_words_of_an_earlier_case_are_no_reason(tmp_path: Path) -> None:
    result = ssmperf.run(
        "correctness",
        models="hgrn",
        backends="crashing_exits_later",
        axis=["T=5,6", "C=3"],
        pass_="forward",
        device="cpu",
        plugin=PLUGIN,
        out=tmp_path / "run",
    )
    reasons = {record.case.shape["T"]: record.reason for record in result.records}
    assert reasons == {5: None, 6: "the worker exited with 7"}


FATAL = """an earlier line
Fatal Python error: {title}

Thread 0x00007f3383e296c0 (most recent call first):
  File "/usr/lib/python3/threading.py", line 982 in run
  File "{plugin}", line 3 in waits

Current thread 0x00007f33a7041b80 (most recent call first):
{current}

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""


def test_the_stacks_of_a_fatal_error() -> None:
    frames = f'  File "/usr/lib/ctypes.py", line 5 in string_at\n  File "{PLUGIN}", line 9 in calls'

    def reason(**parts: str) -> str:
        failure = fatal_failure("it died", FATAL.format(plugin=PLUGIN, **parts))
        assert failure is not None and "Extension" not in failure.traceback
        return failure.reason.replace(f"{Path.cwd()}/", "")

    file = str(PLUGIN).replace(f"{Path.cwd()}/", "")
    assert reason(title="Bus error", current=frames) == f"it died at {file}:9 (calls)"
    assert reason(title="Aborted", current="  <no Python frame>") == f"it died at {file}:3 (waits)"
    kept = reason(title="deallocating None", current=frames)
    assert kept == f"it died: Fatal Python error: deallocating None at {file}:9 (calls)"
    assert fatal_failure("it died", "nothing of the kind") is None
    alone = fatal_failure("it died", "Fatal Python error: Aborted\n")
    assert alone is not None and alone.reason == "it died: Fatal Python error: Aborted"


def test_an_error_in_the_judges_process_has_its_place_there() -> None:
    from ssmperf.errors import JudgeFailed

    error = JudgeFailed("the judge failed: TypeError: no at mine.py:3 (loop)", "Traceback of the judge")
    failure = failure_of(error)
    assert failure.reason == "JudgeFailed: the judge failed: TypeError: no at mine.py:3 (loop)"
    assert failure.traceback == "Traceback of the judge"


def test_a_long_traceback_keeps_both_ends() -> None:
    text = bounded("\n".join(f"line {number} \x1b[31m" for number in range(10_000)))
    assert len(text) == LONGEST_TRACEBACK
    assert text.startswith("line 0 ") and "line 9999" in text and "\n  [...]\n" in text
    assert "\x1b" not in text


def test_compilers_of_other_kinds() -> None:
    log = "ninja: build stopped\n/tmp/none/x.cpp:12:5: fatal error: no_such.h: No such file\ncompilation"
    found = complaint_of(RuntimeError(log))
    assert found is not None and "no_such.h: No such file, line 12 of /tmp/none/x.cpp" in found.text
    assert complaint_of(RuntimeError("t() expects a tensor: error")) is None


def test_a_short_reason_keeps_its_place() -> None:
    end = " at kernels/mine.py:120 (scan_forward)"
    short = display.brief("ValueError: " + "many words " * 40 + end)
    assert len(short) == display.LONGEST_REASON and short.endswith(f"…{end}")
    far = display.brief(f"ValueError: {'many words ' * 40} at /{'folder/' * 40}mine.py:120 (scan_forward)")
    assert len(far) == display.LONGEST_REASON and far.endswith("/mine.py:120 (scan_forward)")
    assert display.brief(f"short{end}") == f"short{end}"
    assert len(display.brief("words at all " * 40)) == display.LONGEST_REASON
