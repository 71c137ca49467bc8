"""Run the cases of a plan on an existing Ray cluster: one actor per GPU, or per node of a run on CPUs.

Ray places and watches the actors; the driver hands them groups of cases and writes the records as they come.
A case that kills its worker is a crash, as on one machine. The cases of a lost node run elsewhere, once.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ssmperf.engine.cases.case import Case
from ssmperf.engine.execute.cluster.lanes import Pool, RemoteLane, compile_beside
from ssmperf.engine.execute.cluster.node import Node, NodeFacts
from ssmperf.engine.execute.executor import LocalExecutor, run_lanes
from ssmperf.engine.execute.lane import Events
from ssmperf.engine.plan.parts import outlines
from ssmperf.engine.plan.parts.groups import groups_of, longest_first
from ssmperf.engine.plan.parts.household import Household, household
from ssmperf.engine.tune.ahead import worth
from ssmperf.errors import UsageError, WorkerFailed

START_S = 120.0  # that an actor may take to be placed and to import torch
REACH_S = 10.0  # that a connection may take
MOST_NAMED = 3  # nodes in a message
CPUS_BESIDE = 1  # of an actor with a GPU


@dataclass(frozen=True, slots=True)
class RayExecutor:
    """Executes cases on the devices of a cluster.

    local: how a device's lane runs; its devices are not used.
    type_: "cpu" or "cuda". address: of the cluster, as Ray's; None for the one that Ray finds.
    mixed: whether the devices may be of several types.
    """

    local: LocalExecutor
    type_: str
    address: str | None = None
    mixed: bool = False

    @contextlib.contextmanager
    def session(self) -> Iterator[RaySession]:
        """Connect, start an actor per device, and end all of them with the block.

        Raises:
            UsageError: Ray is not installed, there is no such cluster, none of its nodes has the device, or a
                node has other versions.
        """
        ray = connected(self.address)
        lanes: list[RemoteLane] = []
        try:
            places = _places(ray, self.type_)
            lanes += [self._lane(ray, place) for place in places]
            hosts = {lane.label: place.host for lane, place in zip(lanes, places, strict=True)}
            self._check(ray, lanes)
            yield RaySession(lanes, hosts, ray.get)
        finally:
            for lane in lanes:
                with contextlib.suppress(Exception):
                    if not lane.gone:
                        ray.get(lane.actor.close.remote(), timeout=START_S)
                    ray.kill(lane.actor)
            ray.shutdown()

    def _lane(self, ray: Any, place: _Place) -> RemoteLane:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        resources = (
            {"num_gpus": 1, "num_cpus": CPUS_BESIDE} if self.type_ == "cuda" else {"num_cpus": place.cpus}
        )
        where = NodeAffinitySchedulingStrategy(place.node, soft=False)
        device = "cuda:0" if self.type_ == "cuda" else "cpu"  # Ray hides the other GPUs of the node
        own = replace(self.local, devices=(device,), workers=1, spares=None)  # these are processes here
        sources = {path: Path(path).read_bytes() for path in self.local.plugins}
        kind = ray.remote(max_restarts=0, max_concurrency=2, scheduling_strategy=where, **resources)(Node)
        lost = (ray.exceptions.RayActorError, ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError)
        actor = kind.remote(own, sources, outlines.registered())
        return RemoteLane(actor, place.label, lost=lost, get=ray.get, kill=ray.kill)

    def _check(self, ray: Any, lanes: Sequence[RemoteLane]) -> None:
        """Wait for the actors, and compare their versions with the driver's.

        A node that has just died is still listed; its devices are left out.
        """
        here, names = NodeFacts.here(), {}
        problems: list[str] = []
        dead: list[str] = []
        for lane in lanes:
            try:
                facts = ray.get(lane.actor.facts.remote(), timeout=START_S)
            except ray.exceptions.GetTimeoutError:
                problems.append(f"{lane.label} is not free within {START_S:g} s")
            except ray.exceptions.RayError as error:
                why = f"{lane.label} cannot start: {str(error).strip().splitlines()[-1]}"
                died = isinstance(error, ray.exceptions.RayActorError) and not error.actor_init_failed
                lane.gone = died
                (dead if died else problems).append(why)
            else:
                names[lane.label] = facts.device
                problems += [f"{lane.label} has {each}" for each in facts.differences(here)]
        if problems or not names:
            raise UsageError(f"cluster: {_listed(problems or dead)}")
        if len(set(names.values())) > 1 and not self.mixed:
            listed = _listed([f"{label} is {name}" for label, name in names.items()])
            raise UsageError(f"cluster: devices of several types, pass --mixed-devices to use all: {listed}")


class RaySession:
    """Rounds of cases on the lanes of a cluster; as `Session`, without serving a source."""

    def __init__(self, lanes: Sequence[RemoteLane], hosts: Mapping[str, str], get: Any) -> None:
        self.lanes, self._hosts, self._get = lanes, hosts, get
        self._compiled = False

    def run(self, cases: Iterable[Case], events: Events, shuffle: random.Random | None = None) -> None:
        """Run all cases in fresh workers; return when every case has its record.

        Raises:
            WorkerFailed: a worker cannot be started, or all nodes were lost.
            KeyboardInterrupt: passed on after the actors were stopped.
        """
        every = list(cases)
        lanes = [lane for lane in self.lanes if not lane.gone]
        if not every:
            return
        if not self._compiled:
            self._compiled = True
            own = [case for case in worth(every) if household(case) == Household()]
            compile_beside(lanes, self._hosts, own, self._get)
        stop = threading.Event()
        groups = list(groups_of(every, shuffle))
        pool = Pool(longest_first(groups) if shuffle is None else groups, stop)
        run_lanes(lanes, partial(_start, pool=pool, events=events, stop=stop), stop)
        if pool.unfinished:
            raise WorkerFailed(f"all nodes were lost, with {pool.unfinished} cases left")

    @property
    def nodes(self) -> dict[str, Any]:
        """Describe the devices that have run something: their environments and what they can do at most."""
        found = {lane.label: lane.environment for lane in self.lanes}
        return {
            label: {"env_id": each[0], "ceilings": each[1].get("ceilings")}
            for label, each in found.items()
            if each is not None
        }

    def prepare(self) -> None:
        """Do nothing: workers start with the first group of a lane."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A device of the cluster. label: its name in records. cpus: of its node."""

    node: str
    host: str
    label: str
    cpus: float


