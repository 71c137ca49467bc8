"""Peak memory of a call is exact, on sequences of tensors with a known peak."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ssmperf.engine.measure.memory import peak_bytes, trace

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
MB = 2**20
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]


def hold(nbytes: int, device: str) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def overlapping(device: str) -> torch.Tensor:
    """Hold 4, 6, 2, then 5 MiB."""
    first = hold(4 * MB, device)
    second = hold(2 * MB, device)
    del first
    third = hold(3 * MB, device)
    del second
    return third


def growing(device: str) -> list[torch.Tensor]:
    """Return everything: 1 + 2 + 3 MiB."""
    return [hold(size * MB, device) for size in (1, 2, 3)]


def one_after_another(device: str) -> None:
    """Hold at most 5 MiB at once, 9 MiB in all."""
    for size in (4, 5):
        hold(size * MB, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("call", "megabytes"), [(overlapping, 6), (growing, 6), (one_after_another, 5)])
def test_peak_of_a_known_sequence(call: Callable[[str], object], megabytes: int, device: str) -> None:
    kept = hold(64 * MB, device)
    assert peak_bytes(lambda: call(device), device) == (megabytes * MB, None)
    del kept


@pytest.mark.parametrize("device", DEVICES)
def test_a_call_that_allocates_nothing(device: str) -> None:
    held = torch.zeros(MB, device=device)
    assert peak_bytes(lambda: held.zero_(), device) == (0, None)


def test_memory_freed_by_the_call_does_not_hide_what_it_takes() -> None:
    """Memory of the caller that the call frees does not count, since the peak counts from the start."""
    held = [hold(8 * MB, "cpu")]

    def call() -> torch.Tensor:
        taken = hold(3 * MB, "cpu")
        held.clear()
        return taken

    assert peak_bytes(call, "cpu") == (3 * MB, None)


def test_gradients_count() -> None:
    x = torch.ones(MB // 4, requires_grad=True)
    peak, _ = peak_bytes(lambda: torch.autograd.grad(x.exp().sum(), x), "cpu")
    assert peak is not None and 2 * MB <= peak <= 3 * MB + 64


def test_a_running_profiler_is_a_reason() -> None:
    with torch.autograd.profiler.profile():
        peak, reason = peak_bytes(lambda: None, "cpu")
    assert peak is None and reason == "another profiler is running"


def test_an_exception_passes_and_the_next_measurement_works() -> None:
    with pytest.raises(KeyError):
        peak_bytes(lambda: {}["missing"], "cpu")
    assert peak_bytes(lambda: hold(MB, "cpu"), "cpu") == (MB, None)


def test_it_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    peak_bytes(lambda: hold(MB, "cpu"), "cpu")
    assert capfd.readouterr() == ("", "")


def test_what_a_cycle_of_the_call_holds_is_not_left() -> None:
    def call() -> None:
        cycle: list[object] = [torch.empty(4096)]
        cycle.append(cycle)

    found, reason = trace(call, "cpu")
    assert found is not None and reason is None
    assert found.left_bytes == 0 and found.peak_bytes == 4 * 4096
