"""What a backend returns is refused by name, in the same words by the suites and by `ssmperf.compute`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes.in_process import records_of
from torch import Tensor

import ssmperf
from ssmperf import BrokenContract, Status, Unsupported, UsageError
from ssmperf.engine.cases.pattern import misfit, parse
from ssmperf.engine.operands.contract import well_formed
from ssmperf.suitekit import registry

PLUGIN = Path(__file__).parents[3] / "support" / "plugins" / "malformed.py"
SMALL = ["T=9", "C=4", "B=2"]
EXPECTED = {
    "tensor": "must return (output, final_state), got a Tensor",
    "number": "must return (output, final_state), got an int",
    "nothing": "must return (output, final_state), got None",
    "list": "must return (output, final_state), got a list of 2",
    "three": "must return (output, final_state), got a tuple of 3 (Tensor, Tensor, None)",
    "alone": "must return (output, final_state), got a tuple of 1 (Tensor)",
    "no_output": "output is None, must be a torch.Tensor",
    "array": "output is a numpy.ndarray, must be a torch.Tensor",
    "state_array": "final_state is a numpy.ndarray, must be a torch.Tensor",
    "time_last": "output is (2, 4, 9), must be (2, 9, 4): time and channels look exchanged",
    "time_first": "output is (9, 2, 4), must be (2, 9, 4): batch and time look exchanged",
    "last_step": "output is (2, 4), must be (2, 9, 4): the axis of time is missing",
    "permuted": "output is (9, 4, 2), must be (2, 9, 4): its axes look permuted",
    "short": "output is (2, 8, 4), must be (2, 9, 4)",
    "swapped": "output and final_state look exchanged: output is (2, 4) and final_state (2, 9, 4)",
    "complex": "output is complex64, must be float32: it is complex, must be real",
    "double": "output is float64, must be float32",
    "elsewhere": "output is on meta, must be on cpu like the operands",
    "no_state": "final_state is None, must be a torch.Tensor (2, 4) of float32",
    "state_transposed": "final_state is (4, 2), must be (2, 4): its axes 0 and 1 look exchanged",
    "state_double": "final_state is float64, must be float32",
}


@pytest.fixture(autouse=True)
def plugin(own_registrations: None) -> None:
    """Register the malformed backends for one test."""
    registry.load_plugin(PLUGIN)


def without_sizes(reason: str) -> str:
    return re.sub(r"\(\d+, \d+, \d+\)", "(…)", reason)


def operands(**asking: bool) -> dict[str, torch.Tensor]:
    given = {"log_a": -torch.rand(2, 9, 4), "b": torch.randn(2, 9, 4)}
    return {name: value.requires_grad_(asking.get(name, False)) for name, value in given.items()}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_suite_and_compute_refuse_a_result_in_the_same_words(name: str) -> None:
    (record,) = records_of(
        "correctness", PLUGIN, models="hgrn", backends=f"malformed_{name}", dtype="float32", axis=SMALL
    )
    assert (record.status, record.reason) == (Status.WRONG, EXPECTED[name])
    with pytest.raises(BrokenContract) as raised:
        ssmperf.compute("scan", f"malformed_{name}", **operands())
    assert str(raised.value) == f"scan/malformed_{name}: {EXPECTED[name]}"


@pytest.mark.parametrize("pass_", ["forward", "backward"])
@pytest.mark.parametrize("suite", ["throughput", "memory"])
def test_every_suite_says_so_before_anything_trips_over_the_result(suite: str, pass_: str) -> None:
    """A backward pass cannot start from such a result. The memory suite judges at lengths of its own."""
    for name in ("number", "time_last", "complex"):
        choices = {"models": "hgrn", "backends": f"malformed_{name}", "dtype": "float32", "pass_": pass_}
        records = records_of(suite, PLUGIN, axis=SMALL, **choices)
        assert {each.status for each in records} == {Status.WRONG}
        assert {without_sizes(str(each.reason)) for each in records} == {without_sizes(EXPECTED[name])}


@pytest.mark.parametrize("name", ["number", "tensor", "list"])
def test_a_layer_around_the_backend_does_not_hide_it(name: str) -> None:
    (record,) = records_of(
        "correctness", PLUGIN, models="hgrn", backends=f"malformed_{name}", level="block", axis=SMALL
    )
    assert (record.status, record.reason) == (Status.WRONG, EXPECTED[name])


@pytest.mark.parametrize("source", ["analytic", "identity"])
def test_closed_forms_and_identities_do_not_hide_it(source: str) -> None:
    records = records_of("correctness", PLUGIN, models="scan", backends="malformed_number", regime=source)
    wrong = {record.reason for record in records if record.status is not Status.UNSUPPORTED}
    assert wrong == {EXPECTED["number"]}


def test_a_missing_graph_is_named() -> None:
    (record,) = records_of(
        "correctness", PLUGIN, models="hgrn", backends="malformed_no_graph", dtype="float32", axis=SMALL
    )
    assert record.status is Status.WRONG
    assert "no graph (requires_grad is False), so no gradient reaches log_a, b" in str(record.reason)
    with pytest.raises(BrokenContract, match="no graph"):
        ssmperf.compute("scan", "malformed_no_graph", **operands(b=True))
    ssmperf.compute("scan", "malformed_no_graph", **operands())
    with torch.no_grad():
        ssmperf.compute("scan", "malformed_no_graph", **operands(b=True))
    ssmperf.compute("scan", "malformed_right", **operands(b=True))[0].sum().backward()


def test_profile_refuses_the_form_too(tmp_path: Path) -> None:
    from ssmperf.authors.profiling.trace import profile
    from ssmperf.engine.execute.request import select

    selection, _ = select(device="cpu", models="hgrn", backends="malformed_list", axis=SMALL)
    with pytest.raises(BrokenContract, match="got a list of 2"):
        profile(selection, "cpu", tmp_path)


SHAPES: list[tuple[str, dict[str, Any], str]] = [
    ("scan", {"log_a": (2, 4, 9), "b": (2, 9, 4)},
     "scan: log_a is (2, 4, 9), must broadcast to (B, T, C) = (2, 9, 4)"),
    ("scan", {"log_a": (9, 4), "b": (9, 4)}, "scan: b is (9, 4), must be (B, T, C)"),
    ("scan", {"log_a": (1, 1, 4), "b": (2, 9, 4), "initial_state": (4, 2)},
     "scan: initial_state is (4, 2), must be (B, C) = (2, 4): B and C look exchanged"),
    ("linear_attention", {"q": (2, 9, 3, 5), "k": (2, 3, 9, 5), "v": (2, 9, 3, 6)},
     "linear_attention: k is (2, 3, 9, 5), must be (B, T, G, K) = (2, 9, 3, 5): T and G look exchanged"),
    ("linear_attention", {"q": (2, 9, 3, 5), "k": (2, 9, 3, 5), "v": (2, 9, 3, 6), "log_a": (2, 9)},
     "log_a is (2, 9), must be (H,), (H, K), (B, T, H) or (B, T, H, K), where H = 3, K = 5, B = 2, T = 9"),
    ("selective_scan", {"x": (2, 9, 4), "delta": (2, 9, 4), "k": (2, 9, 3), "q": (2, 9, 3), "A": (3, 4)},
     "selective_scan: A is (3, 4), must be (D, N) = (4, 3): D and N look exchanged"),
    ("long_conv", {"u": (2, 9, 4), "kernel": (5, 4)}, "long_conv: kernel is (5, 4), must be (C, L) = (4, L)"),
    ("rnn", {"x": (2, 9, 4), "weight_ih": (13, 4), "weight_hh": (15, 5), "bias_ih": (15,), "bias_hh": (15,)},
     "rnn: weight_ih is (13, 4), must be (3C, I) or (4C, I), where C = 5, I = 4"),
    ("delta_rule", {"q": (2, 9, 1, 5), "k": (2, 9, 1, 5), "v": (2, 9, 3, 6), "beta": (2, 9)},
     "delta_rule: beta is (2, 9), must be (B, T, H) = (2, 9, 3)"),
    ("ratio_scan", {"log_w": (4,), "k": (2, 9, 4), "v": (2, 9, 4), "bonus": (9,)},
     "ratio_scan: bonus is (9,), must be (C,) = (4,)"),
]  # fmt: skip


@pytest.mark.parametrize(("recurrence", "shapes", "expected"), SHAPES)
def test_compute_says_which_operand_has_which_shape(
    recurrence: str, shapes: dict[str, tuple[int, ...]], expected: str
) -> None:
    given = {name: -torch.rand(shape) for name, shape in shapes.items()}
    with pytest.raises(UsageError) as raised:
        ssmperf.compute(recurrence, "sequential", **given)
    assert expected in str(raised.value)


@pytest.mark.parametrize("name", sorted(registry.recurrences()))
def test_what_a_recurrence_samples_fits_its_shapes(name: str) -> None:
    entry = registry.recurrence(name)
    sizes = {"B": 2, "T": 7, "C": 5, "H": 3, "K": 4, "V": 6, "D": 5, "N": 3}
    letters = next(iter(entry.presets.values()))[0]
    shape = ssmperf.Shape({letter: sizes[letter] for letter in letters})
    for kind in entry.gate_kinds:
        generator = torch.Generator().manual_seed(0)
        drawn = entry.sample(shape, regime="sigmoid", generator=generator, gate_kind=kind)
        given = {name: value for name, value in drawn.items() if value is not None}
        shapes = {name: value.shape for name, value in given.items() if isinstance(value, torch.Tensor)}
        assert shapes.keys() <= entry.operand_shapes.keys()
        assert misfit(entry.operand_shapes, shapes) is None, kind
        ssmperf.compute(name, "sequential", **given)


def test_a_letter_has_one_size() -> None:
    packed = {"x": "B T D", "cu": "S+1", "state": "B D | S D"}
    assert misfit(packed, {"x": (1, 9, 4), "cu": (4,), "state": (3, 4)}) is None
    assert misfit(packed, {"x": (2, 9, 4), "state": (2, 4)}) is None
    assert "where B = 2, D = 4" in str(misfit(packed, {"x": (2, 9, 4), "state": (3, 4)}))
    assert misfit({"w": "3C C | 4C C"}, {"w": (8, 2)}) is None
    assert misfit({"w": "3C C | 4C C"}, {"w": (7, 2)}) is not None


@pytest.mark.parametrize("text", ["", "B T |", "b", "3+", "B,T", "broadcast B | C", "C3"])
def test_a_pattern_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"pattern|size of an axis"):
        parse(text)


@pytest.mark.parametrize(
    ("recurrence", "name", "shapes"),
    [
        ("scan", "log_a", {"log_a": (2, 9, 4), "b": (2, 9, 4)}),
        ("ratio_scan", "log_w", {"log_w": (4,), "k": (2, 9, 4), "v": (2, 9, 4)}),
        ("linear_attention", "log_b", dict.fromkeys(("q", "k", "v", "log_b"), (2, 9, 3, 4))),
    ],
)
def test_compute_refuses_gates_that_are_no_logs(
    recurrence: str, name: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    given = {each: -torch.rand(shape) for each, shape in shapes.items()}
    ssmperf.compute(recurrence, "sequential", **given)
    given[name].view(-1)[0] = 0.9
    message = rf"{recurrence}: {name} is up to 0\.9, must be ≤ 0: gates are given as logs"
    for _ in range(2):
        with pytest.raises(UsageError, match=message):
            ssmperf.compute(recurrence, "sequential", **given)
    given[name].fill_(-torch.inf)
    ssmperf.compute(recurrence, "sequential", **given)


def test_packed_sequences_have_a_contract() -> None:
    x, small = torch.randn(1, 9, 4), torch.randn(1, 9, 3)
    given = {"x": x, "delta": torch.rand(1, 9, 4), "k": small, "q": small, "A": -torch.rand(4, 3)}
    bounds = torch.tensor([0, 2, 9])
    output, state = ssmperf.compute("selective_scan", "sequential", **given, cu_seqlens=bounds)
    assert (output.shape, state.shape) == ((1, 9, 4), (2, 4, 3))

    @ssmperf.backend("selective_scan", name="malformed_packed")
    def malformed_packed(x, delta, k, q, A=None, initial_state=None, **options):  # type: ignore[no-untyped-def]
        return x, x.new_zeros(2, 3, 4)

    with pytest.raises(BrokenContract, match=re.escape("final_state is (2, 3, 4), must be (2, 4, 3)")):
        ssmperf.compute("selective_scan", "malformed_packed", **given, cu_seqlens=bounds)


def test_an_operand_without_a_parameter_is_refused_in_words() -> None:
    def without_phase(log_a: Tensor, b: Tensor) -> Tensor:
        return log_a + b

    ones = torch.ones(2)
    with pytest.raises(Unsupported, match="its function takes no phase"):
        well_formed(without_phase)(log_a=ones, b=ones, phase=ones)


def test_an_operand_may_be_taken_by_any_keyword() -> None:
    def any_keyword(log_a: Tensor, **others: Tensor) -> tuple[Tensor, Tensor]:
        return log_a, others["phase"]

    ones = torch.ones(2)
    assert well_formed(any_keyword)(log_a=ones, phase=ones)[1] is ones
