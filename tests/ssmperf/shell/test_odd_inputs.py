"""Odd inputs end in one line or a verdict: closed pipes, other encodings, odd plug-ins, huge records."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ssmperf
from ssmperf import UsageError, WorkerFailed
from ssmperf.engine.cases import reading
from ssmperf.engine.registry import load_plugin
from ssmperf.engine.runs.store import load
from ssmperf.shell import cli
from ssmperf.shell.terminal.lists import summary
from ssmperf.suitekit import registry

PAIRS = Path(__file__).parents[1] / "comparison" / "pairs"
EXIT_CODES = {"ok": 0, "slower": 1, "broken": 3, "unsure": 4}
ODD_NAME = "od\udcffd"  # of a file, with a byte that is not UTF-8


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PAIRS / "ok", tmp_path / "pair"))


def command(*words: str | Path, out: int, err: int | None = None, encoding: str = "utf-8") -> int:
    """Run a command in this process, with standard output and error at these descriptors."""
    before = sys.argv, sys.stdout, sys.stderr
    sys.argv = ["ssmperf", *map(str, words)]
    try:
        with (
            os.fdopen(os.dup(out), "w", encoding=encoding) as stdout,
            os.fdopen(os.dup(out if err is None else err), "w", encoding=encoding) as stderr,
        ):
            sys.stdout, sys.stderr = stdout, stderr
            try:
                cli.main()
            except SystemExit as ended:
                assert isinstance(ended.code, int)
                return ended.code
    finally:
        sys.argv, sys.stdout, sys.stderr = before
    return 0


def outcome(*words: str | Path, encoding: str = "utf-8") -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, output and error."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = command(*words, out=out.fileno(), err=err.fileno(), encoding=encoding)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(encoding))
    return code, texts[0], texts[1]


def refused(*words: str | Path) -> str:
    """Run a command that must end with exit code 2 and one line; return the line."""
    code, _, err = outcome(*words)
    assert code == 2, err
    assert len(err.splitlines()) == 1 and err.startswith("ssmperf: ") and "internal" not in err, err
    return err


@contextlib.contextmanager
def closed_pipe() -> Iterator[int]:
    """Give the end to write to of a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    try:
        yield write
    finally:
        os.close(write)


# ---------------------------------------------------------------- where the output goes


@pytest.mark.parametrize("name", EXIT_CODES)
def test_a_closed_pipe_keeps_the_verdict(name: str, tmp_path: Path) -> None:
    pair = Path(shutil.copytree(PAIRS / name, tmp_path / "pair"))
    words = ("check", pair / "new", "--baseline", pair / "base")
    with closed_pipe() as pipe:
        assert command(*words, out=pipe) == EXIT_CODES[name]
        assert command(*words, "--json", out=pipe) == EXIT_CODES[name]
        with pytest.raises(BrokenPipeError):  # it is closed indeed
            os.write(pipe, b"x")


def test_a_closed_pipe_does_not_stop_what_is_written_to_files(pair: Path) -> None:
    page = pair / "page.html"
    with closed_pipe() as pipe:
        code = command("report", pair / "new", "--format", "markdown", "--html", page, out=pipe)
    assert (code, page.read_text().count("</html>")) == (0, 1)


def test_an_error_at_a_closed_pipe_keeps_its_exit_code() -> None:
    with closed_pipe() as pipe:
        assert command("report", "/nowhere", out=pipe) == 2
        assert command("list", "suites", out=pipe) == command("--help", out=pipe) == 0


@pytest.mark.slow(but=("full device",))
@pytest.mark.parametrize("sink", ["closed pipe", "full device", "none"])
def test_the_interpreter_ends_in_silence(sink: str, pair: Path) -> None:
    """Nothing is left in a buffer that its end would fail to write."""
    new, base = str(pair / "new"), str(pair / "base")
    verbs = {
        "closed pipe": ("check", new, "--baseline", base),
        "full device": ("report", "--help"),
        "none": ("report", new),
    }
    words = [sys.executable, "-m", "ssmperf.shell.cli", *verbs[sink]]
    if sink == "none":
        words = ["sh", "-c", '"$@" >&-', "sh", *words]
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(closed_pipe()) if sink == "closed pipe" else None
        out = stack.enter_context(Path("/dev/full").open("wb")).fileno() if sink == "full device" else out
        done = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    expected = (2, "ssmperf: cannot write to standard output: No space left on device\n")
    assert (done.returncode, done.stderr) == (expected if sink == "full device" else (0, ""))


