"""Case: one point to measure, as frozen and hashable plain data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ssmperf.engine.cases.axis import Axis, axes_of, axis
from ssmperf.engine.cases.calls.call import NONE as PLAIN
from ssmperf.engine.cases.calls.call import read_call
from ssmperf.engine.cases.calls.dtypes import DTYPES, dtype_name
from ssmperf.engine.cases.calls.packing import UNPACKED, read_packing
from ssmperf.engine.cases.shape import Shape
from ssmperf.errors import UsageError

PASSES = ("forward", "backward", "forward_backward", "decode")
TRAINING_PASSES = PASSES[:3]  # decode is inference: it takes one token from one state to the next
LAYOUTS = ("channels_last", "time_last")  # operands (B, T, ...) in memory: as they are, or time innermost
LEVELS = ("op", "block")  # a recurrence alone, or a model's whole layer
TIMINGS = ("native", "end-to-end")
CACHES = ("cold", "hot")
MODEL = "model"  # the source of a model's own operands
# begins the source of a model's own operands with another decay: decay/0, decay/10, decay/reset, decay/steep
DECAY = "decay"
RESET, STEEP, SLOW = "reset", "steep", "slow"
# short names of sources, by the log gates that a layer has in use
GATES = {
    "start": MODEL,
    "steep": f"{DECAY}/{STEEP}",
    "slow": f"{DECAY}/{SLOW}",
    "none": f"{DECAY}/0",
    "reset": f"{DECAY}/{RESET}",
}
SEEDS = 2**63
JSON_NAMES = {"pass_": "pass"}  # for fields whose name would be a keyword of Python


def check_seed(seed: Any) -> None:
    """Raise UsageError for a value that no generator takes as a seed."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
        raise UsageError(f"the seed must be a whole number from 0 to {SEEDS - 1}, got {seed!r}")


def split_source(source: str) -> tuple[str, str | None]:
    """Split a source of operands, REGIME or REGIME/KIND, into regime and gate kind (None: any kind)."""
    regime, _, kind = source.partition("/")
    return regime, kind or None


def decay_of(source: str) -> str | None:
    """Name the change of a source DECAY/CHANGE, such as `0.1` or `reset`; None for any other source."""
    kind, change = split_source(source)
    return change if kind == DECAY else None


