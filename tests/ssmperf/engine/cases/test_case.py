"""Case and Shape: frozen, hashable, with an id that depends on every field and on nothing else."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from ssmperf import Case, Shape, UsageError

BASE = Case(
    suite="throughput", recurrence="scan", backend="blelloch", shape=Shape(B=2, T=7, C=3), model="hgrn"
)
CHANGES = {
    "suite": "correctness",
    "recurrence": "linear_attention",
    "backend": "sequential",
    "shape": Shape(B=2, T=8, C=3),
    "model": "lru",
    "dtype": "bfloat16",
    "gate_dtype": "bfloat16",
    "layout": "time_last",
    "operand_source": "sigmoid",
    "device": "cuda",
    "pass_": "backward",
    "cache": "hot",
    "timing": "end-to-end",
    "level": "block",
    "packing": "5,0,2",
    "call": "bonus read=pre",
    "seed": 1,
}


def test_every_field_changes_the_id() -> None:
    assert CHANGES.keys() == {field.name for field in dataclasses.fields(Case)}
    ids = {dataclasses.replace(BASE, **{name: value}).id for name, value in CHANGES.items()}
    assert len(ids | {BASE.id}) == len(CHANGES) + 1


def test_no_two_cases_of_a_plan_read_the_same() -> None:
    """The device is given by the plan, and the recurrence by the model."""
    said = {
        name
        for name, value in CHANGES.items()
        if str(dataclasses.replace(BASE, **{name: value})) != str(BASE)
    }
    assert CHANGES.keys() - said == {"recurrence", "device"}
    assert str(dataclasses.replace(BASE, operand_source="reset")) == f"{BASE} reset"
    assert str(BASE) == "throughput hgrn blelloch B2 T7 C3 float32 forward"
    assert str(dataclasses.replace(BASE, gate_dtype="bfloat16", seed=3)).endswith("bfloat16 gates seed 3")


def test_id_is_stable_across_processes_and_key_order() -> None:
    code = (
        "from ssmperf import Case, Shape;"
        "print(Case(suite='throughput', recurrence='scan', backend='blelloch',"
        "shape=Shape(C=3, T=7, B=2), model='hgrn').id)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == BASE.id


def test_json_round_trip() -> None:
    for name, value in CHANGES.items():
        case = dataclasses.replace(BASE, **{name: value})
        assert Case.from_json(case.to_json()) == case


def test_case_is_frozen_and_hashable() -> None:
    assert len({BASE, dataclasses.replace(BASE)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        BASE.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("sizes", [{"T": 0}, {"T": -4}, {"T": True}, {"T": 1.5}, {"Q": 3}])
def test_bad_shapes_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Shape(sizes)


@pytest.mark.parametrize("field", ["dtype", "gate_dtype", "pass_"])
def test_unknown_values_are_refused_with_the_valid_ones(field: str) -> None:
    with pytest.raises(UsageError, match=r"known: .*f"):
        dataclasses.replace(BASE, **{field: "int3"})


def test_shape_refuses_an_axis_it_lacks() -> None:
    assert BASE.shape.with_(T=9)["T"] == 9
    with pytest.raises(UsageError, match="not in this shape"):
        BASE.shape.with_(H=2)


def test_operand_key_ignores_what_operands_do_not_depend_on() -> None:
    same = dataclasses.replace(BASE, backend="sequential", pass_="backward", suite="correctness", cache="hot")
    assert same.operand_key == BASE.operand_key
    assert dataclasses.replace(BASE, seed=1).operand_key != BASE.operand_key
