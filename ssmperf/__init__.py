"""ssmperf: benchmark and profile the linear recurrences inside sequence models.

The names listed here are a user's. `ssmperf.authoring` has what backends, models and tasks need, and
`ssmperf.suitekit` what suites, reports and claims need. All their names can be imported from here, too.
Importing any of the three imports no torch, compiles nothing and starts no CUDA context.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssmperf.authoring import *  # noqa: F403
    from ssmperf.authors.direct import compute as compute
    from ssmperf.authors.fuzzing.call import fuzz as fuzz
    from ssmperf.authors.fuzzing.result import FuzzResult as FuzzResult
    from ssmperf.authors.verification.report import Verification as Verification
    from ssmperf.authors.verification.verify import verify as verify
    from ssmperf.comparison.outcome import Pair as Pair
    from ssmperf.comparison.outcome import RunComparison as RunComparison
    from ssmperf.comparison.trends.history import CaseHistory as CaseHistory
    from ssmperf.comparison.trends.history import History as History
    from ssmperf.comparison.trends.history import Step as Step
    from ssmperf.comparison.versions.search.bisected import Bisected as Bisected
    from ssmperf.engine.cases.case import PASSES as PASSES
    from ssmperf.engine.cases.case import Case as Case
    from ssmperf.engine.cases.record import Record as Record
    from ssmperf.engine.cases.record import Status as Status
    from ssmperf.engine.cases.shape import Shape as Shape
    from ssmperf.engine.plan.selection import Selection as Selection
    from ssmperf.engine.registry.declarations import Backend as Backend
    from ssmperf.engine.registry.declarations import ModelEntry as ModelEntry
    from ssmperf.engine.registry.regimes import REGIMES as REGIMES
    from ssmperf.engine.runs.store import Run as Run
    from ssmperf.errors import BrokenContract as BrokenContract
    from ssmperf.errors import DuplicateName as DuplicateName
    from ssmperf.errors import ExitCode as ExitCode
    from ssmperf.errors import PluginError as PluginError
    from ssmperf.errors import SsmperfError as SsmperfError
    from ssmperf.errors import UnknownName as UnknownName
    from ssmperf.errors import UnreadableRun as UnreadableRun
    from ssmperf.errors import Unsupported as Unsupported
    from ssmperf.errors import UnsupportedValues as UnsupportedValues
    from ssmperf.errors import UsageError as UsageError
    from ssmperf.errors import WorkerFailed as WorkerFailed
    from ssmperf.papers.reproduction.reproduce import ClaimResult as ClaimResult
    from ssmperf.papers.reproduction.reproduce import Reproduction as Reproduction
    from ssmperf.papers.reproduction.reproduce import load_reproduction as load_reproduction
    from ssmperf.papers.reproduction.reproduce import reproduce as reproduce
    from ssmperf.shell.api import ab as ab
    from ssmperf.shell.api import backends as backends
    from ssmperf.shell.api import best as best
    from ssmperf.shell.api import bisect as bisect
    from ssmperf.shell.api import check as check
    from ssmperf.shell.api import compare as compare
    from ssmperf.shell.api import history as history
    from ssmperf.shell.api import load as load
    from ssmperf.shell.api import models as models
    from ssmperf.shell.api import run as run
    from ssmperf.suitekit import *  # noqa: F403
else:
    from ssmperf._lazy import lazy_names
    from ssmperf.engine import registry as registry  # a checkout then finds its own impls, suites and reports

    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
