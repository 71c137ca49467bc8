"""A device of a cluster: an actor on its node, with the lane of the device, its worker and its judge."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.execute.executor import LocalExecutor
from ssmperf.engine.execute.lane import Events
from ssmperf.engine.machine import devices, environment
from ssmperf.engine.plan.parts import outlines

PATIENCE_S = 0.5  # between two looks at whether the lane has failed
PACKAGE = Path(__file__).parents[3]
CODE = (PACKAGE, *(PACKAGE.parent / room for room in ("impls", "suites")))

Item = tuple[str, str, Any]  # the attempt, the kind of event and its arguments


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node is. It must have the driver's versions.

    code: a fingerprint of the sources of ssmperf. device: the name of its GPU, or of its CPU.
    """

    versions: Mapping[str, str | None]
    code: str
    device: str = ""

    @classmethod
    def here(cls, device: str = "") -> NodeFacts:
        """Describe this process and one of its devices."""
        versions = environment.versions()
        name = devices.name_of(device) or environment.cpu()["model"] if device else ""
        return cls({name: versions.get(name) for name in ("ssmperf", "torch")}, code(), str(name or ""))

    def differences(self, driver: NodeFacts) -> list[str]:
        """Say in which versions a node differs from the driver."""
        found = [
            f"{name} {self.versions[name]}, not {version}"
            for name, version in driver.versions.items()
            if self.versions.get(name) != version
        ]
        return found or ([] if self.code == driver.code else ["other sources of ssmperf"])


def code() -> str:
    """Fingerprint the sources of ssmperf and its rooms, wherever they are installed."""
    found = hashlib.sha256()
    for folder in CODE:
        root = (
            folder if folder.is_dir() else PACKAGE / folder.name
        )  # an installed package has its rooms inside
        for file in sorted(root.rglob("*.py")):
            name = f"{root.name}/{file.relative_to(root).as_posix()}"
            found.update(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:16]


class SentGroups:
    """Hands one lane the groups that the driver sends, until there is an empty one."""

    def __init__(self) -> None:
        self._groups: queue.SimpleQueue[Sequence[Case]] = queue.SimpleQueue()

    def put(self, group: Sequence[Case]) -> None:
        self._groups.put(group)

    def take(self, last: Sequence[Case] = ()) -> Sequence[Case]:
        return self._groups.get()


class Node:
    """Runs groups of cases on one device, and streams what happens.

    executor: the run's, with the device. sources: the run's plug-ins, by the path of each on the driver.
    outlined: their outlines; without any, this process loads them.
    """

    def __init__(
        self,
        executor: LocalExecutor,
        sources: Mapping[str, bytes],
        outlined: Mapping[str, Any] | None = None,
    ) -> None:
        self._stack = contextlib.ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ssmperf-node-")))
        files: dict[str, str] = {}
        for number, (path, content) in enumerate(sources.items()):
            file = folder / f"{number}" / Path(path).name
            file.parent.mkdir()
            file.write_bytes(content)
            if not outlined:
                registry.load_plugin(file)
            files[path] = str(file)
        if outlined:
            outlines.register(outlined, files)
        own = replace(executor, log_dir=folder / "logs", unfinished=None, plugins=tuple(files.values()))
        self._session = self._stack.enter_context(own.session())
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._round: contextlib.ExitStack | None = None

    def facts(self) -> NodeFacts:
        return NodeFacts.here(self._session.lanes[0].state.device)

    def compile(self, cases: Sequence[Case]) -> Mapping[str, float]:
        """Compile the kernels of cases beside each other; return the seconds of their first calls by id."""
        self._session.compile(cases, self._handed_on)
        found: Mapping[str, float] = self._session.lanes[0].first_calls_s
        return found

    def compiled(self, first_calls_s: Mapping[str, float]) -> None:
        """Note what another actor of the node has compiled."""
        self._session.lanes[0].first_calls_s = first_calls_s

    def run(self, attempt: str, group: Sequence[Case]) -> Iterator[Item]:
        """Run a group, and yield its events as they come.

        attempt: marks them, since an actor that was given up may still answer.
        """
        if self._round is None:
            self._source = SentGroups()
            self._round = contextlib.ExitStack()
            self._serving = self._round.enter_context(self._session.serving(self._source, self._handed_on))
        self._source.put(group)
        left = {case.id for case in group}
        while left:
            try:
                kind, given = self._events.get(timeout=PATIENCE_S)
            except queue.Empty:
                self._serving.check()
                continue
            if kind == "record":
                left.discard(given[0].case.id)
            yield attempt, kind, given

    def end_round(self) -> None:
        """End the workers of a round; the next one gets fresh ones."""
        if self._round is not None:
            self._source.put(())
            self._serving.join()
            self._round.close()
            self._round = None

    def close(self) -> None:
        """End all processes of the device."""
        self.end_round()
        self._stack.close()

    @property
    def _handed_on(self) -> Events:
        def hand_on(kind: str) -> Any:
            return lambda *given: self._events.put((kind, given))

        return Events(*map(hand_on, ("environment", "start", "record", "progress")))
