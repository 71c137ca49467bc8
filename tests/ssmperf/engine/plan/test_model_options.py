"""Options of models, such as pese_lr:n=8: one keyword of a constructor is all that declares one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.processes.quick_processes import command

from ssmperf import Case, Shape, UnknownName, UsageError
from ssmperf.authoring import Network
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.execute.request import select
from ssmperf.engine.plan import command_that_repeats, make_plan
from ssmperf.suitekit import registry

PLUGIN = '''
import torch
from ssmperf.authoring import Model, model


@model("twisted", recurrence="scan", paper="A test of options (2026), a test", gate="data")
class Twisted(Model):
    """h_t = a_t h_{t-1} + twist x_t.

    twist: by how much x counts.
    """

    def __init__(self, shape, *, twist: int = 1) -> None:
        super().__init__(shape)
        self.twist = twist

    def operands(self, x):
        return {"log_a": -x.abs().float(), "b": self.twist * x}

    def readout(self, output, x):
        return output

    def definition(self, x):
        h, found = torch.zeros_like(x[:, 0]), []
        for x_t in x.unbind(1):
            h = (-x_t.abs()).exp() * h + self.twist * x_t
            found.append(h)
        return torch.stack(found, 1)
'''


def test_an_option_is_part_of_the_name_and_reaches_the_constructor() -> None:
    entry = registry.model("pese_lr:n=8")
    assert (entry.name, entry.recurrence) == ("pese_lr:n=8", "scan")
    shape = registry.shapes(entry, "smoke")[0]
    assert entry.cls(shape).width * 2 == registry.model("pese_lr").cls(shape).width
    assert registry.model("pese_lr:n=8").cls is entry.cls
    assert "pese_lr:n=8" not in registry.models()


def test_a_default_is_left_out_of_the_name_and_options_are_in_order() -> None:
    default = registry.model("pese_lr").cls.__init__.__kwdefaults__["n"]
    assert registry.model(f"pese_lr:n={default}").name == "pese_lr"
    assert registry.model("gla:tau=8:rank=4").name == "gla:rank=4:tau=8.0"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pese_lr:m=8", "unknown option of pese_lr 'm'"),
        ("pese_lr:n=eight", "'eight' is not of type int"),
        ("pese_lr:8", "options are NAME=VALUE"),
        ("pese_lr:n=8:n=4", "given twice"),
        ("no_model:n=8", "unknown model or recurrence"),
    ],
)
def test_what_is_no_option_is_said(name: str, message: str) -> None:
    with pytest.raises((UsageError, UnknownName), match=message):
        select(device="cpu", models=name)


def test_a_case_with_an_option_is_another_case_and_is_repeated() -> None:
    cases = []
    for name in ("pese_lr", "pese_lr:n=8"):
        selection, _ = select(device="cpu", models=name, backends="sequential", preset="smoke")
        cases.append(make_plan(selection, ["throughput"]).cases[0].case)
    assert cases[0].id != cases[1].id
    assert "--models pese_lr:n=8 " in command_that_repeats(cases[1])


def test_an_option_that_changes_the_operands_changes_their_shape() -> None:
    context = Context("cpu", "env", Settings(), ceilings=None)  # type: ignore[arg-type]
    shape = Shape(B=2, T=9, H=2, K=16, V=16)
    case = Case("throughput", "linear_attention", "sequential", shape, "hgrn2:expand=8")
    assert context.operand_shape(case) == Shape(B=2, T=9, H=4, K=8, V=8)
    values = context.values(case, 0, with_state=False)
    assert values.operands["k"].shape == (2, 9, 4, 8)
    assert context.operand_shape(replace(case, model="hgrn2")) == shape


@pytest.mark.slow
def test_one_keyword_in_a_plug_in_declares_an_option(tmp_path: Path) -> None:
    """It is listed, planned, identified, repeated, judged and measured."""
    plugin = tmp_path / "twisted.py"
    plugin.write_text(PLUGIN)
    run = tmp_path / "run"

    def ssmperf(*words: str) -> str:
        done = command(*words, "--plugin", plugin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "twisted:twist=1 (int): by how much x counts" in ssmperf("list", "twisted")
    ssmperf(
        *("run", "--suite", "correctness", "--models", "twisted,twisted:twist=3", "--backends", "blelloch"),
        *("--device", "cpu", "--axis", "T=9", "--axis", "C=4", "--axis", "B=1", "--out", str(run)),
    )
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    assert [(r["model"], r["status"]) for r in records] == [("twisted", "ok"), ("twisted:twist=3", "ok")]
    assert len({r["case_id"] for r in records}) == 2
    assert "--models twisted:twist=3 " in records[1]["command"]


def test_what_layers_get_of_their_depth_follows_the_options() -> None:
    shape = {"B": 1, "T": 1, "C": 64}
    network = Network("pese_lr:n=8", shape, layers=2, vocabulary=4)
    (bounds,) = {p for name, p in network.named_parameters() if name.endswith("gamma")}
    assert bounds.shape == (2, 64 // 8)