def test_a_full_device_is_wrong_usage_only_for_what_is_asked_for(pair: Path) -> None:
    with Path("/dev/full").open("wb") as full, Path(os.devnull).open("wb") as null:
        words = ("report", pair / "new")
        assert command(*words, out=full.fileno(), err=null.fileno()) == 2
        assert command(*words, out=null.fileno(), err=full.fileno()) == 0
        assert command("--help", out=full.fileno(), err=null.fileno()) == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_becomes_a_question_mark(encoding: str, pair: Path) -> None:
    code, out, err = outcome("report", pair / "new", encoding=encoding)
    assert (code, err) == (0, "") and "100 " in out and "?" in out
    assert outcome("compare", pair / "base", pair / "new", encoding=encoding)[0] == 0
    assert outcome("list", "suites", encoding=encoding)[0] == 0
    code, _, err = outcome("report", "/nowhere-Ω", encoding=encoding)
    assert (code, "/nowhere-? is not a run folder" in err) == (2, True)


@pytest.mark.slow
def test_progress_is_written_in_any_encoding(tmp_path: Path, own_registrations: None) -> None:
    plugin = tmp_path / "failing.py"
    plugin.write_text(
        "import ssmperf\n"
        "@ssmperf.backend('scan', name='failing')\n"
        "def failing(log_a, b, initial_state=None, *, phase=None):\n"
        "    raise RuntimeError('Ω \\udcff')\n"
    )
    out = tmp_path / ODD_NAME
    chosen = ("--models", "scan", "--backends", "failing", "--regime", "sigmoid/data", "--axis", "T=4")
    words = ("--suite", "correctness", "--device", "cpu", "--plugin", plugin, "--tag", ODD_NAME, "--out", out)
    code, shown, err = outcome("run", *words, *chosen, encoding="ascii")
    assert code == 0, err
    assert "RuntimeError: ? ?" in err and "od?d" in shown
    assert [str(record.status) for record in load(out).records] == ["crash"]
    assert load(out).meta["tag"] == "od?d"


# ---------------------------------------------------------------- what is asked for


@pytest.mark.parametrize("devices", ["²", "-1", "", "0,,1", "٣", "9" * 5000])
def test_devices_are_plain_numbers(devices: str) -> None:
    assert "--devices takes CUDA indices" in refused("run", "--suite", "throughput", "--devices", devices)


@pytest.mark.parametrize("size", ["T=²", f"T={2**63}", "T=" + "9" * 5000, f"T=1:{'9' * 5000}:x2"])
def test_sizes_have_a_limit(size: str) -> None:
    assert len(refused("run", "--suite", "throughput", "--models", "scan", "--axis", size)) < 6000


def test_a_destination_needs_a_format(pair: Path, tmp_path: Path) -> None:
    assert "--out needs --format" in refused("report", pair / "new", "--out", tmp_path / "out")
    assert "--out needs --format" in refused("report", pair / "new", "--html", tmp_path / "a", "--out", "b")
    assert not (tmp_path / "a").exists()


def test_names_that_no_file_can_have_are_refused(tmp_path: Path) -> None:
    for name in ("x" * 5000, "\x1b[2J\n", ODD_NAME):
        assert "\x1b" not in refused("report", tmp_path / name)
        assert "\x1b" not in refused("list", "--plugin", tmp_path / name)
    small = ("run", "--models", "scan", "--device", "cpu")
    assert "unknown suite" in refused(*small, "--suite", "x" * 5000, "--dry-run")
    assert "cannot use xxx" in refused(*small, "--suite", "throughput", "--resume", "--out", "x" * 5000)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "cannot use xxx" in refused("ab", "--base", "x" * 5000, "--new", "HEAD")
    assert "loop" in refused(*small, "--suite", "throughput", "--resume", "--out", tmp_path / "loop")
    with pytest.raises(UsageError, match="null"):
        load_plugin("a\0b")


# ---------------------------------------------------------------- plug-ins


def test_a_circle_of_links_is_no_plugin(tmp_path: Path) -> None:
    (tmp_path / "a.py").symlink_to(tmp_path / "b.py")
    (tmp_path / "b.py").symlink_to(tmp_path / "a.py")
    assert "a.py" in refused("list", "--plugin", tmp_path / "a.py")


