"""What `best` is asked about, on the command line and in Python, and its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ssmperf.engine import registry
from ssmperf.engine.cases.case import PASSES, axes
from ssmperf.engine.plan.run_options import AxisSizes, Names, names, size_texts
from ssmperf.engine.plan.sizes import Sizes, parse_sizes
from ssmperf.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from ssmperf.engine.runs.store import Run

TRAINING = "training"  # forward and backward together
PASS_NAMES = {name: name for name in (TRAINING, *PASSES)} | {"train": TRAINING, "prefill": "forward"}


@dataclass(frozen=True, slots=True)
class BestQuestion:
    """A question about the fastest backends of some runs. None and an empty tuple mean all.

    passes: those of a case, or `training`. workloads: names of layers in use, as NAME[:PHASE].
    """

    runs: tuple[Run, ...]
    models: tuple[str, ...] | None = None
    sizes: tuple[Sizes, ...] = ()
    dtypes: tuple[str, ...] | None = None
    passes: tuple[str, ...] | None = None
    workloads: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        runs: Sequence[Run],
        *,
        models: Names | None = None,
        axis: AxisSizes | None = (),
        dtype: Names | None = None,
        pass_: Names | None = None,
        workload: Names | None = None,
        **sizes: Any,
    ) -> BestQuestion:
        """Read a question. sizes: those of dimensions by their letters, such as T=4096.

        Raises:
            UsageError: a name is unknown, or a workload is named together with what it decides itself.
        """
        texts = [*size_texts("--axis", axis or ()), *size_texts("--axis", sizes)]
        dtypes, passes = names(dtype), names(pass_)
        for name in passes or ():
            if name not in PASS_NAMES:
                raise UnknownName("pass", name, PASS_NAMES)
        question = cls(
            tuple(runs),
            names(models),
            parse_sizes(texts),
            dtypes and tuple(map(axes()["dtype"].checked, dtypes)),
            passes and tuple(dict.fromkeys(PASS_NAMES[name] for name in passes)),
            names(workload),
        )
        if question.workloads is not None and question.narrow:
            raise UsageError(
                "a workload has its model, sizes and passes: leave out --models, --axis, --dtype and --pass"
            )
        return question

    @property
    def narrow(self) -> bool:
        """Whether models, sizes, dtypes or passes are named."""
        return any((self.models, self.sizes, self.dtypes, self.passes))


class Best(list[dict[str, Any]]):
    """The answer to a question, as the objects that `ssmperf best --json` prints. Its text is sentences.

    Objects with `memory_of` come last: what a call of a backend needs, measured or forecast.
    """

    def __init__(self, question: BestQuestion) -> None:
        super().__init__(json.loads(registry.report("json", "best")(question, None)))
        self._question = question

    def __repr__(self) -> str:
        return str(registry.report("table", "best")(self._question, None))

    def _repr_html_(self) -> str:
        """Give the answer as HTML, for a notebook."""
        return str(registry.report("cell", "best")(self._question, None))