@dataclass(frozen=True, slots=True)
class Case:
    """One point to measure: suite × model × backend × shape × the axes below.

    An axis is declared here and nowhere else. Its declaration drives validation, the id, `str(case)`, the
    product and order of a plan, the command that repeats a case, the keyword of `ssmperf.run` and the option
    of the command line.

    `model` is None for a case of a bare recurrence. `operand_source` is "model" (the model's parameterisation
    of embedded text), "decay/CHANGE" (the same with another decay), a gate regime with a gate kind such as
    "sigmoid/key", or a source that a suite declares. The pass "decode" processes one
    token, T = 1, from a given state.

    Raises:
        UnknownName, UsageError: the value of an axis is illegal.
    """

    suite: str
    recurrence: str
    backend: str
    shape: Shape
    model: str | None = None
    dtype: str = axis(
        "float32",
        help="Dtypes: float64, float32, bfloat16, float16 (or fp64, fp32, bf16, fp16).",
        valid=DTYPES,
        read=dtype_name,
        plural="dtypes",
        text=None,
        always_repeated=True,
        always_hashed=True,
    )
    gate_dtype: str = axis(
        "float32",
        help="Dtypes of the log gates.",
        valid=DTYPES,
        read=dtype_name,
        plural="gate_dtypes",
        text="{} gates",
        always_hashed=True,
    )
    layout: str = axis(
        "channels_last",
        help="Layouts of the operands: channels_last, time_last.",
        valid=LAYOUTS,
        plural="layouts",
        always_hashed=True,
    )
    operand_source: str = axis(
        "model",
        help="Gate regimes, separated by commas, to draw operands from instead of the models' own.",
        keyword="regime",
        plural="regimes",
        text=None,
        always_hashed=True,
    )
    device: str = axis("cpu", text=None, always_hashed=True)
    pass_: str = axis(
        "forward",
        help="Passes: forward, backward, forward_backward, decode.",
        valid=PASSES,
        plural="passes",
        operands=False,
        text=None,
        always_repeated=True,
        always_hashed=True,
    )
    cache: str = axis("cold", valid=CACHES, operands=False, text="{} cache", always_hashed=True)
    timing: str = axis(
        "native",
        help="native: a peer's kernel alone; end-to-end: with the layout changes that it needs.",
        valid=TIMINGS,
        many=False,
        operands=False,
        always_hashed=True,
    )
    level: str = axis(
        "op",
        help="op: the recurrence alone; block: the model's whole layer around it.",
        valid=LEVELS,
        many=False,
        always_hashed=True,
    )
    seed: int = axis(
        0,
        help="Seed of parameters, text and states; must not be negative.",
        check=check_seed,
        many=False,
        text="seed {}",
        always_repeated=True,
        always_hashed=True,
    )
    packing: str = axis(
        UNPACKED,
        help="Lengths of sequences packed into one: none, 1300,547,0,1, 1024x8 or @lengths.json.",
        read=read_packing,
        many=False,
        text="packing {}",
    )
    call: str = axis(
        PLAIN,
        help="How a call is made: none, or words such as 'read=pre q:shifted dy:expanded grad=k,v graph'.",
        read=read_call,
        many=False,
        text="call '{}'",
    )

    def __post_init__(self) -> None:
        for name, declared in axes().items():
            object.__setattr__(self, name, declared.checked(getattr(self, name)))

    def to_json(self) -> dict[str, Any]:
        """Return a flat JSON object; `pass_` is written as `pass`, the shape as an object."""
        fields = {JSON_NAMES.get(f.name, f.name): getattr(self, f.name) for f in dataclasses.fields(self)}
        return fields | {"shape": dict(self.shape)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        """Read the object that `to_json` returns; keys that are no field of a case are ignored."""
        names = {JSON_NAMES.get(f.name, f.name): f.name for f in dataclasses.fields(cls)}
        fields = {names[key]: value for key, value in data.items() if key in names}
        fields["shape"] = Shape(fields["shape"])
        return cls(**fields)

    @property
    def gradients(self) -> bool:
        """Whether the pass computes gradients."""
        return self.pass_ in ("backward", "forward_backward")

    @property
    def decodes(self) -> bool:
        """Whether the case is a step of inference: one token, from a given state, without gradients."""
        return self.pass_ == "decode"

    @property
    def plain(self) -> bool:
        """Whether nothing is packed, no words change the call, and there are as many key heads as heads."""
        return self.packing == UNPACKED and self.call == PLAIN and "G" not in self.shape

    @property
    def subject(self) -> str:
        """The model's name, or the recurrence with the source of its operands, as text."""
        return self.model or f"{self.recurrence}[{self.operand_source}]"

    @property
    def owner(self) -> str:
        """The name of the model or recurrence whose backends can run the case."""
        return self.model or self.recurrence

    @property
    def id(self) -> str:
        """A stable id: a hash of the fields and nothing else (no device index, path or version).

        An axis that is not `always_hashed` is left out at its default.
        """
        fields = self.to_json()
        for name, declared in axes().items():
            if not declared.always_hashed and getattr(self, name) == declared.default:
                del fields[JSON_NAMES.get(name, name)]
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def operand_key(self) -> tuple[object, ...]:
        """The key of the operands: cases with equal keys share operands and the oracle's answer."""
        values = (getattr(self, name) for name, declared in axes().items() if declared.operands)
        return (self.model, self.recurrence, self.shape, *values)

    def __str__(self) -> str:
        text = f"{self.suite} {self.subject} {self.backend} {self.shape} {self.dtype} {self.pass_}"
        if self.model is not None and self.operand_source != "model":  # reset, decay/0, task/mqar
            text += f" {self.operand_source}"
        for name, declared in axes().items():
            value = getattr(self, name)
            if declared.text is not None and value != declared.default:
                text += " " + declared.text.format(value)
        return text


@cache
def axes() -> dict[str, Axis]:
    """List the axes of a case by field name, in order."""
    return axes_of(Case)


def chosen_axes() -> dict[str, Axis]:
    """List the axes that a user can choose, by field name."""
    return {name: declared for name, declared in axes().items() if declared.help is not None}
