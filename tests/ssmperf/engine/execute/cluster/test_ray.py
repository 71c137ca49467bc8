"""A Ray cluster of two local nodes: a run on it is the local one, and what is missing is said in a line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes import quick_processes

import ssmperf
from ssmperf import UsageError
from ssmperf.engine.execute.cluster.executor import RayExecutor
from ssmperf.engine.execute.cluster.lanes import RemoteLane
from ssmperf.engine.execute.cluster.node import NodeFacts
from ssmperf.engine.execute.executor import LocalExecutor
from ssmperf.engine.registry.presets import PRESETS
from ssmperf.suitekit import registry

ray = pytest.importorskip("ray", reason="Ray is not installed")
PLUGIN = """
import ssmperf

@ssmperf.backend("scan", name="travelling")
def travelling(log_a, b, initial_state=None):
    return ssmperf.compute("scan", "sequential", log_a, b, initial_state)
"""
ASKED: dict[str, Any] = {
    "models": "mingru",
    "backends": "sequential,blelloch,travelling",
    "pass_": "forward",
    "axis": ["T=8,16"],
    "time": 0.01,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Start a cluster of two nodes with a CPU each, and end it."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()


def test_a_run_on_two_nodes_equals_the_local_one(
    address: str, own_registrations: None, tmp_path: Path
) -> None:
    plugin, out = tmp_path / "plugin.py", tmp_path / "remote"
    plugin.write_text(PLUGIN)
    words = ["--executor", "ray", "--address", address, "--plugin", plugin, "--out", out, "--axis", "T=8,16"]
    words += [f"--{name.strip('_')}={value}" for name, value in ASKED.items() if name != "axis"]
    done = quick_processes.command("run", "--suite", "throughput", *words)
    assert done.returncode == 0, done.stderr
    remote = ssmperf.load(out)
    registry.load_plugin(plugin)
    local = ssmperf.run("throughput", out=tmp_path / "local", **ASKED)
    runs = [{record.case.id: record for record in run.records} for run in (local, remote)]
    assert runs[0].keys() == runs[1].keys() and len(runs[0]) == len(remote.records) == 6
    for id_, record in runs[1].items():
        assert (record.status, record.reason) == (runs[0][id_].status, runs[0][id_].reason)
        assert record.numbers.keys() - {"node"} == runs[0][id_].numbers.keys()
        assert record.env_id in remote.environments and record.numbers["node"] in remote.meta["nodes"]
    assert {record.case.backend for record in remote.records} == {"sequential", "blelloch", "travelling"}


def checked(*facts: NodeFacts, mixed: bool = False) -> None:
    """Check lanes whose nodes say this of themselves."""
    said = SimpleNamespace(get=lambda found, timeout: found, exceptions=ray.exceptions)
    nodes = [SimpleNamespace(facts=SimpleNamespace(remote=lambda each=each: each)) for each in facts]
    lanes = [
        RemoteLane(each, f"n{number}", lost=(), get=None, kill=None) for number, each in enumerate(nodes)
    ]
    RayExecutor(LocalExecutor((), Path(), PRESETS["smoke"]), "cpu", mixed=mixed)._check(said, lanes)


def test_nodes_that_differ_are_refused() -> None:
    here = NodeFacts.here("cpu")
    checked(here, here)
    with pytest.raises(UsageError, match=r"cluster: n1 has torch 1\.0, not 2"):
        checked(here, replace(here, versions={**here.versions, "torch": "1.0"}))
    with pytest.raises(UsageError, match=r"n0 has other sources of ssmperf"):
        checked(replace(here, code="0" * 16))
    other = replace(here, device="another CPU")
    with pytest.raises(UsageError, match=r"pass --mixed-devices to use all: n0 is .*; n1 is another CPU"):
        checked(here, other)
    checked(here, other, mixed=True)


def test_a_cluster_without_the_device_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"no node of the cluster has a GPU: .* 1 CPUs, 0 GPUs"):
        ssmperf.run("throughput", executor="ray", address=address, device="cuda", models="mingru")


def test_no_cluster_and_no_ray_are_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"no Ray cluster at 127\.0\.0\.1:1") as found:
        ssmperf.run("throughput", executor="ray", address="127.0.0.1:1", device="cpu", models="mingru")
    assert "\n" not in str(found.value)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="--executor ray needs the package ray"):
        ssmperf.run("throughput", executor="ray", device="cpu", models="mingru")
    with pytest.raises(ssmperf.UnknownName, match="local, ray"):
        ssmperf.run("throughput", executor="slurm", device="cpu", models="mingru")
