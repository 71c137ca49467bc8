"""The cases that a profile is about, and their calls in the calling process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.measure.passes import pass_of
from ssmperf.engine.operands.contract import well_formed
from ssmperf.engine.operands.dtypes import dtype_of
from ssmperf.engine.operands.subject import subject_of
from ssmperf.engine.operands.values import Values
from ssmperf.engine.plan import Selection, check_sizes, product
from ssmperf.engine.registry.declarations import Backend
from ssmperf.errors import UsageError

SUITE = "profile"


def cases_of(
    selection: Selection, *, passes: tuple[str, ...], dtype: str = "float32", shapes: slice = slice(None)
) -> list[Case]:
    """List the cases of a selection.

    passes, dtype, shapes: used where none are named; `shapes` cuts the list of the preset's.

    Raises:
        UsageError: there are none, or a size is named that none of them has.
    """
    found = [
        case
        for part in selection.parts or (selection,)
        for case in product(
            part,
            SUITE,
            passes=passes,
            dtypes=(dtype,),
            cache="hot",
            shapes=lambda several: several[shapes],
        )
    ]
    if not found:
        raise UsageError("nothing is selected: the model has no such backend (see `ssmperf list`)")
    check_sizes(selection, found)
    return found


@dataclass(frozen=True)
class ProfiledCall:
    """The backend of a case on a device, with values."""

    case: Case
    backend: Backend
    values: Values
    function: Callable[..., Any]

    @classmethod
    def of(cls, case: Case, device: str) -> ProfiledCall:
        """Look up the backend and draw the values."""
        subject = subject_of(case, device)
        backend = registry.backend(case.owner, case.backend)
        function = subject.function(backend.function, dtype_of(case.dtype))
        return cls(case, backend, subject.values(0, with_state=case.decodes), function)

    def call(self, *, checked: bool = True) -> Callable[[], Any]:
        """Make the call of the case's pass.

        checked: whether the form of each result is checked; a wrong one raises BrokenContract.
        """
        function = well_formed(self.function) if checked else self.function
        return pass_of(self.case, self.backend, function, self.values).call


def synchronize(device: str) -> None:
    """Wait for the device; nothing for a CPU."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)
