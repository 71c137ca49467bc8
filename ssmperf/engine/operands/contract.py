"""The contract of a call: its required result, and the words that refuse a result that breaks it.

The judge, `ssmperf.compute` and the first, untimed call of a case all ask here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmperf.errors import BrokenContract, Unsupported

FORM = "(output, final_state)"
# names of the axes of an output, by how many it has
AXES = {3: ("batch", "time", "channels"), 4: ("batch", "time", "heads", "channels")}
TIME = 1
VOWELS = "AEIOUaeiou"


@dataclass(frozen=True, slots=True)
class Contract:
    """The shapes and dtypes that output and final state must have; None for a state that there is not.

    A size of None in the state's shape may be any.
    """

    output_shape: tuple[int, ...]
    output_dtype: torch.dtype
    state_shape: tuple[int | None, ...] | None
    state_dtype: torch.dtype | None


def ill_formed(result: Any) -> str | None:
    """Say why a call's result is not `(output, final_state)` with a tensor as output, or return None."""
    if not isinstance(result, tuple):
        return f"must return {FORM}, got {_described(result)}"
    if len(result) != 2:
        kinds = ", ".join(_kind(each) for each in result)
        return f"must return {FORM}, got a tuple of {len(result)}" + (f" ({kinds})" if kinds else "")
    if not isinstance(result[0], Tensor):
        return f"output is {_described(result[0])}, must be a torch.Tensor"
    if not (result[1] is None or isinstance(result[1], Tensor)):
        return f"final_state is {_described(result[1])}, must be a torch.Tensor"
    return None


def malformed(result: Any, expected: Contract, device: torch.device, *, plain: bool = True) -> str | None:
    """Say how a call's result breaks the contract, or return None.

    device: where the operands are, and the results must be.
    plain: whether a subclass of Tensor breaks it too, since it may be computed only when it is read.
    """
    problem = ill_formed(result)
    if problem:
        return problem
    output, state = result
    if _exchanged(output, state, expected):
        shapes = f"output is {_shape(output.shape)} and final_state {_shape(state.shape)}"
        return f"output and final_state look exchanged: {shapes}"
    objects = (
        ("output", output, expected.output_shape, expected.output_dtype),
        ("final_state", state, expected.state_shape, expected.state_dtype),
    )
    for label, value, shape, dtype in objects:
        if shape is None:
            if value is not None:
                return f"{label} is {_described(value)}, must be None: this recurrence has no state"
            continue
        problem = _misfit(label, value, shape, dtype, device, plain=plain)
        if problem:
            return problem
    return None


def _misfit(
    label: str,
    value: Tensor | None,
    shape: Sequence[int | None],
    dtype: torch.dtype | None,
    device: torch.device,
    *,
    plain: bool,
) -> str | None:
    if value is None:
        return f"{label} is None, must be a torch.Tensor {_shape(shape)} of {_name(dtype)}"
    if plain and type(value) is not Tensor:
        return f"{label} is {_described(value)}, must be a plain torch.Tensor"
    problem = wrong_shape(label, value.shape, shape)
    if problem:
        return problem
    if value.dtype != dtype:
        complex_ = value.is_complex() and dtype is not None and not dtype.is_complex
        return f"{label} is {_name(value.dtype)}, must be {_name(dtype)}" + (
            ": it is complex, must be real" if complex_ else ""
        )
    if value.device != device:
        return f"{label} is on {value.device}, must be on {device} like the operands"
    return None


def wrong_shape(label: str, shape: Sequence[int], wanted: Sequence[int | None]) -> str | None:
    """Say that an object has another shape than it must have, and what seems to have happened; or None."""
    if len(shape) == len(wanted) and all(
        must is None or size == must for size, must in zip(shape, wanted, strict=True)
    ):
        return None
    text = f"{label} is {_shape(shape)}, must be {_shape(wanted)}"
    guess = _guess(label, tuple(shape), tuple(wanted))
    return f"{text}: {guess}" if guess else text


def _guess(label: str, shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> str | None:
    """Guess what happened to an object's axes; None if nothing explains its shape."""
    axes = AXES.get(len(wanted)) if label == "output" else None
    if len(shape) == len(wanted):
        swapped = swapped_axes(shape, wanted)
        if swapped is None:
            permuted = sorted(shape) == sorted(size or 0 for size in wanted)
            return "its axes look permuted" if permuted else None
        if axes is not None:
            return f"{axes[swapped[0]]} and {axes[swapped[1]]} look exchanged"
        return f"its axes {swapped[0]} and {swapped[1]} look exchanged"
    if axes is not None and shape == (*wanted[:TIME], *wanted[TIME + 1 :]):
        return "the axis of time is missing"
    return None


def swapped_axes(shape: Sequence[int], wanted: Sequence[int | None]) -> tuple[int, int] | None:
    """Find the two axes by whose exchange a shape becomes the one that it must be."""
    different = [axis for axis, size in enumerate(wanted) if shape[axis] != size]
    if len(different) != 2:
        return None
    first, second = different
    crossed = shape[first] == wanted[second] and shape[second] == wanted[first]
    return (first, second) if crossed else None


def _exchanged(output: Tensor, state: Tensor | None, expected: Contract) -> bool:
    if state is None or expected.state_shape is None:
        return False
    shapes = tuple(output.shape), tuple(state.shape)
    wanted = expected.output_shape, expected.state_shape
    return shapes != wanted and shapes == (wanted[1], wanted[0])


def well_formed(function: Callable[..., Any], *, expected: Contract | None = None) -> Callable[..., Any]:
    """Wrap a function so that a result of another form, or one that breaks a contract, raises.

    The wrapped function raises BrokenContract, before anything else trips over the result, and Unsupported
    for an operand that the function has no parameter for.
    """
    taken = _keywords(function)

    def checked(*operands: Any, **options: Any) -> Any:
        if taken is not None and (unknown := options.keys() - taken):
            raise Unsupported(f"its function takes no {', '.join(sorted(unknown))}")
        result = function(*operands, **options)
        problem = ill_formed(result)
        if problem is None and expected is not None:
            given = next(x for x in (*operands, *options.values()) if isinstance(x, Tensor))
            problem = malformed(result, expected, given.device)
        if problem:
            raise BrokenContract(problem)
        return result

    return checked


def _keywords(function: Callable[..., Any]) -> set[str] | None:
    """Name the keywords that a function takes; None if it takes any, or does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function in C tells no parameters
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY}


def _described(value: Any) -> str:
    """Describe a value by its type: "a list of 2", "an int", "None"."""
    if value is None:
        return "None"
    kind = _kind(value)
    size = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    return f"{'an' if kind[0] in VOWELS else 'a'} {kind}{size}"


def _kind(value: Any) -> str:
    """Name a value's type; an array's with its package, since many packages have a type of that name."""
    kind = type(value)
    package = f"{kind.__module__.partition('.')[0]}." if kind.__name__ in ("ndarray", "Array") else ""
    return "None" if value is None else f"{package}{kind.__name__}"


def _shape(shape: Sequence[int | None]) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    return f"({sizes},)" if len(shape) == 1 else f"({sizes})"


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
