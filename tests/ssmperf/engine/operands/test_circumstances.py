"""Words for where a call runs and where operands lie: a right backend is right, a planted fault is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ssmperf
from ssmperf import Case, Shape, UsageError
from ssmperf.engine.cases.calls.call import CIRCUMSTANCES, parse
from ssmperf.engine.operands.calls import sparse_memory
from ssmperf.engine.operands.calls.memory import FAR, copied, viewed
from ssmperf.engine.operands.subject import OperationSubject
from ssmperf.engine.plan.refusal import form_problem
from ssmperf.errors import Unsupported
from ssmperf.suitekit import registry

scan = registry.recurrence("scan").definition
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
needs_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
kept: dict[torch.Size, Any] = {}


def reads_from_aligned_addresses(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
    return scan(log_a, b.as_strided(b.shape, b.stride(), 0), initial_state)


def wraps_offsets(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
    offsets = [item * b.stride(0) & 0x7FFFFFFF for item in range(len(b))]
    items = [b.detach().as_strided(b.shape[1:], b.stride()[1:], offset) for offset in offsets]
    return scan(log_a, torch.stack(items) + b - b.detach(), initial_state)


def needs_a_state(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
    return scan(log_a, b, torch.ones_like(b[:, 0]) if initial_state is None else initial_state)


def keeps_its_result(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
    result = scan(log_a, b, initial_state)
    return kept.setdefault(b.shape, result) if torch.is_inference_mode_enabled() else result


def forgets_gradients_in_backward(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
    in_backward = torch._C._current_graph_task_id() != -1
    return scan(log_a.detach() if in_backward else log_a, b, initial_state)


def uses_the_default_stream(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
    with torch.cuda.stream(torch.cuda.default_stream(b.device)):
        return scan(log_a, b, initial_state)


def keeps_an_operand(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
    if torch.cuda.is_current_stream_capturing():
        b = kept[b.shape]
    else:
        kept[b.shape] = b.detach().clone()
    return scan(log_a, b, initial_state)


def allocates_on_the_current_device(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
    return scan(log_a, b + torch.zeros(b.shape, device="cuda"), initial_state)


FAULTS: dict[str, Callable[..., Any]] = {
    "b:shifted": reads_from_aligned_addresses,
    "b:shifted2": reads_from_aligned_addresses,
    "b:shifted4": reads_from_aligned_addresses,
    "b:far": wraps_offsets,
    "stateless": needs_a_state,
    "inference": keeps_its_result,
    "checkpoint": forgets_gradients_in_backward,
}
GPU_FAULTS: dict[str, Callable[..., Any]] = {
    "stream": uses_the_default_stream,
    "graph": keeps_an_operand,
    "device": allocates_on_the_current_device,
}


def verified(function: Callable[..., Any] | str, call: str, **options: Any) -> Any:
    kept.clear()
    options = {"gates": "data", "T": 9, "B": 3, "C": 4, "gradients": "inference" not in call} | options
    return ssmperf.verify("scan", function, call=call, initial_state=True, **options)


@pytest.mark.parametrize("call", FAULTS)
def test_a_fault_is_found_by_its_word_alone(call: str) -> None:
    assert verified(FAULTS[call], "none", gradients="inference" not in call)
    assert verified("sequential", call)
    assert not verified(FAULTS[call], call)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("call", ["stream", "graph", pytest.param("device", marks=needs_gpus)])
def test_a_fault_on_a_gpu_is_found_by_its_word_alone(call: str) -> None:
    assert call == "stream" or verified(GPU_FAULTS[call], "none", device="cuda")  # which is a race
    assert verified("sequential", call, device="cuda")
    assert not verified(GPU_FAULTS[call], call, device="cuda")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("call", ["b:far", "b:shifted", "stream graph checkpoint", "inference graph"])
def test_a_right_backend_is_right_on_a_gpu(call: str) -> None:
    assert verified("sequential", call, device="cuda")


@pytest.mark.gpu
@needs_gpu
def test_a_call_that_waits_for_the_device_is_not_captured() -> None:
    def waits(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        return scan(log_a, b + 0 * float(b.sum()), initial_state)

    assert "cannot be captured" in " ".join(verified(waits, "graph", device="cuda").not_covered.values())


def test_the_words_are_written_in_one_order() -> None:
    assert str(parse("device checkpoint graph stream stateless autocast skip")) == (
        "skip autocast stateless stream graph checkpoint device"
    )
    assert parse(" ".join(CIRCUMSTANCES[:-3])).circumstances == CIRCUMSTANCES[:-3]
    assert str(parse("dy:far q:shifted k:shifted4")) == "dy:far k:shifted4 q:shifted"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("inference checkpoint", "inference excludes checkpoint"),
        ("inference dy:sliced grad=b", "inference excludes dy, grad"),
        ("stateless initial_state:sliced", "stateless excludes words about initial_state"),
    ],
)
def test_words_that_exclude_each_other_are_an_error(call: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(call)


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        ("stream", {}, "no stream on a CPU"),
        ("graph", {}, "no graph on a CPU"),
        ("device", {}, "no device on a CPU"),
        ("graph", {"suite": "throughput", "device": "cuda"}, "no graph in throughput, which measures calls"),
        ("inference", {"pass_": "forward_backward"}, "no inference in a forward_backward pass"),
        ("checkpoint", {"pass_": "forward"}, "no checkpoint in a forward pass"),
        ("stateless", {"pass_": "decode"}, "no stateless in a decode pass"),
        ("stateless", {"recurrence": "long_conv"}, "long_conv has no state"),
    ],
)
def test_a_word_that_means_nothing_for_a_case_is_refused(
    call: str, options: dict[str, Any], message: str
) -> None:
    case = _case(call, **options)
    assert message in str(form_problem(case, registry.recurrence(case.recurrence)))


@pytest.mark.parametrize("suite", ["correctness", "verify"])
def test_suites_that_only_judge_take_the_words_of_a_gpu(suite: str) -> None:
    case = _case("stream graph device", suite=suite, device="cuda")
    assert form_problem(case, registry.recurrence("scan")) is None


@pytest.mark.parametrize(("view", "shift"), [("shifted", 1), ("shifted2", 2), ("shifted4", 4)])
def test_a_shifted_tensor_and_its_copy_begin_behind_an_aligned_address(view: str, shift: int) -> None:
    x = torch.randn(3, 5, 4)
    for shown in (viewed(x, view), copied(viewed(x, view))):
        assert torch.equal(shown, x) and shown.is_contiguous()
        assert shown.data_ptr() % 64 == 4 * shift


@pytest.mark.parametrize("shape", [(2, 5, 4), (7, 5, 4), (1, 5, 4), (5,)])
def test_a_far_tensor_and_its_copy_end_behind_offsets_of_32_bits(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    axis = next(axis for axis, count in enumerate(shape) if count > 1)
    for shown in (viewed(x, "far"), copied(viewed(x, "far"))):
        assert torch.equal(shown, x)
        assert (shape[axis] - 1) * shown.stride(axis) >= FAR


def test_a_tensor_of_one_number_cannot_be_far() -> None:
    with pytest.raises(Unsupported, match="each axis has one item"):
        viewed(torch.ones(1, 1), "far")


def test_reserved_addresses_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_memory, "_reserved", [])
    sparse_memory.reserve()
    x = viewed(torch.ones(2, 3), "far")
    assert len(sparse_memory._reserved) == sparse_memory.REGIONS - 1
    del x
    assert len(sparse_memory._reserved) == sparse_memory.REGIONS
    assert not viewed(torch.zeros(2, 3), "far").any()


def test_an_initial_state_is_a_view_as_other_operands_are() -> None:
    state = OperationSubject(_case("initial_state:shifted"), "cpu").values(0, with_state=True)
    assert state.operands["initial_state"].storage_offset() == 1


def test_a_stateless_call_still_has_a_gradient_at_the_final_state() -> None:
    values = OperationSubject(_case("stateless"), "cpu").values(0, with_state=True)
    assert "initial_state" not in values.operands
    assert values.grad_state is not None and values.grad_state.any()


def _case(call: str, **options: Any) -> Case:
    fields = {"suite": "correctness", "recurrence": "scan", "backend": "sequential"} | options
    shape = Shape(B=2, T=1 if fields.get("pass_") == "decode" else 5, C=3)
    return Case(shape=shape, operand_source="sigmoid/data", call=call, **fields)
