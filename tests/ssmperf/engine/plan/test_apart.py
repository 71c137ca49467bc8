"""A driver that imports no plug-in knows of its cases what one that imports it knows."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.registrations import keep_apart

from ssmperf.authoring import backend
from ssmperf.engine.execute.lane import facts_of
from ssmperf.engine.execute.request import Request
from ssmperf.engine.execute.stand_ins import StandIns
from ssmperf.engine.plan.command import command_that_repeats
from ssmperf.engine.plan.estimate import expected_s, may_share
from ssmperf.engine.plan.parts import outlines
from ssmperf.engine.plan.parts.apart import planned_apart
from ssmperf.engine.plan.parts.groups import groups_of, kernels_of
from ssmperf.engine.plan.parts.household import household
from ssmperf.engine.plan.plan import Plan, make_plan
from ssmperf.engine.registry import discovery
from ssmperf.engine.runs import scope
from ssmperf.errors import DuplicateName, PlanFailed, UsageError
from ssmperf.suitekit import registry

PLUGIN = '''
import os
import torch
from torch.nn import functional
import ssmperf
from ssmperf.authoring import Draw, Examples, Model, Task, analytic, backend, identity, model, task
from ssmperf.suitekit import Section, product, suite

os.environ["PLANTED_BY_A_PLUG_IN"] = "1"

def definition(log_a, b, initial_state=None, *, phase=None):
    return b, b[:, -1]

@backend("scan", name="planted_other", equivalent=False, definition=definition, kernels=("planted",),
         launches=lambda shape: 40.0 * shape["T"],
         workspace=lambda shape, itemsize, gate: itemsize * shape["C"],
         serial_steps=lambda shape, gate: float(shape["T"]), compiles_per_shape=True)
def planted_other(log_a, b, initial_state=None, *, phase=None):
    return definition(log_a, b)

@backend("scan", name="planted_bounded", error_bound=lambda span, dtype: 1e-3,
         lengths=lambda T: "too long" if T > 64 else None)
def planted_bounded(log_a, b, initial_state=None, *, phase=None):
    return definition(log_a, b)

@model("planted_rnn", recurrence="scan", paper="none", gate="data")
class Planted(Model):
    def __init__(self, shape, *, gain: int = 1):
        super().__init__(shape)
        self.gain = gain

    def operands(self, x):
        return {"log_a": functional.logsigmoid(x.float()), "b": self.gain * x}

    def readout(self, output, x):
        return output

    def definition(self, x):
        return x

SECTION = Section(title="Planted", question="What?", columns=("x",), rank="latency_s")

@suite("planted_suite", section=SECTION, fresh_process=True, case_s={"cpu": 3.0}, sources=("planted",))
class Suite:
    driver_times, judged_sizes, least_judgements = True, ("T",), 7

    def cases(self, selection):
        return product(selection, self.name, passes=("forward",), dtypes=("float32",), cache="hot")

    def measure(self, case, context): ...

    def forecast_s(self, case, training):
        return 5.0 + case.shape["T"] if case.shape["T"] < 100 else None

@task("planted_parity")
def parity(*, modulus: int = 2) -> Task:
    """Count.

    modulus: the number of classes.
    """
    return Task(vocabulary=2, classes=modulus, sample=lambda draw: None)

@analytic(of="scan", name="planted_form", source="none")
def form():
    ones = torch.ones(1, 3, 2, dtype=torch.float64)
    return {"log_a": -ones, "b": 0 * ones}, 0 * ones, None

@identity("planted_identity", of="scan", subjects=("hgrn",), source="none")
def same(compute):
    ones = torch.ones(1, 3, 2, dtype=torch.float64)
    return [("itself", ones, compute("scan", log_a=-ones, b=ones)[0])]
'''
LEAVES = """
import pathlib, subprocess
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path(__file__).with_suffix(".left").write_text(str(left.pid))
"""
CHOICES: dict[str, dict[str, Any]] = {
    "backends": {"suite": "throughput,correctness", "models": "scan", "regime": "sigmoid/data"},
    "a GPU": {"suite": "throughput", "models": "hgrn,scan", "device": "cuda", "preset": "standard"},
    "a model with an option": {"suite": "throughput", "models": "planted_rnn:gain=3,mingru"},
    "a suite": {"suite": "planted_suite,correctness", "models": "hgrn,planted_rnn"},
    "all models": {"suite": "planted_suite", "backends": "planted_other,blelloch"},
    "known answers": {"suite": "correctness", "models": "scan", "regime": "analytic,identity"},
    "a task": {
        "suite": "extrapolation",
        "models": "mingru",
        "regime": "task/planted_parity:modulus=3,task/mqar",
    },
}


def ask(tmp_path: Path, **choices: Any) -> Request:
    return Request.of(**choices, out=tmp_path / "run", planning=True)


def knowledge(request: Request, plan: Plan) -> dict[str, Any]:
    """Collect what a driver asks its registry about a plan."""
    cases = plan.to_run
    stand_ins = StandIns(plan, request.selection)
    backends = [registry.backend(case.owner, case.backend) for case in cases]
    files = [registry.file_of("backend", f"{each.of}/{each.name}") for each in backends]
    suites = {name: registry.suite(name) for name in request.suites}
    return {
        "cases": [(item.case, item.refusal) for item in plan.cases],
        "households": [household(case) for case in cases],
        "facts": [facts_of(case, searches=True) for case in cases],
        "shared": [may_share(case) for case in cases],
        "seconds": [expected_s([case], training=request.scale.training) for case in cases],
        "groups": [[case.id for case in group] for group in groups_of(cases, None)],
        "kernels": [kernels_of(case) for case in cases],
        "commands": [command_that_repeats(case) for case in cases],
        "leaders": {id_: case.id for id_, case in stand_ins.leaders.items()},
        "files": files,
        "plugins": registry.plugins(),
        "selection": scope.describe(request.selection, request.suites, plan),
        "sections": {name: suite.section for name, suite in suites.items()},
        "declared": [
            (suite.driver_times, suite.judged_sizes, suite.least_judgements)
            for name, suite in suites.items()
            if name == "planted_suite"
        ],
    }


@pytest.fixture
def planted(tmp_path: Path, own_registrations: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(discovery, "plugin_files", [])
    monkeypatch.setattr(outlines, "_added", [])
    monkeypatch.setattr(outlines, "_registered", {})
    file = tmp_path / "planted.py"
    file.write_text(PLUGIN)
    return file


@pytest.mark.slow(but=("a GPU", "a suite", "a task", "known answers"))
@pytest.mark.parametrize("what", CHOICES)
def test_outlines_tell_what_a_plug_in_does(what: str, planted: Path, tmp_path: Path) -> None:
    make, before = partial(ask, tmp_path, **CHOICES[what]), set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        keep_apart(patch)
        request, plan = planned_apart([planted], make)
        assert plan is not None
        apart = knowledge(request, plan)
        assert not {name for name in sys.modules if name.startswith(discovery.PLUGIN)} - before
        assert "PLANTED_BY_A_PLUG_IN" not in os.environ
        outlines.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANTED_BY_A_PLUG_IN", "")  # is gone with the patch
        keep_apart(patch)
        registry.load_plugin(planted)
        here = make()
        together = knowledge(here, make_plan(here.selection, here.suites))
    for name, known in together.items():
        assert apart[name] == known, name


HARMS = (
    PLUGIN
    + """
