"""Selection: the models, backends, sizes and axes of cases that a user asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ssmperf.engine import registry
from ssmperf.engine.cases.calls.call import NONE as PLAIN
from ssmperf.engine.cases.calls.call import Call, parse
from ssmperf.engine.cases.calls.packing import UNPACKED, lengths_of
from ssmperf.engine.cases.case import MODEL, chosen_axes, decay_of, split_source
from ssmperf.engine.plan.sizes import Sizes
from ssmperf.engine.registry.presets import ON_CPU, ON_GPU, PRESETS, Preset, preset
from ssmperf.engine.registry.regimes import REGIMES
from ssmperf.engine.registry.sections import Section
from ssmperf.errors import UnknownName, UsageError


@dataclass(frozen=True, slots=True)
class Device:
    """The device that a plan is for, described as far as possible without a CUDA context.

    workers: how many workers it has room for, in suites whose cases may share it.
    """

    type: str
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    workers: int = 1


CPU = Device("cpu")
# Lengths at which suites judge that rank nothing, where T is named: that T, their own, or both.
NAMED, OWN, BOTH = JUDGED_AT = ("named", "own", "both")


class WorkloadUse(NamedTuple):
    """The workload for whose layer a selection stands, and the phase.

    judged: whether suites take part that rank nothing.
    """

    workload: str
    phase: str
    judged: bool = True


@dataclass(frozen=True, slots=True)
class Selection:
    """Everything that determines the cases of a run, whatever the suite. None means the suite's default.

    models: names of models, or of recurrences to run bare, on operands of gate regimes.
    peers: whether a suite that leaves backends around other people's kernels to those who name them has them.
    sizes: sizes of dimensions, by letter.
    choices: the values that the user chose, by field of `Case`; a tuple for an axis that takes many values.
    judged_at: at which lengths suites judge that rank nothing, where T is named; see `handed_to`.
    use: the workload and phase for which this selection stands, if it does.
    parts: the selections of workloads. If there are any, they have the cases, and the other fields say what
        they have in common.

    Raises:
        UnknownName, UsageError: a name or value does not exist, or choices exclude each other.
    """

    device: Device = CPU
    models: tuple[str, ...] | None = None
    backends: tuple[str, ...] | None = None
    preset: str | None = None
    sizes: tuple[Sizes, ...] = ()
    choices: Mapping[str, Any] = field(default_factory=dict)
    peers: bool = False
    judged_at: str = NAMED
    use: WorkloadUse | None = None
    parts: tuple[Selection, ...] = ()

    @classmethod
    def of(
        cls,
        device: Device = CPU,
        *,
        models: tuple[str, ...] | None = None,
        backends: tuple[str, ...] | None = None,
        preset: str | None = None,
        sizes: tuple[Sizes, ...] = (),
        **choices: Any,
    ) -> Selection:
        """Make a selection from the plurals of axes: `dtypes=("float32",)`, `level="block"`."""
        return cls(device, models, backends, preset, sizes).choosing(**choices)

    def __post_init__(self) -> None:
        if self.preset is not None:
            preset(self.preset)
        if self.judged_at not in JUDGED_AT:
            raise UnknownName("answer to --judged-at", self.judged_at, JUDGED_AT)
        legal = {}
        for name, chosen in self.choices.items():
            declared = chosen_axes()[name]
            if declared.many:
                legal[name] = tuple(dict.fromkeys(map(declared.checked, chosen)))
            else:
                legal[name] = declared.checked(chosen)
        object.__setattr__(self, "choices", legal)
        for source in self.regimes or ():
            check_source(source)
        for name in self.models or ():
            registry.recurrence_of(name)
        if self.backends is not None:
            registry.check_backend_names(self.backends)
        self._check_together()

    def choosing(self, **choices: Any) -> Selection:
        """Return this selection with other choices, named by the plurals of axes; None removes a choice."""
        fields = {declared.plural or name: name for name, declared in chosen_axes().items()}
        unknown = [name for name in choices if name not in fields]
        if unknown:
            raise UnknownName("axis", unknown[0], fields)
        merged = {**self.choices, **{fields[name]: value for name, value in choices.items()}}
        return replace(self, choices={name: value for name, value in merged.items() if value is not None})

    def chosen(self, name: str) -> Any:
        """Return the user's choice for a field of `Case`, or None if there is none.

        It is a value, or a tuple of values for an axis that takes many.
        """
        return self.choices.get(name)

    def handed_to(self, section: Section) -> tuple[Selection, ...]:
        """Give the selections whose cases a suite makes for this one.

        A time is measured at the T that is named. Kernels break at others: lengths that no tile divides. So
        a comparison of versions does not hand T on to a suite that ranks nothing, unless T is its question.
        """
        if self.use is not None and section.judges and not self.use.judged:
            return ()
        if self.judged_at == NAMED or self.lengths is None or not section.judges:
            return (self,)
        own = replace(self, sizes=tuple(each for each in self.sizes if each.name != "T"))
        return (own,) if self.judged_at == OWN else (own, self)

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """The sizes of T that are named, if any are."""
        return next((each.sizes for each in self.sizes if each.name == "T"), None)

    @property
    def is_specific(self) -> bool:
        """Whether backends or sizes are named. A suite then leaves out nothing to save time."""
        return bool(self.names_sizes or self.backends)

    @property
    def names_sizes(self) -> bool:
        """Whether the user named sizes. Those of a workload do not count: it has cases for every backend."""
        return bool(self.sizes) and not self.parts and self.use is None

    @property
    def preset_name(self) -> str:
        return self.preset or (ON_CPU if self.device.type == "cpu" else ON_GPU)

    @property
    def scale(self) -> Preset:
        """The preset, which says how large cases are and how long they are measured."""
        return PRESETS[self.preset_name]

    @property
    def dtypes(self) -> tuple[str, ...] | None:
        return self.choices.get("dtype")

    @property
    def passes(self) -> tuple[str, ...] | None:
        return self.choices.get("pass_")

    @property
    def regimes(self) -> tuple[str, ...] | None:
        return self.choices.get("operand_source")

    @property
    def layouts(self) -> tuple[str, ...] | None:
        return self.choices.get("layout")

    @property
    def packing(self) -> tuple[int, ...] | None:
        """The lengths of packed sequences, if any are chosen."""
        return lengths_of(self.choices.get("packing", UNPACKED))

    @property
    def call(self) -> Call:
        """The words of the calls."""
        return parse(self.choices.get("call", PLAIN))

    @property
    def level(self) -> str:
        return str(self.choices.get("level", chosen_axes()["level"].default))

    def _check_together(self) -> None:
        """Refuse choices that exclude each other."""
        self._check_packing()
        if self.passes == ("decode",) and self.lengths not in (None, (1,)):
            raise UsageError("the pass decode takes one token, so its T is 1: leave out the axis T")
        if self.level != "block":
            return
        bare = [name for name in self.models or () if name in registry.recurrences()]
        if bare:
            raise UsageError(f"--level block is for models, but {', '.join(bare)} is a recurrence")
        if self.regimes is not None:
            raise UsageError("--level block takes no regime: the block makes the operands")
        if self.chosen("gate_dtype") not in (None, ("float32",)):
            raise UsageError("--level block takes no gate dtype: the model chooses it")

    def _check_packing(self) -> None:
        """Refuse sizes that a packing excludes: it has one batch element, of all its sequences."""
        if self.packing is None:
            return
        for each in self.sizes:
            only = {"B": 1, "T": sum(self.packing)}.get(each.name)
            if only is not None and each.sizes != (only,):
                text = f"packing {self.chosen('packing')} has {each.name} = {only}"
                raise UsageError(f"{text}: leave out the axis {each.name}")


def check_source(source: str) -> None:
    """Raise UnknownName for a source of operands that is no regime and that nothing declares."""
    others = other_sources()
    if source != MODEL and split_source(source)[0] not in (*REGIMES, *others):
        raise UnknownName("regime", source, [MODEL, *REGIMES, *(f"{other}/NAME" for other in others)])


def other_sources() -> tuple[str, ...]:
    """List the sources of operands beside models and regimes: closed forms, identities, suites' own."""
    of_suites = (source for suite in registry.suites().values() for source in suite.sources)
    return ("analytic", "identity", *dict.fromkeys(of_suites))


def is_own(source: str) -> bool:
    """Tell whether a source is a model's own operands, as they are or with another decay."""
    return source == MODEL or decay_of(source) is not None


def is_regime(source: str) -> bool:
    """Tell whether a source of operands is a gate regime, with or without a gate kind."""
    return split_source(source)[0] in REGIMES
