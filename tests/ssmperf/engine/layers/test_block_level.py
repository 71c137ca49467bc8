"""Cases of level block: a model's whole layer is judged, with all gradients, and timed."""

from __future__ import annotations

import shlex

import pytest
import torch
from support.processes.in_process import records_of

import ssmperf
from ssmperf import Record, Shape, Status, UnknownName, UsageError
from ssmperf.engine.cases.case import Case
from ssmperf.engine.execute.request import select
from ssmperf.engine.judge.oracle import as_backend
from ssmperf.engine.judge.reference import make_reference, reference_of
from ssmperf.engine.judge.tolerance import relative_error
from ssmperf.engine.judge.verdict import judge_call
from ssmperf.engine.operands.subject import subject_of
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.plan.selection import Selection
from ssmperf.suitekit import registry

PLANTED = '''
import torch
import ssmperf
from ssmperf import registry

right = registry.recurrence("scan").definition


class OffBy(torch.autograd.Function):
    """The identity, with a gradient that is too large by one per cent."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1.01 * gradient


@ssmperf.backend("scan", name="planted_gate_gradient")
def gate_gradient(log_a, b, initial_state=None, *, phase=None):
    return right(OffBy.apply(log_a), b, initial_state, phase=phase)


@ssmperf.backend("scan", name="planted_output")
def output(log_a, b, initial_state=None, *, phase=None):
    states, final = right(log_a, b, initial_state, phase=phase)
    return states * torch.linspace(0.5, 1.5, states.shape[-1]).to(states), final


@ssmperf.backend("scan", name="planted_state")
def state(log_a, b, initial_state=None, *, phase=None):
    states, final = right(log_a, b, initial_state, phase=phase)
    return states, 2 * final
'''
BACKENDS = ("sequential", "blelloch", "fft", "planted_gate_gradient", "planted_output", "planted_state")
OF_A_COST_MODEL = (
    "limit",
    "limit_fraction",
    "copy_fraction",
    "bandwidth_bytes_per_s",
    "least_bytes",
    "least_flops",
)


def planned(command: str) -> list[Case]:
    words = shlex.split(command)
    given = dict(zip(words[2::2], words[3::2], strict=True))
    axes = [value for option, value in zip(words[2::2], words[3::2], strict=True) if option == "--axis"]
    selection, _ = select(
        axis=axes,
        models=given["--models"],
        backends=given["--backends"],
        dtype=given["--dtype"],
        pass_=given["--pass"],
        device=given["--device"],
        level=given["--level"],
        seed=int(given["--seed"]),
    )
    return [item.case for item in make_plan(selection, [given["--suite"]]).cases]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    folder = tmp_path_factory.mktemp("runs")
    plugin = folder / "planted_blocks.py"
    plugin.write_text(PLANTED)
    return records_of(
        "throughput",
        plugin,
        models="hgrn",
        backends=BACKENDS,
        axis=["T=19", "C=8", "B=2"],
        dtype=("float32", "bfloat16"),
        level="block",
    )


def of(records: list[Record], backend: str, pass_: str, dtype: str = "float32") -> Record:
    wanted = (f"{'' if backend in ('sequential', 'blelloch', 'fft') else 'planted_'}{backend}", pass_, dtype)
    (record,) = [r for r in records if (r.case.backend, r.case.pass_, r.case.dtype) == wanted]
    return record


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("pass_", ["forward", "backward"])
@pytest.mark.parametrize("backend", ["sequential", "blelloch", "state"])
def test_a_right_backend_has_times_and_no_fraction_of_a_limit(
    records: list[Record], backend: str, pass_: str, dtype: str
) -> None:
    record = of(records, backend, pass_, dtype)
    assert record.status is Status.OK, record.reason
    numbers = record.numbers
    assert record.case.level == "block"
    assert numbers["latency_s"] > 0 and numbers["peak_bytes"] > 0
    assert numbers["tokens_per_s"] == pytest.approx(2 * 19 / numbers["latency_s"])
    assert all(numbers.get(name) is None for name in OF_A_COST_MODEL)


def test_all_gradients_of_the_layer_are_judged(records: list[Record]) -> None:
    errors = of(records, "sequential", "backward").numbers["errors"]
    names = dict(ssmperf.build_block("hgrn", Shape(B=1, T=1, C=8)).named_parameters())
    inner = {"output", "gradient of log_a", "gradient of b"}
    assert set(errors) == {
        *("output", "gradient of x", *(f"gradient of {name}" for name in names)),
        *(f"recurrence: {name}" for name in inner),
    }