from ssmperf.engine.plan import plan
honest = plan.refusal

def refusal(case, selection):
    return honest(case, selection) if case.backend.startswith("planted") else "too slow"

plan.refusal = refusal
subjects = plan.subjects
plan.subjects = lambda *given, **more: (each for each in subjects(*given, **more) if each.model != "mingru")
"""
)


def test_a_plug_in_plans_its_own_cases_alone(planted: Path, tmp_path: Path) -> None:
    """A child whose planning is patched refuses and leaves out none of this package's cases."""
    planted.write_text(HARMS)
    choices = {"suite": "throughput,planted_suite", "models": "planted_rnn,hgrn,mingru", "preset": "smoke"}
    _, plan = planned_apart([planted], partial(ask, tmp_path, **choices))
    assert plan is not None
    alone = ask(tmp_path, suite="throughput", models="hgrn,mingru", preset="smoke")
    outlines.forget()
    expected = make_plan(alone.selection, alone.suites)
    kept = {item.case.id: item.refusal for item in plan.cases}
    assert {item.case.id: kept[item.case.id] for item in expected.cases} == {
        item.case.id: item.refusal for item in expected.cases
    }
    assert any(item.case.suite == "planted_suite" for item in plan.cases)
    assert any(item.case.model == "planted_rnn" for item in plan.cases)


def test_what_an_import_has_started_ends_with_the_plan(planted: Path, tmp_path: Path) -> None:
    planted.write_text(LEAVES)
    planned_apart([planted], partial(ask, tmp_path, suite="throughput", models="scan"))
    assert not Path(f"/proc/{planted.with_suffix('.left').read_text()}").exists()


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", PlanFailed, "was killed by SIGKILL"),
        ("import os; os._exit(0)", PlanFailed, "ended without an answer"),
        ("def f(:", UsageError, "SyntaxError"),
        ("raise MemoryError('all of it')", MemoryError, "all of it"),
        (
            PLUGIN.replace("40.0 * shape", "1 / 0 * shape"),
            PlanFailed,
            r"^ZeroDivisionError.*planted\.py.*--debug",
        ),
    ],
)
def test_what_fails_in_the_child_is_told_here(
    source: str, kind: type[Exception], message: str, planted: Path, tmp_path: Path
) -> None:
    planted.write_text(source)
    with pytest.raises(kind, match=message):
        planned_apart([planted], partial(ask, tmp_path, **CHOICES["a GPU"]))


def test_an_outline_takes_no_name_of_this_package(planted: Path, tmp_path: Path) -> None:
    planned_apart([planted], partial(ask, tmp_path, **CHOICES["backends"]))
    found = outlines.registered()
    (own,) = (each for each in found["entries"] if each[1] == "scan/planted_other")
    own[1], own[2]["name"] = "scan/blelloch", "blelloch"
    with pytest.raises(DuplicateName, match="blelloch"):
        outlines.register(found)


def test_without_plug_ins_nothing_is_forked(planted: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it forked"))
    assert planned_apart([], partial(ask, tmp_path, **CHOICES["backends"]))[1] is None


def test_what_this_process_has_registered_is_no_plug_in_s(planted: Path, tmp_path: Path) -> None:
    @backend("scan", name="own_of_this_process")
    def own(log_a: Any, b: Any, initial_state: Any = None, *, phase: Any = None) -> Any: ...

    _, plan = planned_apart([planted], partial(ask, tmp_path, **CHOICES["backends"]))
    assert plan is not None
    names = [item.case.backend for item in plan.cases]
    assert {"planted_other", "own_of_this_process"} <= set(names)
    assert len({item.case.id for item in plan.cases}) == len(names), "each case is there once"
