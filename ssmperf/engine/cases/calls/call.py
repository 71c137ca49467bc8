"""Call: what a call has beside the plain operands of its recurrence, as words separated by spaces.

read=pre            an option of the recurrence
bonus skip          optional operands, drawn at random; or an option that is true
q:transposed        a view of an operand, or of an incoming gradient: dy at the output, ds at the state
k:float32           the dtype of an operand
grad=k,v            the operands whose gradients are wanted, all others being constants
autocast            under torch.autocast
stateless           without an initial state, where a suite would draw one
stream              on a CUDA stream of its own, on which the operands arrive just before the call
graph               captured in a CUDA graph, which is replayed with other values in the same buffers
inference           under torch.inference_mode, in passes without gradients
checkpoint          under torch.utils.checkpoint, so that backward computes the call again
device              while another GPU than that of the operands is the current device
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ssmperf.engine.cases.calls.dtypes import DTYPES, dtype_name
from ssmperf.errors import UnknownName, UsageError

NONE = "none"
GRAD = "grad"
AUTOCAST, STATELESS, STREAM, GRAPH = "autocast", "stateless", "stream", "graph"
INFERENCE, CHECKPOINT, DEVICE = "inference", "checkpoint", "device"
CIRCUMSTANCES = (AUTOCAST, STATELESS, STREAM, GRAPH, INFERENCE, CHECKPOINT, DEVICE)
DY, DS = "dy", "ds"  # the gradients of the loss at the output and at the final state
INCOMING = {DY: "output", DS: "final state"}
# sliced: part of a larger tensor. strided: every second number. transposed: time innermost in memory.
# expanded: one number (of a gradient) or one batch item shown everywhere. missing: no gradient arrives.
# one_head: one head, the third axis, shown as all.
# ones: every number is 1.
# negated: a conjugate, or (real) the imaginary part of one, whose sign is no part of its memory.
# shifted, shifted2, shifted4: dense, but 1, 2 or 4 elements behind an aligned address.
# far: in memory of more than 2^31 elements, at the end of which the last batch item lies.
SHIFTS = {"shifted": 1, "shifted2": 2, "shifted4": 4}
VIEWS = (
    "sliced",
    "strided",
    "transposed",
    "expanded",
    "one_head",
    "ones",
    "negated",
    "missing",
    *SHIFTS,
    "far",
)
FORMS = "such as read=pre bonus q:transposed dy:expanded grad=k,v k:float32 autocast"
STATE = "initial_state"
COMPLEX = ("complex64", "complex128")  # of operands and states; no dtypes of a case
OPERAND_DTYPES = (*DTYPES, *COMPLEX)
_NAME = re.compile(r"[A-Za-z_]\w{0,63}")
_VALUE = re.compile(r"[\w.+-]{1,64}")


@dataclass(frozen=True, slots=True)
class Call:
    """The words of a call.

    options: values by name, as text. operands: optional operands, or options that are true.
    views: by operand or incoming gradient. dtypes: by operand. wanted: operands with gradients; None for all.
    circumstances: words for where and how the call runs, in the order of CIRCUMSTANCES.
    """

    options: Mapping[str, str]
    operands: tuple[str, ...]
    views: Mapping[str, str]
    dtypes: Mapping[str, str]
    wanted: tuple[str, ...] | None
    circumstances: tuple[str, ...]

    @property
    def plain(self) -> bool:
        return self == parse(NONE)

    @property
    def names(self) -> tuple[str, ...]:
        """All names of operands and options that the words mention."""
        viewed = [name for name in self.views if name not in INCOMING]
        return (*self.options, *self.operands, *viewed, *self.dtypes, *(self.wanted or ()))

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in sorted(self.options.items())]
        words += sorted(self.operands)
        words += [f"{name}:{view}" for name, view in sorted(self.views.items())]
        words += [f"{name}:{dtype}" for name, dtype in sorted(self.dtypes.items())]
        words += [] if self.wanted is None else [f"{GRAD}={','.join(self.wanted)}"]
        words += self.circumstances
        return " ".join(words) or NONE

    def __hash__(self) -> int:
        return hash(str(self))


def complex_refusal(call: str, reason: str) -> str | None:
    """Turn the reason of an exception into a refusal where operands were made complex: most take none.

    An error of the device is no refusal.
    """
    if "CUDA error" in reason or "CUDA_ERROR" in reason:
        return None
    names = [name for name, dtype in parse(call).dtypes.items() if dtype in COMPLEX and name != STATE]
    return f"no complex {', '.join(names)}: {reason}" if names else None


def read_call(value: Any) -> str:
    """Write the words of a call in their order. Raises UsageError for words that are not understood."""
    return NONE if value is None else str(parse(value))


@cache
def parse(text: str) -> Call:
    """Read the words of a call; which names there are is checked where the recurrence is known.

    Raises:
        UsageError: a word is not understood, said twice, or excluded by another one.
        UnknownName: there is no such view or dtype.
    """
    if not isinstance(text, str):
        raise UsageError(f"call must be words, got {text!r:.80} ({FORMS})")
    options: dict[str, str] = {}
    operands: list[str] = []
    views: dict[str, str] = {}
    dtypes: dict[str, str] = {}
    wanted: tuple[str, ...] | None = None
    circumstances: set[str] = set()
    words = [] if text.strip() == NONE else text.split()
    for word in words:
        name, colon, form = word.partition(":")
        key, equals, value = word.partition("=")
        if word in CIRCUMSTANCES:
            circumstances.add(word)
        elif equals and key == GRAD and all(map(_NAME.fullmatch, value.split(","))):
            wanted = tuple(sorted(set(value.split(",")) | set(wanted or ())))
        elif equals and _NAME.fullmatch(key) and _VALUE.fullmatch(value):
            options[key] = _once(options, key, value)
        elif colon and _NAME.fullmatch(name) and dtype_name(form) in OPERAND_DTYPES and name not in INCOMING:
            dtypes[name] = _once(dtypes, name, dtype_name(form))
        elif colon and _NAME.fullmatch(name) and (form != "missing" or name in INCOMING):
            if form not in VIEWS:
                raise UnknownName(f"view of {name}", form, (*VIEWS, *OPERAND_DTYPES))
            views[name] = _once(views, name, form)
        elif _NAME.fullmatch(word):
            operands.append(word)
        else:
            raise UsageError(f"call: {word!r:.80} is not understood ({FORMS})")
    ordered = tuple(each for each in CIRCUMSTANCES if each in circumstances)
    return _consistent(Call(options, tuple(sorted(set(operands))), views, dtypes, wanted, ordered))


def without(text: str, word: str) -> str:
    """Leave a word for a circumstance out of the words of a call."""
    call = parse(text)
    return str(replace(call, circumstances=tuple(each for each in call.circumstances if each != word)))


def _consistent(call: Call) -> Call:
    """Return a call. Raises UsageError if one word excludes another."""
    gradients = [name for name in INCOMING if name in call.views]
    gradients += [GRAD] if call.wanted is not None else []
    gradients += [CHECKPOINT] if CHECKPOINT in call.circumstances else []
    if INFERENCE in call.circumstances and gradients:
        raise UsageError(f"call: {INFERENCE} excludes {', '.join(gradients)}: it computes no gradients")
    if STATELESS in call.circumstances and STATE in call.names:
        raise UsageError(f"call: {STATELESS} excludes words about {STATE}: there is none")
    return call


def _once(known: Mapping[str, str], name: str, value: str) -> str:
    if known.get(name, value) != value:
        raise UsageError(f"call: {name} is given twice, as {known[name]} and {value}")
    return value
