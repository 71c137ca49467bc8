"""The arguments that the CUDA scan hands to the driver, seen by a stand-in."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

pytest.importorskip("cuda.bindings")
pytest.importorskip("cuda.core")

from cuda.bindings import driver
from ssmperf.impls._cuda import enqueue as module
from ssmperf.impls._cuda.enqueue import enqueue

Result = driver.CUresult


class Driver:
    """Reads the arguments where the driver would, and answers with these results in turn."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.calls: list[tuple[tuple[Any, ...], list[int]]] = []

    def launch(self, *given: Any) -> int:
        *configuration, at, _ = given
        count = 3
        addresses = (ctypes.c_void_p * count).from_address(at)
        values = [ctypes.c_longlong.from_address(address).value for address in addresses]
        self.calls.append((tuple(configuration), values))
        return int(self.results.pop(0))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver(*[Result.CUDA_SUCCESS] * 2)
    monkeypatch.setattr(module, "driver_function", lambda name, types: found.launch)
    monkeypatch.setattr(module, "_free", type(module._free)(list))
    return found


def test_arguments_of_64_bits_and_the_configuration(fake: Driver) -> None:
    enqueue("kernel", 7, 128, 4096, 55, [2**40, 0, -1], 0)
    enqueue("kernel", 8, 64, 0, 0, [1, 2, 3], 0)
    assert fake.calls[0] == (("kernel", 7, 1, 1, 128, 1, 1, 4096, 55), [2**40, 0, -1])
    assert fake.calls[1] == (("kernel", 8, 1, 1, 64, 1, 1, 0, module.LEGACY_STREAM), [1, 2, 3])
    assert len(module._free[3]) == 1, "the second launch takes the buffer of the first"


def test_launches_at_the_same_time_take_different_free(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = fake.launch

    def nested(*given: Any) -> int:
        if len(fake.results) == 2:
            fake.results.append(Result.CUDA_SUCCESS)
            fake.results.append(Result.CUDA_SUCCESS)
            enqueue("inner", 1, 32, 0, 5, [4, 5, 6], 0)
        return inner(*given)

    monkeypatch.setattr(module, "driver_function", lambda name, types: nested)
    enqueue("outer", 1, 32, 0, 5, [1, 2, 3], 0)
    assert [(call[0][0], call[1]) for call in fake.calls] == [("inner", [4, 5, 6]), ("outer", [1, 2, 3])]


def test_a_thread_without_a_context_gets_one(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[int] = []

    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

        def set_current(self) -> None:
            current.append(self.index)

    monkeypatch.setattr("cuda.core.Device", Device)
    fake.results[0] = Result.CUDA_ERROR_INVALID_CONTEXT
    enqueue("kernel", 7, 128, 0, 5, [1, 2, 3], 3)
    assert current == [3] and len(fake.calls) == 2


def test_a_refused_launch_is_an_error(fake: Driver) -> None:
    fake.results[0] = Result.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        enqueue("kernel", 7, 128, 0, 5, [1, 2, 3], 0)
