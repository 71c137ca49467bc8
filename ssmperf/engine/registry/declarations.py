"""The declarations of implementations, as data: Recurrence, Backend, ModelEntry, Family."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ssmperf.engine.cases.calls import call as calls
from ssmperf.engine.cases.calls.call import Call
from ssmperf.engine.cases.calls.dtypes import DTYPES, dtype_names
from ssmperf.engine.cases.case import LAYOUTS, PASSES
from ssmperf.engine.cases.pattern import parse
from ssmperf.engine.cases.shape import Shape, check_sizes, size_problem
from ssmperf.engine.registry.cost import CostModel
from ssmperf.errors import Unsupported, UsageError

DEVICES = ("cpu", "cuda")
CAUSAL = ("bitwise", "tolerance", "none")
BATCHES = ("bitwise", "tolerance")
# Declarations of a backend that are functions, if they are given.
FUNCTIONS = (
    "lengths", "error_bound", "definition", "launches", "serial_steps", "workspace", "saved", "prepare",
    "loads",
)  # fmt: skip


Sampler = Callable[..., dict[str, Any]]
StateSampler = Callable[..., Any]
OptionalSampler = Callable[..., Any]
PACKED = "cu_seqlens"  # the operand with the bounds of packed sequences
TRUTHS = {"true": True, "false": False}


@dataclass(frozen=True, eq=False, slots=True)
class Recurrence:
    """An algebraic family with one operand signature. `definition` is its literal loop.

    The other fields are described with the arguments of the decorator `recurrence`.
    """

    name: str
    definition: Callable[..., Any]
    cost: CostModel
    presets: Mapping[str, tuple[Shape, ...]]
    gates: tuple[str, ...]
    gate_kind: Callable[[Mapping[str, Any]], str]
    gate_kinds: tuple[str, ...]
    sample: Sampler
    state_shape: Callable[[Shape], tuple[int, ...]] | None = None
    sample_state: StateSampler | None = None
    decay_span: Callable[[Mapping[str, Any]], float] | None = None
    linear: tuple[str, ...] = ()
    joint: tuple[str, ...] = ()
    grows: bool = False
    longest: int | None = None
    family: str = ""
    operand_shapes: Mapping[str, str] = field(default_factory=dict)
    decay_operands: Mapping[str, tuple[str, ...]] | None = None
    stepwise: bool = False
    optional: tuple[str, ...] = ()
    sample_optional: OptionalSampler | None = None
    calls: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        owner = f"recurrence {self.name!r}"
        check_names(owner, "operand_shapes", tuple(self.operand_shapes), self.tensors)
        for name, pattern in self.operand_shapes.items():
            try:
                parse(pattern)
            except ValueError as error:
                raise UsageError(f"{owner}: operand_shapes of {name}: {error}") from error
        check_names(owner, "gates", self.gates, self.tensors)
        check_names(owner, "gate_kinds", self.gate_kinds)
        check_names(owner, "linear", self.linear, self.tensors)
        check_names(owner, "joint", self.joint, self.tensors)
        check_names(owner, "optional", self.optional, tuple(self.operand_shapes))
        for words in self.calls:
            problem = self.call_problem(calls.parse(words))
            if problem:
                raise UsageError(f"{owner}: calls: {problem}")

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the parameters without a default, which are passed even if they are None."""
        empty = inspect.Parameter.empty
        return tuple(name for name, each in self.signature.parameters.items() if each.default is empty)

    def log_gates(self, gate_kind: str) -> tuple[str, ...]:
        """Name the operands that multiply the log gates of a kind of gate; none if it has no log gates."""
        if self.decay_operands is not None:
            return self.decay_operands.get(gate_kind.partition("_")[0], ())
        return tuple(name for name in self.gates if name.startswith("log_")) if gate_kind != "none" else ()

    def resets(self, gate_kind: str) -> bool:
        """Tell whether single steps of a kind of gate can be resets: log gates are operands, with a time."""
        return bool(self.log_gates(gate_kind)) and self.decay_operands is None and "const" not in gate_kind

    @property
    def has_state(self) -> bool:
        """Whether the recurrence takes an initial state and returns a final one; a convolution does not."""
        return "initial_state" in self.tensors

    @property
    def packs(self) -> bool:
        """Whether sequences can be packed into one batch element."""
        return PACKED in self.tensors

    @property
    def shares_heads(self) -> bool:
        """Whether there may be fewer key heads (G) than heads."""
        patterns = map(parse, self.operand_shapes.values())
        return any(axis.letter == "G" for each in patterns for axes in each.alternatives for axis in axes)

    def call_problem(self, call: Call) -> str | None:
        """Say why the words of a call mean nothing for this recurrence, or return None."""
        known = self.signature.parameters
        settable = [
            name for name, each in known.items() if each.default not in (None, inspect.Parameter.empty)
        ]
        switches = [name for name in settable if isinstance(known[name].default, bool)]
        tensors = [name for name in known if name not in settable and name != PACKED]
        for names, valid, kind in (
            (call.options, settable, "option"),
            (call.operands, (*self.optional, *switches), "optional operand"),
            (call.wanted or (), tensors, "operand with a gradient"),
            (call.dtypes, tensors, "operand"),
            (
                call.views,
                (*tensors, calls.DY, *((calls.DS,) if self.has_state else ())),
                "operand or gradient",
            ),
        ):
            for name in names:
                if name not in valid:
                    return f"{self.name} has no {kind} {name} (it has {', '.join(valid) or 'none'})"
        if calls.STATELESS in call.circumstances and not self.has_state:
            return f"{self.name} has no state, so that each call is {calls.STATELESS}"
        try:
            self.option_values(call)
        except ValueError as error:
            return str(error)
        return None

    def option_values(self, call: Call) -> dict[str, Any]:
        """Give the options of a call, with values of their defaults' types.

        Raises:
            ValueError: a value is none of that type.
        """
        found: dict[str, Any] = {}
        for name, text in call.options.items():
            kind = type(self.signature.parameters[name].default)
            try:
                found[name] = TRUTHS[text.lower()] if kind is bool else kind(text)
            except (KeyError, ValueError) as error:
                raise ValueError(
                    f"{self.name}: {name} must be of type {kind.__name__}, got {text}"
                ) from error
        switches = (name for name in call.operands if name not in self.optional)
        return {**found, **dict.fromkeys(switches, True)}

    @property
    def signature(self) -> inspect.Signature:
        return _signature(self.definition)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the parameters, in order."""
        return tuple(self.signature.parameters)


@functools.cache
def _signature(definition: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(definition)  # plans ask for it thousands of times


@dataclass(frozen=True, slots=True)
class Prepared:
    """A recurrence's operands in native form: another layout, gates not in logs, one dtype for all.

    operands: those of the native call, in order; their tensors are differentiable functions of the
        recurrence's operands.
    finish: the native call's result (a tensor or a tuple) -> (output, final_state), differentiable.
    """

    operands: tuple[Any, ...]
    finish: Callable[[Any], tuple[Any, Any]]


def compose(prepare: Callable[..., Prepared], native: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """Wrap a native call in its preparation: one function with the signature of `prepare`."""

    @functools.wraps(prepare)
    def function(*operands: Any, **options: Any) -> tuple[Any, Any]:
        prepared = prepare(*operands, **options)
        return prepared.finish(native(*prepared.operands))

    return function


@dataclass(frozen=True, eq=False, slots=True)
class Backend:
    """One implementation of a recurrence (or of one model), with its declarations.

    of: the recurrence (or model) that it computes.
    function: `f(*operands, **options) -> (output, final_state)`, differentiable.
    devices, dtypes, passes, layouts: those that it supports; any other is `unsupported`. The pass `decode` is
        a forward call of one token from an initial state. In the layout `time_last`, operands (B, T, ...)
        have their time axis innermost in memory.
    gates: gate kinds that it supports; None means all of the recurrence's.
    lengths: maps T to None, or to the reason why that length is refused.
    sizes: letter of a dimension -> the sizes that it may have, such as `{"K": range(8, 129, 8)}`.
    needs: packages that it imports. capability: least CUDA compute capability.
    kernels: substrings of the names of device kernels; each pass must launch at least one of them on a GPU.
    compiles_per_shape: whether a GPU's code is compiled anew for each shape of its operands, which takes
        seconds. Suites then call it at few sizes, unless it is named.
    deterministic: whether two calls give the same bits.
    causal: "bitwise", "tolerance" or "none": how exactly outputs stay the same when later inputs change.
    batches: "bitwise" or "tolerance": how exactly results of a batch item stay the same when others change.
    error_bound: for an approximate backend, (decay span, dtype) -> relative error bound.
    equivalent: False for a deliberately different function (a baseline). It is judged by its own literal
        `definition`; without one, its cases are `unsupported`.
    launches: shape -> device launches of a forward call, to predict cases that would take too long.
    serial_steps: (shape, gate kind) -> steps that the kernels of a forward call take one after another on a
        GPU, as torch's cumulative sums over a strided axis do, for the same prediction.
    workspace: (shape, itemsize, gate kind) -> bytes of a forward call beyond its operands and results.
    saved: (shape, itemsize, gate kind) -> bytes kept for the backward pass; None means about one and a half
        times the workspace.
    prepare: operands -> `Prepared`: native operands for a foreign package's kernel, and the way back.
    native: the foreign kernel alone, as it is timed; `function` is the same kernel with its preparation.
    loads: imports what the foreign kernel needs. For a built-in backend it is called before the first case,
        and what the imports leave behind in the process, such as environment variables, is no call's fault.
    """

    name: str
    of: str
    function: Callable[..., Any]
    devices: tuple[str, ...] = DEVICES
    dtypes: tuple[str, ...] = DTYPES
    passes: tuple[str, ...] = PASSES
    layouts: tuple[str, ...] = LAYOUTS
    gates: tuple[str, ...] | None = None
    lengths: Callable[[int], str | None] | None = None
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    capability: tuple[int, int] | None = None
    kernels: tuple[str, ...] = ()
    compiles_per_shape: bool = False
    deterministic: bool = True
    causal: str = "bitwise"
    batches: str = "bitwise"
    error_bound: Callable[[float, str], float] | None = None
    equivalent: bool = True
    definition: Callable[..., Any] | None = None
    launches: Callable[[Shape], float] | None = None
    serial_steps: Callable[[Shape, str], float] | None = None
    workspace: Callable[[Shape, int, str], float] | None = None
    saved: Callable[[Shape, int, str], float] | None = None
    prepare: Callable[..., Prepared] | None = None
    native: Callable[..., Any] | None = None
    loads: Callable[[], Any] | None = None
    description: str = ""

    def __post_init__(self) -> None:
        owner = f"backend {self.name!r}"
        object.__setattr__(self, "dtypes", dtype_names(self.dtypes))
        for name, valid in (
            ("devices", DEVICES),
            ("dtypes", DTYPES),
            ("passes", PASSES),
            ("layouts", LAYOUTS),
        ):
            check_names(owner, name, getattr(self, name), valid)
        for name in ("gates", "needs", "kernels"):
            check_names(owner, name, getattr(self, name) or ())
        check_sizes(owner, self.sizes)
        check_names(owner, "causal", (self.causal,), CAUSAL)
        check_names(owner, "batches", (self.batches,), BATCHES)
        given = [name for name in FUNCTIONS if getattr(self, name) is not None]
        for name in ("function", *given):
            if not callable(value := getattr(self, name)):
                raise UsageError(f"{owner}: {name} must be a function, got {value!r}")

    def own_definition(self) -> Callable[..., Any]:
        """Get the definition by which a backend that computes another function is judged.

        Raises:
            Unsupported: it declares none.
        """
        if self.definition is None:
            raise Unsupported(f"{self.name} computes another function, and declares no definition of it")
        return self.definition

    def missing(self, device: str) -> str | None:
        """Say why this backend cannot run on a device type of this machine, or return None."""
        for package in self.needs:
            if not installed(package):
                return f"needs the package {package}, which is not installed"
        if device in self.devices:
            return None
        if device == "cpu" and "triton" in self.needs:
            if os.environ.get("TRITON_INTERPRET") == "1":
                return None
            return "needs a CUDA device (TRITON_INTERPRET=1 runs it in Triton's interpreter)"
        return f"runs on {' and '.join(self.devices)} only"

    def refusal(
        self,
        *,
        device: str,
        dtype: str | None = None,
        pass_: str = "forward",
        gate_kind: str | None = None,
        length: int | None = None,
        shape: Mapping[str, int] | None = None,
        capability: tuple[int, int] | None = None,
        layout: str | None = None,
    ) -> str | None:
        """Say why this backend cannot run such a call, or return None if it can."""
        reason = self.missing(device)
        if reason:
            return reason
        if self.capability and capability and capability < self.capability:
            need, have = (".".join(map(str, pair)) for pair in (self.capability, capability))
            return f"needs compute capability {need}, this device has {have}"
        if dtype is not None and dtype not in self.dtypes:
            return f"no {dtype} (it takes {', '.join(self.dtypes)})"
        if pass_ not in self.passes:
            return f"no {pass_} pass"
        if layout is not None and layout not in self.layouts:
            return f"no {layout} layout (it takes {', '.join(self.layouts)})"
        if gate_kind is not None and self.gates is not None and gate_kind not in self.gates:
            return f"no {gate_kind} gates (it takes {', '.join(self.gates)})"
        if length is not None and self.lengths is not None and (problem := self.lengths(length)):
            return problem
        return next(filter(None, (size_problem(*each, shape or {}) for each in self.sizes.items())), None)


@dataclass(frozen=True, eq=False, slots=True)
class ModelEntry:
    """A registered model: its class (a `ssmperf.Model`), recurrence, paper and gate kind.

    dtypes: those that its data operands can have; complex operands have no half type.
    cost_gate: the gate kind by which its calls are forecast, where that is another one.
    """

    name: str
    cls: type
    recurrence: str
    paper: str
    gate: str
    presets: Mapping[str, tuple[Shape, ...]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = DTYPES
    cost_gate: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtypes", dtype_names(self.dtypes))
        check_names(f"model {self.name!r}", "dtypes", self.dtypes, DTYPES)


@dataclass(frozen=True, eq=False, slots=True)
class Family:
    """Models named `family:parameters`, such as lcsm:1-1-1-0.

    make: makes the entry for a full name. It raises UsageError where the parameters mean nothing.
    """

    name: str
    make: Callable[[str], ModelEntry]


def installed(package: str) -> bool:
    """Tell whether a package such as "triton" or "cuda.core" can be found, importing at most its parents."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # no parent package; a module without a spec
        return False


def check_methods(owner: str, cls: Any, names: Iterable[str]) -> None:
    """Raise UsageError where a registered class is no class, or has no such method."""
    if not isinstance(cls, type):
        raise UsageError(f"{owner}: must be a class, got {cls!r}")
    for name in names:
        if not callable(getattr(cls, name, None)):
            raise UsageError(f"{owner}: the class {cls.__name__} has no method {name}")


def check_names(owner: str, declaration: str, values: Any, valid: tuple[str, ...] | None = None) -> None:
    """Raise UsageError where a declaration is no tuple of names, or holds one that is not valid."""
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise UsageError(f"{owner}: {declaration} must be a tuple of names, got {values!r}")
    for value in values:
        if valid is not None and value not in valid:
            raise UsageError(f"{owner}: unknown {declaration} {value!r} (valid: {', '.join(valid)})")
