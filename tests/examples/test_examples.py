"""The files of examples/: each runs by the commands in its docstring, and a fault in a copy is found."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.processes.command_line import Call, caller
from support.processes.commands import chosen
from support.processes.in_process import records_of
from support.processes.quick_processes import command
from support.registrations import built_in_backends

import ssmperf
from ssmperf import Record, Status
from ssmperf.engine.registry.presets import PRESETS
from ssmperf.suitekit import registry

ROOT = Path(__file__).parents[2]
EXAMPLES = {file.name: file for file in sorted((ROOT / "examples").glob("*.py"))}
KEPT = ROOT / "docs" / "results" / "h200-lengths"  # a run to report
SMALL = ("B=2", "T=16", "C=4")
TRAINING = replace(PRESETS["smoke"].training, updates=2, seeds=1, rates=(5e-3,))
FINE = {Status.OK, Status.UNSUPPORTED}
INTERPRETED = "TRITON_INTERPRET=1"

# per example: what it registers, a line, and a wrong one
FAULTS = {
    "backend.py": ("my_loop", "state = a_t * state + b_t", "state = 0.9 * a_t * state + b_t"),
    "model.py": ("t_rnn", "h = f_t * h + ", "h = f_t * f_t * h + "),
}
# a backend whose results are right and differ from call to call
RESTLESS = """
from ssmperf.authoring import backend

calls = []

@backend("scan", name="restless", gates=("data",))
def restless(log_a, b, initial_state=None, *, phase=None):
    import ssmperf
    output, state = ssmperf.registry.backend("scan", "sequential").function(log_a, b, initial_state)
    calls.append(None)
    return output * (1 + len(calls) * 2.0**-23), state
"""


def commands(file: Path) -> list[str]:
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return re.findall(r"^    (ssmperf .*)$", docstring, re.MULTILINE)


def records(file: Path, line: str, **others: object) -> list[Record]:
    """Run the small cases of a command in this process, with a file as its plug-in."""
    suites, choices = chosen(line)
    # not the backends that other tests registered in this process, which may end it
    own = ",".join(backend.name for backend in built_in_backends("scan"))
    choices = {"backends": own, **choices, "axis": SMALL, **others}
    return [each for suite in suites for each in records_of(suite, file, training=TRAINING, **choices)]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_registrations: None
) -> Call:
    return caller(monkeypatch, capsys)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short(name: str) -> None:
    assert len(EXAMPLES[name].read_text().splitlines()) <= 70


@pytest.mark.slow(but=("backend.py", "model.py", "report.py"))
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, call: Call) -> None:
    file = EXAMPLES[name]
    (line,) = [each for each in commands(file) if f"--plugin examples/{name}" in each]
    verb, place, *options = shlex.split(line)[1:]
    if verb == "report":
        assert place.startswith("runs/")
        options[options.index(f"examples/{name}")] = str(file)
        code, out, err = call("report", KEPT, *options)
        assert code == 0 and out, err
        return
    found = records(file, line)
    assert {record.status for record in found} <= FINE, [record.reason for record in found]
    if INTERPRETED in file.read_text():
        assert all(INTERPRETED in str(record.reason) for record in found if record.status is not Status.OK)
    else:
        assert Status.OK in {record.status for record in found}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_commands_of_an_example_end_well(name: str, tmp_path: Path) -> None:
    """As a person types them."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    variables = {"TRITON_INTERPRET": "1"} if INTERPRETED in EXAMPLES[name].read_text() else {}
    for line in commands(EXAMPLES[name]):
        words = shlex.split(line)[1:]
        small = ("--preset", "smoke", "--updates", "2", "--seeds", "1", "--rates", "0.005", "--strict")
        done = command(*words, *small * (words[0] == "run"), folder=tmp_path, **variables)
        assert done.returncode == 0 and done.stdout, done.stderr
    (run,) = (ssmperf.load(folder) for folder in (tmp_path / "runs").iterdir())
    statuses = {record.status for record in run.records}
    assert Status.OK in statuses and statuses <= FINE


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_copy_is_found(name: str, tmp_path: Path) -> None:
    """The copy has another name, since a process keeps the layer of a model's name."""
    registered, right, wrong = FAULTS[name]
    text = EXAMPLES[name].read_text().replace(registered, f"broken_{registered}")
    assert text.count(right) == 1
    copy = tmp_path / name
    copy.write_text(text.replace(right, wrong))
    (line,) = commands(copy)
    found = records(copy, line.replace("correctness,throughput", "correctness"))
    assert {record.status for record in found} - {Status.UNSUPPORTED} == {Status.WRONG}


