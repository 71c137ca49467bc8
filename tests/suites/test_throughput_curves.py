"""The lengths at which throughput is measured: curves at a constant number of tokens."""

from __future__ import annotations

from collections import defaultdict

import pytest
from ssmperf.suites.growth.lengths import curve, without_slow_lengths

from ssmperf import Shape
from ssmperf.engine.execute.request import select
from ssmperf.engine.plan.plan import make_plan
from ssmperf.suitekit import registry


@pytest.mark.parametrize(("preset", "device"), [("smoke", "cpu"), ("standard", "cuda")])
def test_every_model_has_a_curve_of_three_lengths_with_the_same_tokens(preset: str, device: str) -> None:
    """A model for each list of shapes."""
    names = {
        str(registry.shapes(entry, preset)): name
        for name, entry in registry.models().items()
        if ":" not in name
    }
    selection, _ = select(device=device, preset=preset, planning=True, models=list(names.values()))
    shapes: dict[tuple[str | None, str], set[Shape]] = defaultdict(set)
    for item in make_plan(selection, ["throughput"]).cases:
        shapes[item.case.model, item.case.backend].add(item.case.shape)
    models = {model for model, _ in shapes}
    assert models == set(names.values())
    for model in models:
        every = set().union(*(shapes[key] for key in shapes if key[0] == model))
        assert len({shape["T"] for shape in every}) == 3, model
        assert len({shape["B"] * shape["T"] for shape in every}) == 1, model


def test_a_loop_is_timed_at_the_shortest_length_unless_it_is_named() -> None:
    for backends, lengths in ((None, 1), ("sequential", 3)):
        selection, _ = select(device="cpu", models="rg_lru", backends=backends)
        cases = [item.case for item in make_plan(selection, ["throughput"]).cases]
        found = {case.shape["T"] for case in cases if case.backend == "sequential"}
        assert len(found) == lengths and min(case.shape["T"] for case in cases) in found


@pytest.mark.slow
def test_of_all_models_the_backends_that_people_compare_have_curves_and_the_others_one_length() -> None:
    selection, _ = select(device="cuda", planning=True)
    lengths: dict[str, set[int]] = defaultdict(set)
    backward: dict[str, set[int]] = defaultdict(set)
    for item in make_plan(selection, ["throughput"]).cases:
        if item.case.model == "gla":
            found = lengths if item.case.pass_ == "forward" else backward
            found[item.case.backend].add(item.case.shape["T"])
    assert len(lengths["triton"]) == len(lengths["chunkwise"]) == 3
    assert lengths["sequential"] == lengths["surrogate_raw"] == {min(lengths["triton"])}
    assert backward["triton"] == backward["chunkwise"] == {min(lengths["triton"])}
    assert not backward["sequential"] and not backward["blelloch"]
    named, _ = select(device="cuda", planning=True, models="gla")
    cases = [item.case for item in make_plan(named, ["throughput"]).cases]
    assert len({case.shape["T"] for case in cases if case.backend == "triton" and case.gradients}) == 3


def test_what_the_user_asks_for_is_what_is_timed() -> None:
    selection, _ = select(device="cpu", models="rg_lru", axis=["T=64,4096", "B=2"])
    cases = [item.case for item in make_plan(selection, ["throughput"]).cases]
    assert {case.shape["T"] for case in cases if case.backend == "sequential"} == {64, 4096}
    assert {case.shape["B"] for case in cases} == {2}


@pytest.mark.parametrize(
    ("B", "T", "expected"),
    [(8, 2048, [(32, 512), (8, 2048), (2, 8192)]), (1, 2048, [(16, 128), (4, 512), (1, 2048)]),
     (3, 100, [(12, 25), (3, 100)]), (1, 7, [(1, 7)])],
)  # fmt: skip
def test_lengths_around_a_shape(B: int, T: int, expected: list[tuple[int, int]]) -> None:
    found = curve((Shape(B=B, T=T, C=5),), 4)
    assert [(shape["B"], shape["T"]) for shape in found] == expected
    assert curve(found, None) == found


@pytest.mark.slow
def test_a_backend_that_is_refused_does_not_take_the_place_of_one_that_runs() -> None:
    """On a CPU, kernels for a GPU are refused, and every model has something that runs at each length."""
    selection, _ = select(device="cpu")
    plan = make_plan(selection, ["throughput"])
    forward = [item for item in plan.cases if item.case.pass_ == "forward"]
    planned = {(item.case.model, item.case.shape["T"]) for item in forward}
    assert planned == {(item.model, item.shape["T"]) for item in plan.to_run if item.pass_ == "forward"}


def test_a_fixed_number_of_launches_is_no_loop() -> None:
    selection, _ = select(device="cpu", models="gla")
    cases = [item.case for item in make_plan(selection, ["throughput"]).cases]
    every = {case.shape["T"] for case in cases}
    assert {case.shape["T"] for case in cases if case.backend == "chunkwise"} == every and len(every) == 3


def test_a_decode_step_beside_other_passes_leaves_out_nothing_of_them() -> None:
    def forward(passes: str) -> set[str]:
        selection, _ = select(device="cuda", planning=True, models="hgrn", pass_=passes)
        cases = [item.case for item in make_plan(selection, ["throughput"]).cases]
        return {str(case) for case in cases if case.pass_ == "forward"}

    assert forward("forward,decode") == forward("forward")


def test_nothing_is_left_out_of_nothing() -> None:
    assert list(without_slow_lengths([])) == []
