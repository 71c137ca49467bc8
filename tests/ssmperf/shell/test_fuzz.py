"""Random command lines and damaged run folders: every verb ends with a documented exit code and no traceback.

`--hypothesis-profile=long` (see tests/conftest.py) tries many more of them.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ssmperf.engine.cases.case import chosen_axes
from ssmperf.engine.plan.run_options import GROUPS
from ssmperf.errors import ExitCode
from ssmperf.shell import cli
from ssmperf.shell.cli.app import app

PAIRS = Path(__file__).parents[1] / "comparison" / "pairs"
DOCUMENTED = {int(code) for code in ExitCode} - {int(ExitCode.INTERRUPTED)}
COMMANDS = typer.main.get_command(app).commands
VERBS = tuple(COMMANDS)
FORMATS = ("markdown", "csv", "parquet", "json", "html", "table", "best", "best_json")


def tries(few: int) -> settings:
    """Give the settings of a test: few examples, or as many as a longer profile asks for."""
    usual, asked = settings.get_profile("default").max_examples, settings.default.max_examples
    unhurried = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(
        max_examples=few if asked <= usual else asked, deadline=None, suppress_health_check=unhurried
    )


def outcome(*words: str) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code and output, and check that it ended well."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["ssmperf", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as ended:
        code = 0 if ended.code is None else ended.code
    finally:
        sys.argv = before
    assert isinstance(code, int) and code in DOCUMENTED, (code, err.getvalue())
    text = out.getvalue() + err.getvalue()
    assert "Traceback" not in text and "--debug shows" not in text, (words, text[-3000:])
    if code == ExitCode.USAGE:
        said = [line for line in err.getvalue().splitlines() if not line.startswith("warning: ")]
        assert len(said) == 1 and said[0].startswith("ssmperf: "), err.getvalue()
    return code, out.getvalue(), err.getvalue()


# ---------------------------------------------------------------- the command line

# With one of them, a command may write to any path, measure a run again, or print a traceback on purpose.
KEPT_OUT = (
    "--", "--out", "--figures", "--html", "--junit", "--summary", "--dir", "--write-configurations",
    "--remeasure", "--debug",
)  # fmt: skip
RUN_OPTIONS = (
    *(each.option for group in GROUPS for each in group.declared().values()),
    *(each.option for each in chosen_axes().values()),
)
OF_VERBS = (option for verb in COMMANDS.values() for each in verb.params for option in each.opts)
OPTIONS = tuple(dict.fromkeys(each for each in (*OF_VERBS, "--help", "--version") if each.startswith("--")))
VALUES = (
    "throughput", "correctness", "scan", "gla", "mamba", "lcsm:1-1-1-0", "pese_lr:n=8", "lcsm:", "sequential",
    "triton", "smoke", "long", "T=8", "T=8:64:x2", "T=²", "C=0", "T=1:9999999999999999999999:x2", "cpu",
    "cuda", "cuda:7", "²", "0,1", "bf16", "float32", "time_last", "sigmoid/key", "phase", "analytic/x",
    "decode", "my_kernel",
    "forward", "block", "end-to-end", "-1", "0", "1e400", "nan", "inf", "5%", "0.05", "99999999999999999999",
    "markdown", "parquet", "5+7", "fail", "pass", "models", "shapes", "base", "new", ".", "/dev/null",
    "/nowhere", "=", "", ",", "--", "-", "\x1b[2J", "\udcff", "T=" + "9" * 5000,
)  # fmt: skip
WORDS = (
    st.sampled_from(OPTIONS)
    | st.sampled_from(VALUES)
    | st.text(st.characters(exclude_characters="\0"), max_size=8)
)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with two runs, `base` and `new`."""
    monkeypatch.chdir(shutil.copytree(PAIRS / "slower", tmp_path / "pair"))


def dry(verb: str, words: Sequence[str]) -> list[str]:
    """Make a command that measures nothing: a dry run, or a verb that cannot start to measure."""
    chosen = [word for word in words if word not in KEPT_OUT]
    if verb == "run":
        return ["run", "--dry-run", *chosen]
    # an argument that is refused before anything is measured
    refused = {
        "profile": ["--pass", "sideways"],
        "calibrate": ["--models", "no-model"],
        "ab": ["--pairs", "x"],
        "bisect": ["--pairs", "x"],
        "fuzz": ["--minutes", "x"],
        "reproduce": ["--preset", "sideways"],
    }
    return [verb, *chosen, *refused.get(verb, ["--device", "tpu"] if verb == "doctor" else [])]


@pytest.mark.slow
@tries(100)
@given(st.sampled_from(VERBS), st.lists(WORDS, max_size=7))
@pytest.mark.usefixtures("elsewhere")
def test_any_words_end_with_a_documented_exit_code(verb: str, words: list[str]) -> None:
    outcome(*dry(verb, words))


@pytest.mark.slow
@tries(60)
@given(st.lists(st.tuples(st.sampled_from(RUN_OPTIONS), st.sampled_from(VALUES)), max_size=4))
@pytest.mark.usefixtures("elsewhere")
def test_any_options_of_a_run_end_with_a_documented_exit_code(options: list[tuple[str, str]]) -> None:
    outcome(
        *dry(
            "run", ["--suite", "throughput", "--models", "scan", *(word for pair in options for word in pair)]
        )
    )