def test_the_backend_refuses_what_is_too_long(own_registrations: None) -> None:
    registry.load_plugin(EXAMPLES["backend.py"])
    b = torch.zeros(1, 65537, 1)
    with pytest.raises(ssmperf.Unsupported, match="longer than 65536 steps"):
        registry.backend("scan", "my_loop").function(b, b)


@pytest.mark.usefixtures("own_registrations")
def test_the_model_computes_its_equation_in_pieces_and_trains() -> None:
    registry.load_plugin(EXAMPLES["model.py"])
    torch.manual_seed(0)
    layer = registry.model("t_rnn").cls(ssmperf.Shape(B=2, T=9, C=4)).double()
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    y, state = layer(x, backend="blelloch")
    torch.testing.assert_close(y, layer.definition(x), rtol=1e-9, atol=1e-10)
    halfway, between = layer(x[:, :5], backend="blelloch")
    rest, after = layer(x[:, 5:], backend="blelloch", state=between)
    torch.testing.assert_close((torch.cat([halfway, rest], dim=1), after), (y, state))
    y.square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in layer.parameters())


def test_the_suite_tells_backends_apart(tmp_path: Path) -> None:
    (tmp_path / "suite.py").write_text(EXAMPLES["suite.py"].read_text() + RESTLESS)
    (line,) = commands(EXAMPLES["suite.py"])
    found = records(tmp_path / "suite.py", line, backends="sequential,restless")
    assert {record.status for record in found} == {Status.OK}, [record.reason for record in found]
    answers = {r.case.backend: (r.numbers["same_output"], r.numbers["same_state"]) for r in found}
    assert answers == {"sequential": (True, True), "restless": (False, True)}


def test_the_report_compares_times_of_the_same_case(call: Call, tmp_path: Path) -> None:
    registry.load_plugin(EXAMPLES["report.py"])
    run = ssmperf.load(KEPT)
    lines = registry.report("slowdown")([run]).splitlines()[1:]
    shown = {tuple(words[1:-1]): float(words[-1]) for words in map(str.split, lines)}
    right = [record for record in run.records if record.status is Status.OK]
    assert len(shown) == len(lines) == len(right)
    for record in right:
        case = record.case
        times = [
            each.numbers["latency_s"] for each in right
            if (each.case.model, each.case.shape) == (case.model, case.shape)
        ]  # fmt: skip
        key = (case.model, *str(case.shape).split(), case.dtype, case.pass_, case.backend)
        assert shown[key] == pytest.approx(record.numbers["latency_s"] / min(times), rel=1e-4)
    file = tmp_path / "table.txt"
    assert call("report", KEPT, "--format", "slowdown", "--out", file)[0] == 0
    assert file.read_text().splitlines()[1:] == lines


def test_the_report_asks_for_times(own_registrations: None) -> None:
    registry.load_plugin(EXAMPLES["report.py"])
    run = ssmperf.load(KEPT)
    without = replace(run, records=[replace(record, numbers={}) for record in run.records])
    with pytest.raises(ssmperf.UsageError, match="run the suite throughput"):
        registry.report("slowdown")([without])


def test_the_task_gives_what_it_says(own_registrations: None) -> None:
    registry.load_plugin(EXAMPLES["task.py"])
    task = registry.task("parity:modulus=3")
    found = task.sample(ssmperf.Draw(2, 9, trained=9, seed=1))
    assert found.targets[0].tolist() == [sum(found.tokens[0, : end + 1].tolist()) % 3 for end in range(9)]
    assert (task.name, task.classes, task.chance(9)) == ("parity:modulus=3", 3, 1 / 3)