def _start(lane: RemoteLane, *, pool: Pool, events: Events, stop: threading.Event) -> None:
    lane.finished.clear()
    threading.Thread(target=lane.guarded_run, args=(pool, events, stop), daemon=True).start()


def connected(address: str | None) -> Any:
    """Connect to a running cluster, and give the module `ray`.

    Raises:
        UsageError: Ray is not installed, or there is no such cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"--executor ray needs the package ray: {error}") from error
    try:
        _reach(address)
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises many kinds
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"no Ray cluster at {address or 'the default address'}: {line:.200}") from error
    return ray


def _reach(address: str | None) -> None:
    """Try to connect to an address such as HOST:PORT, at which Ray would try for minutes. Raises OSError."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()


def _places(ray: Any, type_: str) -> list[_Place]:
    """List the devices of a cluster's nodes.

    Raises:
        UsageError: no node has one.
    """
    found, listed = [], []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        resources = node["Resources"]
        gpus, cpus = int(resources.get("GPU", 0)), resources.get("CPU", 0.0)
        host = f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"
        listed.append(f"{host} has {cpus:g} CPUs, {gpus} GPUs")
        if type_ == "cuda":
            found += [_Place(node["NodeID"], host, f"{host}:{number}", cpus) for number in range(gpus)]
        elif cpus:
            found.append(_Place(node["NodeID"], host, host, cpus))
    if not found:
        raise UsageError(
            f"no node of the cluster has a {'GPU' if type_ == 'cuda' else 'CPU'}: {_listed(listed)}"
        )
    return found


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_NAMED
    return "; ".join(texts[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