def test_a_backend_wrong_in_one_gradient_is_wrong(records: list[Record]) -> None:
    assert of(records, "gate_gradient", "forward").status is Status.OK
    record = of(records, "gate_gradient", "backward")
    assert record.status is Status.WRONG and "relative error" in str(record.reason)
    assert "latency_s" not in record.numbers
    errors, limits = record.numbers["errors"], record.numbers["tolerances"]
    beyond = {name for name, error in errors.items() if error > limits[name]}
    before_it = {"x", "norm.weight", "norm.bias", "mixer.forget.weight", "mixer.forget.bias"}
    assert "gradient of mixer.forget.weight" in beyond
    assert beyond <= {f"gradient of {name}" for name in before_it}
    assert not any(name.startswith("recurrence") for name in errors), "it is called no further"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_residual_hides_no_wrong_output(records: list[Record], dtype: str) -> None:
    record = of(records, "output", "forward", dtype)
    assert record.status is Status.WRONG and str(record.reason).startswith("output")


def test_what_the_backend_cannot_do_is_unsupported(records: list[Record]) -> None:
    assert of(records, "fft", "forward").status is Status.UNSUPPORTED


def test_the_command_repeats_the_case(records: list[Record]) -> None:
    record = of(records, "sequential", "backward")
    command = str(record.numbers["command"]).partition(" --plugin")[0]
    assert "--level block" in command
    assert planned(command) == [record.case]


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"models": ("scan",)}, "scan is a recurrence"),
        ({"models": ("hgrn",), "regimes": ("sigmoid",)}, "no regime"),
        ({"models": ("hgrn",), "gate_dtypes": ("bfloat16",)}, "no gate dtype"),
    ],
)
def test_what_a_block_cannot_be_is_refused(choices: dict[str, tuple[str, ...]], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Selection.of(level="block", **choices)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="level"):
        Selection.of(level="blocks")


def test_a_suite_without_blocks_says_so() -> None:
    with pytest.raises(UsageError, match="stability has no level block"):
        make_plan(Selection.of(level="block", models=("hgrn",)), ["stability"])


def test_without_names_every_model_is_planned_and_no_recurrence() -> None:
    plan = make_plan(Selection.of(level="block", backends=("sequential",)), ["correctness"])
    assert {item.case.model for item in plan.cases} >= {"hgrn", "gla", "mamba", "s4", "gru"}
    assert {(item.case.level, item.case.operand_source) for item in plan.cases} == {("block", "model")}


