"""Origin: when a record was measured, of which code, and on which hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from ssmperf.engine.cases.record import Record

PLUGIN = "plugin"  # in a record's numbers: the plug-in file that defines its backend


class Source(Protocol):
    """The part of a run that says where its records come from."""

    @property
    def meta(self) -> Mapping[str, Any]: ...
    @property
    def environments(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Origin:
    """Date of a record's measurement and version of its code. Unknown fields are None.

    date: when the run was started, in ISO 8601. tag: the run's name.
    commit: of the checkout of ssmperf. dirty: whether the checkout had changes beyond it.
    plugin: the plug-in file that defines the record's backend, by its path in its repository, else by name.
    plugin_sha256: the first digits of its content's hash.
    plugin_commit: of its checkout. plugin_dirty: whether tracked files there had changes beyond it.
    """

    date: str | None = None
    tag: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    plugin: str | None = None
    plugin_sha256: str | None = None
    plugin_commit: str | None = None
    plugin_dirty: bool | None = None

    @classmethod
    def of(cls, run: Source, record: Record) -> Origin:
        """Read the origin of a record of the run."""
        environments = run.environments
        env_id = record.env_id
        if env_id is None and len(environments) == 1:
            env_id = next(iter(environments))  # the plan refused the case, so it never ran
        git = _object(_object(environments.get(env_id or "")).get("git"))
        plugin = _object(record.numbers.get(PLUGIN))
        return cls(
            date=_text(run.meta.get("created")),
            tag=_text(run.meta.get("tag")),
            commit=_text(git.get("commit")),
            dirty=_flag(git.get("dirty")),
            plugin=_text(plugin.get("file")),
            plugin_sha256=_text(plugin.get("sha256")),
            plugin_commit=_text(plugin.get("commit")),
            plugin_dirty=_flag(plugin.get("dirty")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return one flat object, with None for unknown fields."""
        return asdict(self)


def moment(text: Any) -> datetime | None:
    """Read the date of a run; None if it has none, or a damaged one. A date without a zone is of UTC."""
    try:
        date = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return date if date is None or date.tzinfo else date.replace(tzinfo=UTC)


def hardware(run: Source) -> list[str]:
    """Name the GPU of each environment of a run, or its CPU if it has none. It is data from outside."""
    environments = [each for each in run.environments.values() if isinstance(each, Mapping)]
    return list(dict.fromkeys(filter(None, map(_hardware, environments))))


def _hardware(environment: Mapping[str, Any]) -> str | None:
    found = environment.get("hardware")
    if not isinstance(found, Mapping):
        return None
    gpu, cpu = found.get("gpu"), found.get("cpu")
    if isinstance(gpu, Mapping):
        return str(gpu.get("name") or "") or None
    if not isinstance(cpu, Mapping):
        return None
    name, cores = cpu.get("model") or cpu.get("architecture"), cpu.get("cores")
    return f"{name}{'' if cores is None else f', {cores} cores'}" if name else None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None
