"""Everything that registers itself: declarations, the decorators that register them, and their look-up.

`from ssmperf import registry` imports the look-up; decorators and declared types are in `ssmperf` itself.
"""

from ssmperf.registry.discovery import (
    file_of,
    foreign,
    hidden_from_workers,
    load_plugin,
    loading,
    plugins,
    plugins_of,
)
from ssmperf.registry.lookup import (
    all_backend_names,
    analytics,
    backend,
    backend_names,
    backends,
    check_backend_names,
    claim,
    claims,
    identities,
    import_problem,
    model,
    models,
    recurrence,
    recurrence_of,
    recurrences,
    report,
    reports,
    shapes,
    suite,
    suites,
)
from ssmperf.registry.tables import state

__all__ = [
    "all_backend_names",
    "analytics",
    "backend",
    "backend_names",
    "backends",
    "check_backend_names",
    "claim",
    "claims",
    "file_of",
    "foreign",
    "hidden_from_workers",
    "identities",
    "import_problem",
    "load_plugin",
    "loading",
    "model",
    "models",
    "plugins",
    "plugins_of",
    "recurrence",
    "recurrence_of",
    "recurrences",
    "report",
    "reports",
    "shapes",
    "state",
    "suite",
    "suites",
]