def case_of(model: str, dtype: str = "float32", **sizes: int) -> Case:
    recurrence = registry.recurrence_of(model)
    shape = Shape(B=2, T=11, **sizes)
    return Case("test", recurrence, "sequential", shape, model, dtype, level="block", pass_="backward")


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("hgrn_complex", {"C": 6}),
        ("mamba", {"D": 8, "N": 3}),
        ("rwkv6", {"H": 2, "K": 3, "V": 4}),
        ("s4d_lin", {"C": 4, "N": 4}),
        ("lstm", {"C": 5}),
        ("lcsm:1-8-1-0", {"D": 6, "N": 3}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_reference_is_the_layer_around_the_definition(
    model: str, sizes: dict[str, int], dtype: str
) -> None:
    case = case_of(model, dtype, **sizes)
    definition = registry.recurrence(case.recurrence).definition
    values = subject_of(case, "cpu").values(0, with_state=True)
    reference = make_reference(subject_of(case, "cpu"), definition, values, gradients=True)
    leaves = {name: value.double().requires_grad_() for name, value in values.tensors.items()}
    y, _ = subject_of(case, "cpu").function(definition, torch.float64)(**leaves)
    gradients = torch.autograd.grad(y, list(leaves.values()), values.grad_output.double())
    bound = {"float64": 1e-12, "float32": 1e-4}[dtype]  # of the layer's own rounding
    assert relative_error(reference.exact.output, y.detach()) < bound
    for name, gradient in zip(leaves, gradients, strict=True):
        assert relative_error(reference.exact.gradients[name], gradient) < bound, name
        assert reference.low_errors[name] < bound, name
    assert max(reference.low_errors.values()) > 0


@pytest.mark.parametrize("gradients", [False, True])
def test_inside_a_layer_the_reference_is_that_of_the_operation(gradients: bool) -> None:
    case = case_of("gla", "bfloat16", H=2, K=3, V=4)
    subject, definition = subject_of(case, "cpu"), registry.recurrence(case.recurrence).definition
    values = subject.values(0, with_state=False)
    reference = make_reference(subject, definition, values, gradients=gradients)
    assert reference.inner is not None and reference.inner_values is not None
    lowered = subject.lower(values.operands)
    for name, value in reference.inner_values.tensors.items():
        assert torch.equal(value, lowered[name]), name
    operation = reference_of(
        definition, reference.inner_values, length=11, dtype=torch.bfloat16, gradients=gradients
    )
    assert reference.inner.low_errors == operation.low_errors
    assert torch.equal(reference.inner.exact.output, operation.exact.output)
    assert reference.inner.exact.final_state is None, "a layer returns no state"
    assert set(reference.inner.exact.gradients) == ({"q", "k", "v", "log_a"} if gradients else set())


def test_a_residual_does_not_hide_that_nothing_is_added_to_it() -> None:
    case = case_of("longhorn", "bfloat16", D=8, N=3)  # adds a fiftieth of x
    values = subject_of(case, "cpu").values(0, with_state=False)
    definition = registry.recurrence(case.recurrence).definition
    reference = make_reference(subject_of(case, "cpu"), definition, values, gradients=False)
    added = (reference.exact.output - values.operands["x"]).abs().max()
    assert reference.output_scale == pytest.approx(float(added))

    def idle(x: torch.Tensor, **parameters: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x.clone(), None

    verdict = judge_call(idle, values, reference, dtype=torch.bfloat16, gradients=False)
    assert verdict.status is Status.WRONG and verdict.errors["output"] == pytest.approx(1)
    backend = registry.backend(case.owner, case.backend).function
    right = subject_of(case, "cpu").function(backend, torch.bfloat16)
    assert judge_call(right, values, reference, dtype=torch.bfloat16, gradients=False).status is Status.OK


def test_values_of_a_block_are_fresh_text_for_the_same_parameters() -> None:
    case = case_of("hgrn", "bfloat16", C=8)
    first, second = (subject_of(case, "cpu").values(number, with_state=False) for number in (0, 1))
    assert {value.dtype for value in first.tensors.values()} == {torch.bfloat16}
    same = [name for name, value in first.tensors.items() if torch.equal(value, second.operands[name])]
    assert set(first.tensors) - set(same) == {"x"}
    assert not torch.equal(first.grad_output, second.grad_output)


def test_the_operands_inside_a_block_are_those_of_its_mixer() -> None:
    case = case_of("gla", H=2, K=3, V=4)
    values = subject_of(case, "cpu").values(0, with_state=False)
    inside = subject_of(case, "cpu").lower(values.operands)
    assert inside["log_a"].shape == (2, 11, 2, 3) and (inside["log_a"] <= 0).all()
    assert inside["q"].shape == (2, 11, 2, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_definition_as_a_backend_keeps_the_contract_and_its_gradients(dtype: torch.dtype) -> None:
    recurrence = registry.recurrence("linear_attention")
    generator = torch.Generator().manual_seed(0)
    operands = recurrence.sample(
        Shape(B=2, T=9, H=2, K=3, V=4), regime="sigmoid", generator=generator, gate_kind="key"
    )
    leaves = {
        name: (value if name in recurrence.gates else value.to(dtype)).requires_grad_()
        for name, value in operands.items()
        if isinstance(value, torch.Tensor)
    }
    output, state = as_backend(recurrence.definition, torch.float64)(**leaves, initial_state=None)
    want, want_state = recurrence.definition(
        **{name: value.detach().double().requires_grad_() for name, value in leaves.items()}
    )
    assert (output.dtype, state.dtype) == (dtype, torch.float32)
    found = torch.autograd.grad([output.sum(), state.sum()], list(leaves.values()))
    assert [gradient.dtype for gradient in found] == [value.dtype for value in leaves.values()]
    assert relative_error(output.detach(), want.detach()) < 2 * torch.finfo(dtype).eps
    assert relative_error(state.detach(), want_state.detach()) < 1e-6


def test_more_low_precisions_only_widen_the_tolerances_of_a_layer() -> None:
    case = Case(
        "test", "scan", "sequential", Shape(B=2, T=9, C=8), "hgrn", "bfloat16", level="block",
        pass_="forward_backward",
    )  # fmt: skip
    subject, definition = subject_of(case, "cpu"), registry.recurrence("scan").definition
    values = subject.values(0, with_state=False)
    one, again, four = (
        make_reference(subject, definition, values, gradients=True, draws=draws) for draws in (1, 1, 4)
    )
    assert one.low_errors == again.low_errors
    assert all(four.low_errors[name] >= error for name, error in one.low_errors.items())
    assert sum(four.low_errors[name] > error for name, error in one.low_errors.items()) > 3
    assert all(four.low_row_errors[name] >= error for name, error in one.low_row_errors.items())
