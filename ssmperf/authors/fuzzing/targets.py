"""Which backends are fuzzed: those that are named or all, as far as they can run here."""

from __future__ import annotations

from collections.abc import Sequence

from ssmperf.authors.fuzzing.configurations.space import Space, budget_of
from ssmperf.engine import registry
from ssmperf.engine.plan.selection import Device
from ssmperf.errors import UsageError


def spaces_of(
    owners: Sequence[str] | None, backends: Sequence[str] | None, device: Device
) -> tuple[list[Space], dict[str, str]]:
    """List the spaces of backends, and say of each other one that is named why it has none.

    owners: recurrences and models; None for all recurrences.
    backends: None for those of plug-ins if any is loaded, or else for all but peers.

    Raises:
        UsageError: none can run here.
    """
    found: list[Space] = []
    left_out: dict[str, str] = {}
    for owner in owners or tuple(registry.recurrences()):
        for name in _names(owner, backends):
            problem = _problem(owner, name, device)
            if problem:
                left_out[f"{owner}/{name}"] = problem
                continue
            backend = registry.backend(owner, name)
            space = Space(owner, backend, device.type, budget_of(backend, device.type))
            if space.gate_kinds and space.dtypes and space.passes:
                found.append(space)
            else:
                left_out[f"{owner}/{name}"] = "it takes none of the gates, dtypes or passes"
    if not found:
        why = "; ".join(f"{name} {problem}" for name, problem in left_out.items())
        if not why and registry.plugins():
            of = f" of {', '.join(owners)}" if owners else ""
            why = (
                f"{', '.join(registry.plugins())} registers none{of} (`ssmperf new` writes a file that does)"
            )
        raise UsageError(f"no backend can be fuzzed here{': ' if why else ''}{why}")
    return found, left_out


def _names(owner: str, backends: Sequence[str] | None) -> list[str]:
    known = registry.backend_names(owner)
    if backends is not None:
        return [name for name in known if name in backends]
    if registry.plugins():
        return [name for name in known if registry.plugins_of("backend", _label(owner, name))]
    return [name for name in known if not registry.is_peer(owner, name)]


def _label(owner: str, name: str) -> str:
    backend = registry.backend(owner, name)
    return f"{backend.of}/{backend.name}"


def _problem(owner: str, name: str, device: Device) -> str | None:
    if problem := registry.import_problem(owner, name):
        return problem
    backend = registry.backend(owner, name)
    if not backend.equivalent:
        return "computes another function than the recurrence"
    return backend.refusal(device=device.type, capability=device.capability)
