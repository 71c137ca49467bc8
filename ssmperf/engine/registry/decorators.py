"""The decorators by which everything registers itself, from recurrences and backends to claims of papers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ssmperf.engine.cases.calls.dtypes import DTYPES
from ssmperf.engine.cases.case import TRAINING_PASSES
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.registry import lookup, tables
from ssmperf.engine.registry.checks import Analytic, Claim, Identity
from ssmperf.engine.registry.cost import CostModel
from ssmperf.engine.registry.declarations import (
    DEVICES,
    Backend,
    Family,
    ModelEntry,
    OptionalSampler,
    Recurrence,
    Sampler,
    StateSampler,
    check_methods,
    compose,
)
from ssmperf.engine.registry.presets import shapes_of
from ssmperf.engine.registry.sections import Section
from ssmperf.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=type)


def recurrence(
    name: str,
    *,
    cost: CostModel,
    presets: Mapping[str, Sequence[Mapping[str, int]]],
    gates: tuple[str, ...] = (),
    gate_kind: Callable[[Mapping[str, Any]], str] = lambda operands: "none",
    gate_kinds: tuple[str, ...] = ("none",),
    sample: Sampler,
    state_shape: Callable[[Shape], tuple[int, ...]] | None = None,
    sample_state: StateSampler | None = None,
    decay_span: Callable[[Mapping[str, Any]], float] | None = None,
    linear: tuple[str, ...] = (),
    joint: tuple[str, ...] = (),
    grows: bool = False,
    longest: int | None = None,
    family: str = "",
    operand_shapes: Mapping[str, str] | None = None,
    decay_operands: Mapping[str, tuple[str, ...]] | None = None,
    stepwise: bool = False,
    optional: tuple[str, ...] = (),
    sample_optional: OptionalSampler | None = None,
    calls: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """Register the decorated literal loop as a recurrence.

    cost: `(shape, specs of the operands, pass) -> Cost`.
    presets: sizes of the shapes by preset name (`smoke`, `standard`, `long`). Sizes without a T stand for one
        shape per length of the preset.
    gates: names of the operands that are gates, which are cast to the case's gate dtype instead of its dtype.
    gate_kind: operands by name -> the kind of gate that they hold.
    gate_kinds: all kinds that `sample` can make, the simplest first.
    sample: `(shape, *, regime, generator, gate_kind=...) -> float32 operands by name`: random data whose
        gates follow a named regime (see `ssmperf.log_gates`).
    state_shape: shape -> the state's tensor shape; None if the definition takes no `initial_state`.
    sample_state: `(operands, generator) -> initial state`, if standard normals are not legal states; of a
        state that grows, `(operands, generator, *, rows)`.
    decay_span: operands -> the largest finite sum over time of a channel's log gates' magnitudes, if the
        gates are not given as `log_a`.
    linear: operands in which, taken together, output and final state are linear.
    joint: operands that are legal only together, as those of a gate 1 − Δ k². Values made of two draws take
        all of them, at each time step, from one of the two.
    grows: whether the state has a row (along its second axis) for every step before it, as a cache has. The
        final state then has T rows more than the initial one, and the initial state None has none.
    longest: the largest T of a preset, for a definition whose work grows faster than T: beyond it, cases are
        planned skips.
    family: the algebraic family, such as "F1 elementwise".
    operand_shapes: the shapes that operands may have, such as `{"b": "B T C", "log_a": "broadcast B T C"}`
        (see `ssmperf.engine.cases.pattern`). `ssmperf.compute` refuses others.
    decay_operands: kind of gate (up to its first underscore) -> operands that multiply its log gates, such as
        `{"exp": ("A",)}`, where log gates are no operands themselves. None: all gates named `log_...`.
    stepwise: whether a step is not affine and diagonal in the state, because it mixes elements, is nonlinear
        or appends to it. The float64 oracle then takes one step after another, and suites avoid very long
        sequences.
    optional: operands that a call may have beside those of `sample`, such as `("bonus",)`. They need a shape
        in `operand_shapes`.
    sample_optional: `(name, size, generator) -> float32 values` of one of them; standard normals if None.
    calls: words of calls that the signature promises (see `ssmperf.engine.cases.calls.call`), such as
        `("read=pre", "read=pre bonus")`. `correctness` and `verify` judge a backend on each.
    """

    def register(function: F) -> F:
        shapes = shapes_of(presets)
        entry = Recurrence(
            name,
            function,
            cost,
            shapes,
            gates,
            gate_kind,
            gate_kinds,
            sample,
            state_shape,
            sample_state,
            decay_span,
            linear,
            joint,
            grows,
            longest,
            family,
            operand_shapes or {},
            decay_operands,
            stepwise,
            optional,
            sample_optional,
            calls,
        )
        tables.add("recurrence", name, entry, function)
        return function

    return register


def backend(of: str, *, name: str, **declarations: Any) -> Callable[[F], F]:
    """Register the decorated function as a backend of a recurrence or of one model.

    Only `of` and `name` are required; `Backend` describes the declarations. The function itself is returned
    unchanged. With `prepare` it is the native call, which takes the operands that `prepare` returns.

    Raises:
        DuplicateName: `of` already has a backend of this name.
        UsageError: a declaration is unknown, its value is not valid, or the function takes other operands.
    """

    def register(function: F) -> F:
        declared = {"description": (inspect.getdoc(function) or "").partition("\n")[0], **declarations}
        whole: Callable[..., Any] = function
        if declared.get("prepare") is not None:
            whole, declared["native"] = compose(declared["prepare"], function), function
        try:
            entry = Backend(name, of, whole, **declared)
        except TypeError as error:
            valid = [n for n in Backend.__dataclass_fields__ if n not in ("name", "of", "function", "native")]
            raise UsageError(f"backend {name!r}: {error} (declarations: {', '.join(valid)})") from error
        lookup.add_backend(entry, function)
        return function

    return register


def model(
    name: str,
    *,
    recurrence: str,
    paper: str,
    gate: str,
    presets: Mapping[str, Sequence[Mapping[str, int]]] | None = None,
    dtypes: tuple[str, ...] = DTYPES,
    cost_gate: str | None = None,
) -> Callable[[T], T]:
    """Register the decorated `ssmperf.Model` class.

    gate: the gate kind of its operands. presets: shapes of its own, by preset.
    dtypes: those that its data operands can have (a model with complex operands has no half type).
    cost_gate: the gate kind by which a backend's declarations forecast memory and time, where that is another
        one: constant gates of each key channel take what key gates take.

    Raises:
        DuplicateName: the name is taken.
        UsageError: it is no such class, or the recurrence has no such kind of gate.
    """

    def register(cls: T) -> T:
        owner = f"model {name!r} (a subclass of ssmperf.Model)"
        check_methods(owner, cls, ("shape_problem", "operands", "readout", "definition"))
        shapes = shapes_of(presets or {})
        entry = ModelEntry(name, cls, recurrence, paper, gate, shapes, dtypes, cost_gate)
        lookup.add_model(entry)
        cls.name = name  # type: ignore[attr-defined]
        return cls

    return register


def family(name: str, *, members: Sequence[str]) -> Callable[[F], F]:
    """Register the decorated `make(full name) -> ModelEntry` as a family of models.

    members: full names of the models that are listed and run by default; any other is made when it is named.
        `make` raises UsageError for a name without meaning. Equal names give classes of equal behaviour.

    Raises:
        DuplicateName: the name is taken.
    """

    def register(make: F) -> F:
        entry = Family(name, make)
        tables.add("family", name, entry, make)
        for member in members:
            lookup.add_member(entry, member)
        return make

    return register


def analytic(of: str, *, name: str, source: str) -> Callable[[F], F]:
    """Register `f() -> (operands, output, final state or None)` as a closed-form case of a recurrence.

    All values are float64, on the CPU, and the same in every call. The file is `impls/<of>/analytic.py`.

    Raises:
        DuplicateName: the recurrence already has a closed form of this name.
    """

    def register(function: F) -> F:
        tables.add("analytic", name, Analytic(name, of, function, source), function, of=of)
        return function

    return register


def identity(name: str, *, of: str, subjects: Iterable[str], source: str) -> Callable[[F], F]:
    """Register `f(compute) -> [(label, left, right), ...]`, an identity for the backends of a recurrence.

    compute: `(recurrence, **operands) -> (output, final state)`, by the backend under test if `recurrence` is
        `of`, and by the definition otherwise. Values are float64, on the CPU, and the same in every call.

    Raises:
        DuplicateName: the name is taken.
    """

    def register(function: F) -> F:
        entry = Identity(name, of, tuple(subjects), function, source)
        tables.add("identity", name, entry, function)
        return function

    return register


def suite(
    name: str,
    *,
    section: Section,
    fresh_process: bool | Iterable[str] = False,
    levels: tuple[str, ...] = ("op",),
    passes: tuple[str, ...] = TRAINING_PASSES,
    sources: tuple[str, ...] = (),
    same_operands: bool = False,
    compiles_ahead: bool = False,
    continues: bool = False,
    shares_device: bool = False,
    case_s: Mapping[str, float] | None = None,
    case_calls: int = 16,
) -> Callable[[T], T]:
    """Register the decorated class (constructed without arguments) as a suite.

    fresh_process: whether each case runs in a process that has run no other case; or the types of devices on
        which it does.
    levels: levels that its cases can have: "op", a recurrence; "block", a model's whole layer.
    passes: passes that its cases can have; "decode" is one token from a given state.
    sources: its own sources of operands, beside the regimes. A case names one as SOURCE/NAME, such as
        task/mqar.
    same_operands: whether models whose operands have the same specs are measured once, if all models are.
    compiles_ahead: whether the kernels of all cases are compiled before the first one runs, as far as cases
        are calls on their values: in a GPU's run of many cases, that takes much less time.
    continues: whether these calls continue from an initial state, as far as a recurrence has one and a case
        names no other; if not, only those that decode do.
    shares_device: whether cases may run beside others on one GPU, since neither time nor memory is measured.
    case_s, case_calls: seconds that a case usually takes by device type beside its calls, and the number of
        these, to forecast how long a run takes.

    Raises:
        DuplicateName: the name is taken.
        UsageError: the class lacks a method.
    """

    def register(cls: T) -> T:
        check_methods(f"suite {name!r}", cls, ("cases", "measure"))
        chosen = (DEVICES if fresh_process else ()) if isinstance(fresh_process, bool) else fresh_process
        declared: dict[str, Any] = {"name": name, "section": section, "fresh_process": tuple(chosen)}
        declared |= {"levels": levels}
        declared |= {"passes": passes, "sources": sources}
        declared |= {"same_operands": same_operands, "compiles_ahead": compiles_ahead}
        declared |= {"continues": continues, "shares_device": shares_device}
        declared |= {"case_s": {"cpu": 0.2, "cuda": 0.5, **(case_s or {})}, "case_calls": case_calls}
        for attribute, value in declared.items():
            setattr(cls, attribute, value)
        tables.add("suite", name, cls(), cls)
        return cls

    return register


def task(name: str) -> Callable[[F], F]:
    """Register the decorated function, which makes a `ssmperf.Task`, as a task that networks can learn.

    Its keyword-only parameters are the task's options, which follow its name as in `mqar:vocabulary=64`. A
    task is asked for by its name as a source of operands: `--regime task/mqar`.

    Raises:
        DuplicateName: the name is taken.
    """

    def register(make: F) -> F:
        tables.add("task", name, make, make)
        return make

    return register


def report(name: str, *, of: str | None = None) -> Callable[[F], F]:
    """Register `f(runs, destination: Path | None) -> str | None` as a report format.

    The function returns text for the terminal, or writes `destination` and returns None. With
    of="comparison" it takes a comparison of two runs instead of a list of runs; with of="history", a history;
    with of="claims", a reproduction; with of="best", a question about the fastest backends.

    Raises:
        DuplicateName: the name is taken.
    """

    def register(function: F) -> F:
        tables.add("report", name, function, function, of=of)
        return function

    return register


def claim(
    name: str,
    *,
    paper: str,
    place: str,
    statement: str,
    printed: str,
    runs: str,
    scaled: str,
    rule: str,
    budget_s: float,
    device: str = "cpu",
    budget_of: str = "claim",
    has_smoke: bool = False,
    version: int = 1,
    changed: str = "",
    doubts: str = "",
) -> Callable[[T], T]:
    """Register the decorated class (constructed without arguments, see `Work`) as a claim of a paper.

    name: the paper and the claim, as `longhorn:parameters`.
    paper: title, year and arXiv number. place: section, table or figure.
    statement: the claim in a sentence. printed: its number or numbers, as the paper prints them.
    runs: the measurement. scaled: reductions from the paper, or another device.
    rule: the condition for agreement, in a sentence.
    device: "cpu" if two cores suffice; "cuda" if it needs a GPU.
    budget_s: how long it may take there. budget_of: "claim", or "piece" if each piece has this budget.
    has_smoke: whether `--preset smoke` makes it tiny. The verdict is then that nobody can tell.
    version: raised when a piece's measurement has changed, so that older results are withdrawn.
    changed: why they are, as the beginning of a sentence.
    doubts: who could disagree with the verdict, and why.

    Raises:
        DuplicateName: the name is taken.
        UsageError: the name has no colon, there is no such device, or the class lacks a method.
    """
    if device not in DEVICES:
        raise UsageError(f"claim {name!r}: unknown device {device!r} (valid: {', '.join(DEVICES)})")

    def register(cls: T) -> T:
        check_methods(f"claim {name!r}", cls, ("pieces", "measure", "conclude"))
        entry = Claim(
            name, paper, place, statement, printed, runs, scaled, rule, device, budget_s, budget_of,
            has_smoke, version, changed, doubts, cls(),
        )  # fmt: skip
        tables.add("claim", name, entry, cls)
        return cls

    return register