# ---------------------------------------------------------------- run folders

ODD = st.sampled_from(
    (None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 1e308, -1e308, 1e-320, 0.0, -0.0, "", "x",
     "\x1b[31m", "\udcff", "<b>&", "NaN", [], {}, [None], [[]], [{}], {"": None}, [1, "2", None], [0.0], "ok",
     [1e308, 1e308], {"a": {"b": {"c": []}}}, float("nan"), float("inf"), [float("nan")], "x" * 3000, "wrong",
     [-1.0, 2.0], "a\nb\tc", "2026-01-01", "../..", "throughput", "float32", "nan", [["a", 1]], [3] * 3000,
     {"output": "x"}, {"output": -1})
)  # fmt: skip
DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]
ANY = ODD | st.just(DEEP) | st.floats() | st.integers() | st.text(max_size=5)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """List the paths of the parts of a JSON value, of a list only the first two."""
    yield path
    items = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    for key, item in items:
        yield from places(item, (*path, key))


@st.composite
def damages(draw: st.DrawFn) -> Callable[[Path], None]:
    """A function that damages a file of JSON lines, or a file of one JSON object."""
    kind = draw(st.sampled_from(("value", "value", "value", "value", "drop", "add", "bytes", "twice")))
    number, share, odd = draw(st.integers(0, 10)), draw(st.floats(0, 1, exclude_max=True)), draw(ANY)
    name = draw(st.sampled_from(ADDED))
    noise, depth = draw(st.binary(max_size=4)), draw(st.sampled_from((1, 9)))

    def damage(file: Path) -> None:
        whole = file.read_bytes()
        if kind == "bytes":
            place = int(share * len(whole))
            file.write_bytes(whole[:place] + noise + (whole[place + len(noise) :] if number % 2 else b""))
            return
        parts = (file.suffix == ".jsonl" and whole.splitlines()) or [whole]
        chosen = number % len(parts)
        data = json.loads(parts[chosen])
        paths = [each for each in places(data) if len(each) <= depth]
        path = paths[int(share * len(paths))]
        if kind == "twice":
            text = json.dumps(data)
            parts[chosen] = f"{text[:-1]}, {json.dumps(name)}: {json.dumps(odd)}}}".encode()
        else:
            parts[chosen] = json.dumps(changed(data, path, kind, name, odd)).encode()
        file.write_bytes(b"\n".join(parts) + b"\n")

    return damage


ADDED = (
    "latency_s", "samples_s", "latency_low_s", "latency_high_s", "round", "round_values", "busy", "doubts",
    "errors", "tolerances", "row_errors", "configuration", "traceback", "error_bound", "declared_bound",
    "approximate", "mark", "standing", "speedup", "run", "subject", "topic", "T", "B", "environment",
    "hardware", "converged", "issue_s", "peak_bytes", "copy_fraction", "limit", "kernels", "command",
    "status", "reason", "env_id", "fastest", "rounds", "case_id", "schema_version", "calibration", "index",
    "level_0", "", "value", "properties", "error_envelope",
)  # fmt: skip


def changed(data: Any, path: tuple[Any, ...], kind: str, name: str, odd: Any) -> Any:
    """Replace the part at a path, leave it out, or add an entry beside it."""
    if not path:
        return {**data, name: odd} if kind == "add" and isinstance(data, dict) else odd
    if len(path) > 1 or kind == "value":
        key = path[0]
        inner = changed(data[key], path[1:], kind, name, odd)
        if isinstance(data, dict):
            return {**data, key: inner}
        return [*data[:key], inner, *data[key + 1 :]]
    if kind == "drop" and isinstance(data, dict):
        return {key: value for key, value in data.items() if key != path[0]}
    return {**data, name: odd} if isinstance(data, dict) else [*data, odd]


def readers(base: Path, new: Path, folder: Path) -> Iterator[tuple[str, ...]]:
    """List commands that read both runs, in all formats."""
    runs = (str(base), str(new))
    yield "report", *runs
    for name in FORMATS:
        yield "report", *runs, "--format", name, "--out", str(folder / name)
    yield "report", *runs, "--html", str(folder / "page.html")
    yield "compare", *runs, "--html", str(folder / "both.html")
    yield "compare", *runs, "--json", "--force"
    yield (
        "check",
        str(new),
        "--baseline",
        str(base),
        "--junit",
        str(folder / "x"),
        "--summary",
        str(folder / "y"),
    )
    yield "best", *runs
    yield "best", *runs, "--json"


@pytest.mark.slow
@tries(25)
@given(
    st.sampled_from(("ok", "slower", "broken")),
    st.lists(st.tuples(st.sampled_from(("base", "new")), st.booleans(), damages()), min_size=1, max_size=4),
)
def test_damaged_runs_are_read_or_refused(
    pair: str, done: list[tuple[str, bool, Callable[[Path], None]]]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(PAIRS / pair, folder / "runs")
        base, new = folder / "runs" / "base", folder / "runs" / "new"
        for which, records, damage in done:
            with contextlib.suppress(ValueError, RecursionError, TypeError):  # damaged before
                damage(folder / "runs" / which / ("records.jsonl" if records else "run.json"))
        refused = outcome("report", str(base), str(new))[0] == ExitCode.USAGE
        for words in readers(base, new, folder):
            outcome(*words)
            if refused:
                break
