"""A workload stands for ordinary cases: one selection per form of its phases."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ssmperf import Case, Selection, UnknownName, UsageError
from ssmperf.engine.execute.request import select
from ssmperf.engine.plan.plan import Plan, make_plan
from ssmperf.engine.plan.selection import Device
from ssmperf.engine.plan.sizes import parse_sizes
from ssmperf.engine.plan.workloads.phases import with_workloads
from ssmperf.engine.plan.workloads.reading import names

GPU = Device("cuda", memory_bytes=80 << 30, capability=(9, 0))
QWEN = {"H": 32, "G": 16, "K": 128, "V": 128}
LONG = "1300,547,2048,963,271,3063"


def planned(*texts: str, suites: Iterable[str] = ("throughput",), device: Device = GPU, **given: Any) -> Plan:
    sizes = parse_sizes(given.pop("axis", ()))
    backends = given.pop("backends", ("chunkwise",))
    preset = given.pop("preset", None)
    selection = Selection.of(device, backends=backends, sizes=sizes, preset=preset, **given)
    return make_plan(with_workloads(selection, texts), tuple(suites))


def forms(plan: Plan) -> set[tuple[int, int, str, str]]:
    """Name B, T, packing and pass of each case."""
    cases = [item.case for item in plan.cases]
    return {(case.shape["B"], case.shape["T"], case.packing, case.pass_) for case in cases}


def test_phases_have_their_lengths_batches_and_passes() -> None:
    train = {(2, 4096, "none", "forward"), (2, 4096, "none", "backward")}
    prefill = {(1, 32768, "none", "forward"), (1, 8192, LONG, "forward"), (1, 8192, "1024x8", "forward")}
    decode = {(1, 1, "none", "decode"), (64, 1, "none", "decode")}
    assert forms(planned("qwen3-next-80b")) == train | prefill | decode
    for phase, expected in (("train", train), ("prefill", prefill), ("decode", decode)):
        assert forms(planned(f"qwen3-next-80b:{phase}")) == expected
    sizes = [item.case.shape for item in planned("qwen3-next-80b").cases]
    assert all({letter: shape[letter] for letter in QWEN} == QWEN for shape in sizes)


def test_smoke_keeps_the_heads_and_cuts_the_rest() -> None:
    found = planned("qwen3-next-80b", preset="smoke")
    assert forms(found) == {
        *((1, 128, "none", pass_) for pass_ in ("forward", "backward")),
        (1, 128, "60,67,0,1", "forward"),
        (1, 1, "none", "decode"),
    }
    assert {item.case.shape["H"] for item in found.cases} == {32}


OVERRIDES = {
    "T": ({"axis": ["T=77"]}, {(2, 77), (1, 77), (1, 1), (64, 1)}),
    "B": ({"axis": ["B=3"]}, {(3, 4096), (3, 32768), (3, 1)}),
    "packing": ({"packing": "5,9"}, {(1, 14)}),
    "pass": ({"passes": ("decode",)}, {(1, 1), (64, 1)}),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_what_is_named_stands_instead_of_the_phase_s(name: str) -> None:
    given, expected = OVERRIDES[name]
    assert {form[:2] for form in forms(planned("qwen3-next-80b", **given))} == expected


def test_dtype_and_named_passes_of_a_named_phase() -> None:
    found = planned("qwen3-next-80b:prefill", dtypes=("float16",), passes=("backward",))
    assert {(item.case.dtype, item.case.pass_) for item in found.cases} == {("float16", "backward")}


def test_a_case_is_the_one_of_an_ordinary_selection() -> None:
    axes = [f"{letter}={size}" for letter, size in QWEN.items()]
    sizes = parse_sizes([*axes, "B=2", "T=4096"])
    ordinary = Selection.of(GPU, models=("gated_deltanet",), backends=("chunkwise",), sizes=sizes)
    expected = [item.case.id for item in make_plan(ordinary, ("throughput",)).cases]
    assert [item.case.id for item in planned("qwen3-next-80b:train").cases] == expected


def test_equal_layers_are_one_case() -> None:
    one, both = planned("qwen3.5-4b"), planned("qwen3.5-4b", "qwen3.5-9b")
    assert [item.case.id for item in one.cases] == [item.case.id for item in both.cases]
    assert both.workloads["qwen3.5-4b"] == both.workloads["qwen3.5-9b"]
    ids = {item.case.id for item in both.cases}
    assert {each for phases in both.workloads.values() for found in phases.values() for each in found} == ids


@pytest.mark.parametrize(("text", "sizes"), [
    ("qwen3.5-122b:train@tp8", {"H": 8, "G": 2}),
    ("falcon-h1-7b:decode@tp8", {"H": 3, "G": 1}),
    ("jamba-v0.1:train@tp4", {"D": 2048}),
])  # fmt: skip
def test_ranks_divide_heads_or_channels(text: str, sizes: dict[str, int]) -> None:
    found = planned(text, backends=("triton", "chunkwise"))
    assert found.cases
    for item in found.cases:
        assert {letter: item.case.shape[letter] for letter in sizes} == sizes


REFUSED = {
    "H": (("qwen3-next-80b",), {"axis": ["H=3"]}, "leave out the axis H"),
    "models": (("qwen3-next-80b",), {"models": ("gla",)}, "leave out --models"),
    "ranks": (("qwen3-next-80b@tp3",), {}, "32 is not divisible by 3"),
    "no ranks": (("qwen3-next-80b@tp0",), {}, "from 1"),
    "phase": (("qwen3-next-80b:trian",), {}, "train"),
    "name": (("qwen3-next",), {}, "did you mean qwen3-next-80b"),
    "packed tokens": (("qwen3-next-80b:decode",), {"packing": "5,9"}, "cannot be packed"),
    "file": (("./no_such_folder/config.json",), {}, "no_such_folder"),
    "toml": (("./no_such.toml",), {}, "no_such.toml"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_in_a_line(name: str) -> None:
    texts, given, reason = REFUSED[name]
    models = given.get("models")
    selection = Selection.of(GPU, models=models, sizes=parse_sizes(given.get("axis", ())),
                             packing=given.get("packing"))  # fmt: skip
    with pytest.raises((UsageError, UnknownName), match=r"^[^\n]*\Z") as error:
        make_plan(with_workloads(selection, texts), ("throughput",))
    assert reason in str(error.value)


def test_gates_choose_the_source_of_operands() -> None:
    given = {"workload": "qwen3-next-80b:train", "device": "cpu", "backends": "chunkwise"}
    selection, _ = select(**given, gates="start,steep,slow,none,reset")
    sources = [item.case.operand_source for item in make_plan(selection, ("throughput",)).cases]
    assert {*sources} == {"model", "decay/steep", "decay/slow", "decay/0", "decay/reset"}
    with pytest.raises(UsageError, match="--regime"):
        select(**given, gates="steep", regime="sigmoid")
    with pytest.raises(UnknownName, match="steep"):
        select(**given, gates="steap")
    plain, _ = select(**given)
    start, _ = select(**given, gates="start")
    assert _ids(plain) == _ids(start)


def _ids(selection: Selection) -> list[str]:
    return [item.case.id for item in make_plan(selection, ("throughput",)).cases]


def test_slow_backends_stay_skipped() -> None:
    found = planned("qwen3-next-80b:prefill", backends=("sequential", "chunkwise"))
    reasons = {item.case.backend: item.refusal for item in found.cases if item.case.packing == "none"}
    assert reasons["chunkwise"] is None
    assert "predicted" in (reasons["sequential"] or "")


def test_a_skipped_case_of_a_workload_runs_as_its_reason_advises() -> None:
    texts = "qwen3-next-80b:prefill", "qwen3-next-80b:train"
    skipped = [item for item in planned(*texts, backends=("sequential",)).cases if item.refusal]
    assert skipped
    for item in skipped:
        case = item.case
        packed = f"--models, --axis and --packing {case.packing}, not --workload"
        words = "--models and --axis, not --workload" if case.packing == "none" else packed
        assert words in (item.refusal or "")
        sizes = parse_sizes([f"{letter}={size}" for letter, size in case.shape.items()])
        advised = Selection.of(
            GPU,
            models=(case.model or "",),
            backends=(case.backend,),
            sizes=sizes,
            passes=(case.pass_,),
            packing=case.packing,
        )
        found = make_plan(advised, ("throughput",)).cases
        assert [(each.case.id, each.refusal) for each in found] == [(case.id, None)]


def test_a_suite_that_judges_takes_packed_prefill_alone_and_no_known_answers() -> None:
    found = [item.case for item in planned("qwen3-next-80b", suites=("correctness",)).cases]
    assert {case.packing for case in found if case.pass_ == "forward"} == {LONG, "1024x8"}
    assert all(case.model == "gated_deltanet" for case in found)


def test_a_suite_without_the_pass_has_nothing_to_ask() -> None:
    found = planned("qwen3-next-80b:decode", suites=("throughput", "memory"))
    assert {item.case.suite for item in found.cases} == {"throughput"}


def test_a_layer_without_another_decay_says_so() -> None:
    plan = planned("minimax-01:train", backends=("triton",), regimes=("decay/0", "model"))
    reasons = {item.case.operand_source: item.refusal for item in plan.cases}
    assert "no other slopes than its own" in (reasons["decay/0"] or "")
    assert reasons["model"] is None
    own = Selection.of(GPU, models=("tnl",), backends=("chunkwise",), regimes=("decay/0",))
    assert all(item.refusal is None for item in make_plan(own, ("stability",)).cases)


def test_two_layers_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder, heads in (("a", 2), ("b", 4)):
        (tmp_path / folder).mkdir()
        text = f'model = "gla"\n[sizes]\nH = {heads}\nK = 8\nV = 8\n'
        (tmp_path / folder / "mine.toml").write_text(text)
    with pytest.raises(UsageError, match="two workloads are named mine"):
        planned(f"{tmp_path}/a/mine.toml", f"{tmp_path}/b/mine.toml")
    planned(f"{tmp_path}/a/mine.toml", f"{tmp_path}/a/mine.toml:train")


@pytest.mark.slow
def test_every_workload_is_planned() -> None:
    found = planned("all", backends=None, device=Device("cpu"), preset="smoke")
    assert found.workloads.keys() == {*names()}
    assert len({_layer(item.case) for item in found.cases}) >= 16


def _layer(case: Case) -> tuple[Any, ...]:
    return case.model, *(size for letter, size in case.shape.items() if letter not in "BT")
