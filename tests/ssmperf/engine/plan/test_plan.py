"""Plans: every selected case is planned once, and the command of a case plans this case alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.processes.commands import repeated

from ssmperf import UnknownName, UsageError
from ssmperf.authoring import Model
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record
from ssmperf.engine.execute.context import Context
from ssmperf.engine.execute.request import Request, select
from ssmperf.engine.execute.stand_ins import StandIns
from ssmperf.engine.plan.command import command_that_repeats
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.plan.refusal import gate_kind
from ssmperf.engine.plan.selection import Selection
from ssmperf.engine.plan.sizes import parse_sizes
from ssmperf.engine.registry.sections import Section
from ssmperf.suitekit import registry, suite


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("gate_dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("regime", [None, "sigmoid"])
def test_the_repeating_command_plans_that_case_alone(dtype: str, gate_dtype: str, regime: str | None) -> None:
    selection, _ = select(
        device="cpu",
        models=("hgrn", "gla"),
        backends="sequential",
        preset="smoke",
        dtype=dtype,
        gate_dtype=gate_dtype,
        regime=regime,
        seed=7,
    )
    for item in make_plan(selection, ["throughput"]).cases:
        assert repeated(command_that_repeats(item.case, ())) == [item.case]
        assert repeated(command_that_repeats(item.case, ["--preset", "smoke", "--plugin", "a b.py"])) == [
            item.case
        ]


def test_the_command_names_what_is_not_default() -> None:
    selection = Selection.of(models=("hgrn",), backends=("blelloch",))
    case = make_plan(selection, ["throughput"]).cases[0].case
    plain = command_that_repeats(case, ())
    assert not any(word in plain for word in ("--gate-dtype", "--layout", "--level", "--timing", "--preset"))
    other = replace(case, layout="time_last", level="block", timing="end-to-end")
    command = command_that_repeats(other, ["--preset", "long", "--plugin", "my kernel.py"])
    assert all(part in command for part in ("--layout time_last", "--level block", "--timing end-to-end"))
    assert "--preset long" in command
    assert command.endswith("--plugin 'my kernel.py'")


@pytest.mark.parametrize("regime", ["sigmoid", "sigmoid/const", "gla/data_complex"])
def test_a_bare_recurrence_is_repeated_by_its_own_command(regime: str) -> None:
    selection, _ = select(device="cpu", models="scan", backends="blelloch", preset="smoke", regime=regime)
    cases = [item.case for item in make_plan(selection, ["throughput"]).cases]
    kinds = {gate_kind(case) for case in cases}
    assert kinds == (
        {regime.partition("/")[2]} if "/" in regime else set(registry.recurrence("scan").gate_kinds)
    )
    assert {(case.model, case.recurrence) for case in cases} == {(None, "scan")}
    for case in cases[:4]:
        assert repeated(command_that_repeats(case, ())) == [case]


def test_a_regime_without_names_asks_for_every_recurrence() -> None:
    selection = Selection.of(regimes=("ones",), backends=("sequential",))
    cases = [item.case for item in make_plan(selection, ["throughput"]).cases]
    assert {case.recurrence for case in cases} == set(registry.recurrences())
    assert {case.model for case in cases} == {None}


def test_phases_are_for_complex_gates() -> None:
    selection = Selection.of(regimes=("phase",), models=("scan",), backends=("sequential",))
    kinds = {gate_kind(item.case) for item in make_plan(selection, ["throughput"]).cases}
    assert kinds == {"data_complex", "const_complex"}


def test_a_gate_kind_that_the_model_lacks_selects_nothing() -> None:
    with pytest.raises(UsageError, match="nothing is selected"):
        make_plan(Selection.of(models=("gla",), regimes=("sigmoid/scalar",)), ["throughput"])


@pytest.mark.parametrize("name", ["regime", "analytical/x", "sigmoids/key"])
def test_unknown_regimes_are_refused(name: str) -> None:
    with pytest.raises(UnknownName, match="regime"):
        Selection.of(regimes=(name,))


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_are_those_that_torch_takes(seed: int) -> None:
    with pytest.raises(UsageError, match="seed"):
        Selection.of(seed=seed)
    assert Selection.of(seed=2**63 - 1).chosen("seed") == 2**63 - 1


def test_no_suite_names_the_suites() -> None:
    with pytest.raises(UsageError, match=r"correctness, .*throughput"):
        make_plan(Selection(), ())


@pytest.mark.usefixtures("own_registrations")
def test_a_suite_of_this_process_alone_is_refused() -> None:
    @suite("of_a_test", section=Section("Of a test", "?", ()))
    class OfATest:
        def cases(self, selection: Selection) -> list[Case]:
            return []

        def measure(self, case: Case, context: Context) -> Record: ...  # type: ignore[empty-body]

    with pytest.raises(UsageError, match=f"plugin={__file__}"):
        make_plan(Selection(), ["of_a_test"])


def test_all_are_all_suites() -> None:
    assert Request.of("all", device="cpu").suites == tuple(registry.suites())


@pytest.mark.slow(but=("N=3*",))
@pytest.mark.parametrize(
    ("size", "model", "why"),
    [
        ("K=5", "attention", "K must be even, got 5"),
        ("N=3", "s4", "N must be even, got 3"),
        ("C=30", "pese_lr", "needs that n divide C, got C=30"),
    ],
)
def test_a_model_that_cannot_have_a_size_keeps_no_other_from_it(size: str, model: str, why: str) -> None:
    selection = Selection(sizes=parse_sizes([size]), backends=("sequential",))
    plan = make_plan(selection, ["throughput"])
    refused = {item.case.model: item.refusal or "" for item in plan.refused}
    assert why in refused[model]
    assert "hgrn2" not in refused and "mamba" not in refused and "lru" not in refused
    assert StandIns(plan, selection).measured(plan.to_run)


def test_a_block_that_cannot_have_a_size_is_skipped() -> None:
    selection = Selection.of(models=("mamba", "gla"), sizes=parse_sizes(["D=5"]), level="block")
    reasons = {item.case.model: item.refusal for item in make_plan(selection, ["throughput"]).refused}
    assert reasons["mamba"] == "the block of mamba is half as wide as it: 5 is odd"


def test_a_plan_gives_no_warnings_of_models(recwarn: pytest.WarningsRecorder) -> None:
    class Warns(Model):
        def __init__(self, shape: Mapping[str, int]) -> None:
            super().__init__(shape)
            warnings.warn("of a constructor", stacklevel=1)

    assert Warns.shape_problem({"C": 2}) is None
    assert not recwarn.list