def test_a_plugin_that_calls_the_command_line_with_itself_is_refused(tmp_path: Path) -> None:
    plugin = tmp_path / "own.py"
    words = ["ssmperf", "list", "--plugin", str(plugin)]
    plugin.write_text(f"import sys\nfrom ssmperf.shell import cli\nsys.argv = {words}\ncli.main()\n")
    code, _, err = outcome("list", "--plugin", plugin)
    assert code == 2 and "it starts ssmperf with itself" in err and "Traceback" not in err
    assert err.count("ssmperf: ") == 2  # the inner and the outer command


def test_a_plugin_that_starts_a_process_with_itself_is_refused(tmp_path: Path) -> None:
    plugin, log = tmp_path / "own.py", tmp_path / "log"
    plugin.write_text(
        "import subprocess, sys\n"
        f"with open({str(log)!r}, 'a') as log:\n"
        f"    command = [sys.executable, '-m', 'ssmperf.shell.cli', 'list', '--plugin', {str(plugin)!r}]\n"
        "    log.write(f'{subprocess.run(command, stderr=log).returncode}\\n')\n"
    )
    assert outcome("list", "suites", "--plugin", plugin)[0] == 0
    assert log.read_text().splitlines()[-1] == "2" and log.read_text().count("itself as a plug-in") == 1
    assert not any("SSMPERF_BEING" in name for name in os.environ)


# ---------------------------------------------------------------- what is not the user's fault


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (WorkerFailed("no worker could be started"), "ssmperf: no worker could be started"),
        (MemoryError("no room"), "ssmperf: out of memory: MemoryError: no room"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "ssmperf: out of memory: OSError"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "ssmperf: out of memory: RuntimeError"),
    ],
    ids=["worker", "memory", "system", "torch"],
)
def test_failed_workers_and_lack_of_memory_are_not_wrong_usage(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise error

    monkeypatch.setattr(summary, "table", fail)
    code, _, err = outcome("list")
    assert code == 3 and err.startswith(text), err
    assert "usage" not in err and "internal" not in err


def test_a_plugin_without_memory_is_not_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("raise MemoryError('no room')\n")
    code, _, err = outcome("list", "--plugin", tmp_path / "large.py")
    assert code == 3 and "out of memory" in err


def test_an_error_of_ours_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "table", functools.partial(int, "x"))
    code, _, err = outcome("list")
    assert code == 3 and err.startswith("ssmperf: internal error: ValueError") and len(err.splitlines()) == 1


# ---------------------------------------------------------------- what a folder holds


def change(file: Path, line: int, **fields: Any) -> None:
    """Change fields of one line of JSON in a file."""
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    lines[line] = json.dumps({**json.loads(lines[line]), **fields})
    file.write_text("\n".join(lines) + "\n")


FORMATS = ("table", "markdown", "csv", "parquet", "json", "html")


def read_in_all_ways(pair: Path) -> dict[str, bytes]:
    """Read a pair of runs in all ways that must end with a verdict; return the files by format."""
    found = {}
    for name in FORMATS:
        file = pair / f"report.{name}"
        assert outcome("report", pair / "new", "--format", name, "--out", file)[0] == 0
        found[name] = file.read_bytes() if file.exists() else b""
    assert outcome("best", pair / "new")[0] == 0
    page = pair / "comparison.html"
    assert outcome("compare", pair / "base", pair / "new", "--html", page)[0] in (0, 1, 3, 4)
    check = (
        "check",
        pair / "new",
        "--baseline",
        pair / "base",
        "--junit",
        pair / "x",
        "--summary",
        pair / "y",
    )
    assert outcome(*check)[0] in (0, 1, 3, 4)
    return {**found, "comparison": page.read_bytes()}


