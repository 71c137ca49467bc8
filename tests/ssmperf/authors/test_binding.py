"""What a function is said to take is what calls give it, however its parameters are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ssmperf import Unsupported
from ssmperf.authors.verification.binding import names_taken, taking_names
from ssmperf.suitekit import registry

SCAN = registry.recurrence("scan")


def all_required(b, log_a, *, initial_state=None): ...
def any_names(b, **others): ...
def other_names(x, gates): ...
def other_names_and_one_of_its_own(x, *, phase=None): ...
def any_number(*operands): ...
def required_and_any_number(*operands, b, log_a=None): ...
def nothing(): ...


class Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, b: Any, log_a: Any, **options: Any) -> Any:
        return b


FUNCTIONS = [
    all_required, any_names, other_names, other_names_and_one_of_its_own, any_number, required_and_any_number,
    nothing, Applied, Applied.apply,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: getattr(each, "__qualname__", repr(each)))
def test_names_are_taken_if_a_call_may_give_them(function: Callable[..., Any]) -> None:
    call, taken = taking_names(function, SCAN), names_taken(function, SCAN)
    for name in SCAN.signature.parameters:
        given = dict.fromkeys(taken & {*SCAN.required}, torch.zeros(1))
        try:
            call(**{**given, name: torch.zeros(1)})
        except Unsupported:
            assert name not in taken
        else:
            assert name in taken
