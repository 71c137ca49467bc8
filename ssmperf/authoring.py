"""Names of the core for authors of backends, models, recurrences and tasks."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssmperf.engine import registry as registry
    from ssmperf.engine.cases.case import TRAINING_PASSES as TRAINING_PASSES
    from ssmperf.engine.cases.shape import Shape as Shape
    from ssmperf.engine.execute.tuning import tuned as tuned
    from ssmperf.engine.layers.block import BackendLike as BackendLike
    from ssmperf.engine.layers.block import Block as Block
    from ssmperf.engine.layers.block import State as State
    from ssmperf.engine.layers.block import build_block as build_block
    from ssmperf.engine.layers.block import carry as carry
    from ssmperf.engine.layers.model import Model as Model
    from ssmperf.engine.layers.model import gate_precision as gate_precision
    from ssmperf.engine.layers.network import Network as Network
    from ssmperf.engine.layers.task import IGNORED as IGNORED
    from ssmperf.engine.layers.task import Draw as Draw
    from ssmperf.engine.layers.task import Examples as Examples
    from ssmperf.engine.layers.task import Task as Task
    from ssmperf.engine.operands.corpus import repeated_share as repeated_share
    from ssmperf.engine.operands.corpus import split_text as split_text
    from ssmperf.engine.operands.samplers import log_gates as log_gates
    from ssmperf.engine.operands.samplers import phases as phases
    from ssmperf.engine.operands.time_axis import steps as steps
    from ssmperf.engine.registry.checks import Analytic as Analytic
    from ssmperf.engine.registry.checks import Comparison as Comparison
    from ssmperf.engine.registry.checks import Compute as Compute
    from ssmperf.engine.registry.checks import Identity as Identity
    from ssmperf.engine.registry.cost import Cost as Cost
    from ssmperf.engine.registry.cost import Spec as Spec
    from ssmperf.engine.registry.cost import least_count as least_count
    from ssmperf.engine.registry.declarations import Backend as Backend
    from ssmperf.engine.registry.declarations import ModelEntry as ModelEntry
    from ssmperf.engine.registry.declarations import Prepared as Prepared
    from ssmperf.engine.registry.declarations import Recurrence as Recurrence
    from ssmperf.engine.registry.decorators import analytic as analytic
    from ssmperf.engine.registry.decorators import backend as backend
    from ssmperf.engine.registry.decorators import family as family
    from ssmperf.engine.registry.decorators import identity as identity
    from ssmperf.engine.registry.decorators import model as model
    from ssmperf.engine.registry.decorators import recurrence as recurrence
    from ssmperf.engine.registry.decorators import task as task
    from ssmperf.engine.tune.tables import Place as Place
    from ssmperf.engine.tune.tables import Table as Table
    from ssmperf.engine.tune.tables import consulting as consulting
    from ssmperf.engine.tune.tables import in_force as in_force
    from ssmperf.engine.tune.tables import note_again as note_again
    from ssmperf.errors import Unsupported as Unsupported
    from ssmperf.errors import UnsupportedValues as UnsupportedValues
    from ssmperf.errors import UsageError as UsageError
else:
    from ssmperf._lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