@pytest.mark.parametrize(
    "fields",
    [
        {"latency_s": 0, "samples_s": [0, 0, 0, 0, 0]},
        {"latency_s": -1e-3, "samples_s": [-1e-3, 2e-3, 1e-3]},
        {"latency_s": 1e-3, "samples_s": [0.0, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3]},
        {"latency_s": 1e-3, "samples_s": [None]},
        {"latency_s": float("nan"), "samples_s": [float("inf")]},
        {"latency_s": 10**400, "latency_low_s": 1e308, "samples_s": [1e308] * 9},
        {"latency_s": [1e-3, 2e-3], "latency_low_s": [1e-3]},
        {"latency_low_s": [1e-3], "latency_high_s": [2e-3], "issue_s": [1.0]},
        {"kernels": [{}], "doubts": [["x"], {"y": []}]},
    ],
)
@pytest.mark.slow(but=("fields3",))
def test_samples_that_are_no_times_are_not_compared(fields: dict[str, Any], pair: Path) -> None:
    change(pair / "new" / "records.jsonl", 0, **fields)
    read_in_all_ways(pair)


def test_a_run_may_lack_what_it_was_asked_for(pair: Path) -> None:
    change(pair / "new" / "run.json", 0, argv=3.5, created=[], tag={}, plan={"cases": "x", "case_ids": 3})
    read_in_all_ways(pair)
    selection = json.loads((pair / "base" / "run.json").read_text())["selection"]
    del selection["backends"]
    change(pair / "base" / "run.json", 0, selection=selection)
    assert "its selection is not understood" in refused("compare", pair / "base", pair / "new")


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("records.jsonl", {"latency_s": "fast"}),
        ("records.jsonl", {"samples_s": {"a": 1}}),
        ("records.jsonl", {"shape": {"T": "8"}}),
        ("records.jsonl", {"shape": {"T": 2**70}}),
        ("records.jsonl", {"status": []}),
        ("records.jsonl", {"reason": 3}),
        ("run.json", {"environments": []}),
        ("run.json", {"schema_version": "1"}),
        ("run.json", {"suites": {"throughput": 3}}),
        ("run.json", {"plan": []}),
    ],
)
def test_values_of_wrong_types_are_damage(file: str, fields: dict[str, Any], pair: Path) -> None:
    change(pair / "new" / file, 0, **fields)
    assert "damaged" in refused("report", pair / "new") or "not a run" in refused("report", pair / "new")


def test_numbers_and_texts_that_cannot_be_kept_are_taken_out() -> None:
    assert reading.parse('{"a": [NaN, 1e999, -Infinity, 1.5], "\\udcff": "\\udcff\\ud83d\\ude00"}') == {
        "a": [None, None, None, 1.5],
        "?": "?\U0001f600",
    }
    assert reading.parse(f"[1{'0' * 400}, 12]") == [None, 12]
    for text in ("[" * 100 + "]" * 100, "[" * 10**5, b"\xff", "1" * 10**4):
        with pytest.raises(ValueError, match=r"."):
            reading.parse(text)


@pytest.mark.slow
def test_two_million_samples_are_read_and_shown_in_a_bounded_page(pair: Path) -> None:
    many = json.dumps([1e-4 * (1 + each % 1000 * 1e-9) for each in range(1000)])[1:-1]
    file = pair / "new" / "records.jsonl"
    first, *others = file.read_text().splitlines(keepends=True)
    huge = f'{first.rstrip()[:-1]}, "samples_s": [{", ".join([many] * 2000)}]}}\n'
    file.write_text("".join([huge, *others]))
    long = ["y" * 10**6] * 9
    change(pair / "new" / "records.jsonl", 1, every_s=[1e-4] * 10**5, command="x" * 10**6, busy=long)
    runs = [load(pair / name) for name in ("base", "new")]
    assert len(runs[1].records[0].numbers["samples_s"]) == 2_000_000
    for name in ("html", "markdown"):
        assert len(str(registry.report(name)(runs[1:], None))) < 500_000
    found = ssmperf.compare_runs(*runs)
    assert len(found.pairs) == 6 and len(str(registry.report("table", "comparison")(found, None))) < 10_000


@pytest.mark.slow
def test_names_that_are_not_utf_8_are_shown(tmp_path: Path) -> None:
    pair = Path(shutil.copytree(PAIRS / "slower", tmp_path / ODD_NAME))
    change(pair / "new" / "run.json", 0, tag=ODD_NAME, argv=["run", "--tag", ODD_NAME], plugins=[ODD_NAME])
    change(pair / "new" / "records.jsonl", 0, command=ODD_NAME)
    assert all(
        b"od?d" in text for kind, text in read_in_all_ways(pair).items() if kind in ("html", "json", "csv")
    )
    files = read_in_all_ways(pair)
    assert all(b"od?d" in files[kind] for kind in ("html", "json", "csv"))
