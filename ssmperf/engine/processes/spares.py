"""Nurseries that start before it is known what will run in them: importing takes as long as planning."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from ssmperf.engine.processes.nursery import Nursery

# Imports of workers and the judge, some of which take seconds: a gradient imports sympy, and the first
# call of a kernel in Triton imports torch's compiler.
IMPORTS = (
    "torch",
    "sympy",
    "ssmperf.engine.execute.context",
    "ssmperf.engine.machine.ceilings",
    "ssmperf.engine.machine.environment",
    "ssmperf.engine.execute.worker",
    "ssmperf.engine.execute.process_state",
    "ssmperf.engine.trial.server",
    "ssmperf.engine.trial.client",
    "ssmperf.engine.registry:import_built_in",
)
IMPORTS_CUDA = (
    "torch._dynamo",
    "torch._higher_order_ops.triton_kernel_wrap",
    "ssmperf.engine.machine.process_settings:name_triton_cache",
)
DRIVER = Path("/dev/nvidiactl")  # is there where a GPU can be used


def imports_for(device: str) -> tuple[str, ...]:
    """List what the nursery of a device's workers imports."""
    return (*IMPORTS, *IMPORTS_CUDA) if device.startswith("cuda") else IMPORTS


def likely_devices(device: str, devices: Sequence[int] | None) -> list[str]:
    """Guess on which devices a run will be, without torch: a spare of another one is not taken.

    device, devices: as asked for.
    """
    if devices:
        return [f"cuda:{index}" for index in devices]
    return [("cuda" if DRIVER.exists() else "cpu") if device == "auto" else device]


class Spares:
    """A nursery for each of some devices, until the lanes of a run take them; the rest ends with the block.

    A process that forks must not have any, as its children could start processes by them.
    """

    def __init__(self, devices: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._left: list[tuple[tuple[str, ...], Nursery]] = []
        for device in devices:
            imports = imports_for(device)
            self._left.append((imports, Nursery(imports)))

    def take(self, imports: tuple[str, ...]) -> Nursery | None:
        """Take a nursery with these imports, if one is left."""
        with self._lock:
            place = next((at for at, (own, _) in enumerate(self._left) if own == imports), None)
            return None if place is None else self._left.pop(place)[1]

    def __enter__(self) -> Spares:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._left:
            self._left.pop()[1].close()
