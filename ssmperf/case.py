"""Case: one point to measure. Shape: its operand dimensions. Both frozen, hashable and plain data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ssmperf.errors import UsageError

DTYPES = ("float64", "float32", "bfloat16", "float16")
PASSES = ("forward", "backward", "forward_backward", "decode")
TRAINING_PASSES = PASSES[:3]  # decode is inference: one token, from a state to the next
LAYOUTS = ("channels_last", "time_last")  # of operands (B, T, ...) in memory: as they are, or time innermost
CHECKS = ("analytic", "identity", "task")  # sources beside the regimes: `ssmperf.checks`, suites' tasks
DIMENSIONS = ("B", "T", "C", "H", "K", "V", "D", "N")


class Shape(Mapping[str, int]):
    """Operand dimensions by letter, in the project's order (B, T, C, H, K, V, D, N).

    Raises:
        UsageError: for an unknown dimension letter or a size below 1.
    """

    __slots__ = ("_sizes",)

    def __init__(self, sizes: Mapping[str, int] | None = None, /, **named: int) -> None:
        merged = {**(sizes or {}), **named}
        for letter, size in merged.items():
            if letter not in DIMENSIONS:
                raise UsageError(f"unknown dimension {letter!r} (valid: {', '.join(DIMENSIONS)})")
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise UsageError(f"dimension {letter} must be a positive integer, got {size!r}")
        self._sizes = {letter: merged[letter] for letter in DIMENSIONS if letter in merged}

    def __getitem__(self, letter: str) -> int:
        return self._sizes[letter]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __hash__(self) -> int:
        return hash(tuple(self._sizes.items()))

    def __str__(self) -> str:
        return " ".join(f"{letter}{size}" for letter, size in self._sizes.items())

    def __repr__(self) -> str:
        return f"Shape({', '.join(f'{letter}={size}' for letter, size in self._sizes.items())})"

    def with_(self, **sizes: int) -> Shape:
        """The same shape with some sizes replaced; letters that it lacks are refused."""
        for letter in sizes:
            if letter not in self._sizes:
                raise UsageError(f"axis {letter!r} is not in this shape (it has {', '.join(self._sizes)})")
        return Shape({**self._sizes, **sizes})


def split_source(source: str) -> tuple[str, str | None]:
    """The regime and the gate kind (None: any) of a source of operands, REGIME or REGIME/KIND."""
    regime, _, kind = source.partition("/")
    return regime, kind or None


# Told of a case, as text, where it is not the default.
_UNUSUAL = {
    "gate_dtype": "{} gates",
    "layout": "{}",
    "cache": "{} cache",
    "timing": "{}",
    "level": "{}",
    "seed": "seed {}",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One point to measure: suite × model × backend × shape × dtype × device × pass (+ seed).

    `operand_source` is "model" (the model's own parameterisation of embedded text), a gate regime with a
    gate kind such as "sigmoid/key", or what a suite names so. `model` is None for a case of a bare
    recurrence. `cache` is "cold" or "hot". The pass "decode" is one token, T = 1, from a given state.
    """

    suite: str
    recurrence: str
    backend: str
    shape: Shape
    model: str | None = None
    dtype: str = "float32"
    gate_dtype: str = "float32"
    layout: str = "channels_last"
    operand_source: str = "model"
    device: str = "cpu"
    pass_: str = "forward"
    cache: str = "cold"
    timing: str = "native"
    level: str = "op"
    seed: int = 0

    def __post_init__(self) -> None:
        for value, valid, what in (
            (self.dtype, DTYPES, "dtype"),
            (self.gate_dtype, DTYPES, "gate dtype"),
            (self.pass_, PASSES, "pass"),
            (self.layout, LAYOUTS, "layout"),
        ):
            if value not in valid:
                raise UsageError(f"unknown {what} {value!r} (valid: {', '.join(valid)})")

    def to_json(self) -> dict[str, Any]:
        """A flat JSON object; `pass_` is written as `pass`, the shape as an object."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["pass"] = fields.pop("pass_")
        fields["shape"] = dict(self.shape)
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        """The inverse of `to_json`; keys that are no field of a case are ignored."""
        known = {f.name for f in dataclasses.fields(cls)}
        fields = {("pass_" if key == "pass" else key): value for key, value in data.items()}
        fields = {key: value for key, value in fields.items() if key in known}
        fields["shape"] = Shape(fields["shape"])
        return cls(**fields)

    @property
    def gradients(self) -> bool:
        """Whether its pass takes gradients."""
        return self.pass_ in ("backward", "forward_backward")

    @property
    def decodes(self) -> bool:
        """Whether it is a step of inference: one token, from a given state and without gradients."""
        return self.pass_ == "decode"

    @property
    def subject(self) -> str:
        """What it is about, as text: the model, or the recurrence and the source of its operands."""
        return self.model or f"{self.recurrence}[{self.operand_source}]"

    @property
    def gate_kind(self) -> str | None:
        """The gate kind that its operand source names, if that is a regime's."""
        regime, kind = split_source(self.operand_source)
        return None if regime in CHECKS else kind

    @property
    def id(self) -> str:
        """A stable hash of all fields and of nothing else: no device index, no path, no version."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def operand_key(self) -> tuple[object, ...]:
        """What the operands depend on: cases with equal keys share operands and oracle."""
        return (
            self.model,
            self.recurrence,
            self.shape,
            self.dtype,
            self.gate_dtype,
            self.layout,
            self.operand_source,
            self.device,
            self.level,
            self.seed,
        )

    def __str__(self) -> str:
        what = f"{self.suite} {self.subject} {self.backend} {self.shape} {self.dtype} {self.pass_}"
        usual = {f.name: f.default for f in dataclasses.fields(self)}
        for name, text in _UNUSUAL.items():
            if getattr(self, name) != usual[name]:
                what += " " + text.format(getattr(self, name))
        return what
