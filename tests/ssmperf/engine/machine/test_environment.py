"""The environment is plain data without secrets, starts no CUDA, and its id hashes what matters."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ssmperf.engine.machine import calibration, environment
from ssmperf.engine.machine.calibration import Calibration
from ssmperf.engine.machine.spread import Spread


@pytest.fixture(scope="module")
def captured() -> dict[str, Any]:
    return environment.capture("cpu")


def test_it_is_plain_json_and_complete(captured: dict[str, Any]) -> None:
    assert json.loads(json.dumps(captured, allow_nan=False)) == captured
    # the metadata of PyPI's wheel, which is read, leaves out the build: 2.13.0 for 2.13.0+cu130
    assert torch.__version__.startswith(captured["versions"]["torch"])
    assert captured["versions"]["python"] == sys.version.split()[0]
    assert captured["hardware"]["cpu"]["cores"] >= 1 and captured["hardware"]["gpu"] is None
    assert captured["torch"]["threads"] == torch.get_num_threads()
    assert captured["ceilings"] is None


def test_the_calibration_of_the_device_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSMPERF_CALIBRATION", str(tmp_path))
    without = environment.capture("cpu")
    assert without["calibration"] is None and "ssmperf calibrate" in without["calibration_reason"]
    device = calibration.device_name(without)
    known = Calibration(device, "2026-01-01", {"1-10ms": Spread(0.02, 0.05, 9.0, 3, 10)})
    path = calibration.path_for(device)
    path.write_text(json.dumps(known.to_json()))
    found = environment.capture("cpu")
    assert Calibration.from_json(found["calibration"]) == known and found["calibration_reason"] is None
    assert environment.env_id(found) == environment.env_id(without)
    path.write_text("{damaged")
    damaged = environment.capture("cpu")
    assert damaged["calibration"] is None and str(path) in damaged["calibration_reason"]


def test_secrets_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "s3cret")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = environment.capture("cpu")
    assert "s3cret" not in json.dumps(found)
    assert found["variables"]["TRITON_INTERPRET"] == "1"


def test_a_cpu_run_starts_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("CUDA was touched")

    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    assert environment.capture("cpu")["hardware"]["gpu"] is None


def test_peers_have_a_version_only_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So installing the suite's own packages alone gives the same environment as before there were peers."""
    real = importlib.metadata.version

    def version(package: str) -> str:
        if package in environment.PEERS and package != "fla-core":
            raise importlib.metadata.PackageNotFoundError(package)
        return "0.6.0" if package == "fla-core" else real(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = environment.versions()
    assert found["fla-core"] == "0.6.0"
    assert {*environment.PEERS} & {*found} == {"fla-core"}


def test_versions_need_no_torch() -> None:
    code = (
        "import sys; from ssmperf.engine.machine import environment as e; e.versions(); e.cpu(); e.driver(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd="/").returncode == 0


def changed(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    other = copy.deepcopy(base)
    *parents, last = path.split(".")
    inner = other
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    return other


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("device", "cuda:0"),
        ("hardware.cpu.model", "another"),
        ("hardware.gpu", {"name": "another"}),
        ("driver", "1.2.3"),
        ("versions.torch", "9.9"),
        ("versions.triton", None),
        ("torch.threads", 999),
        ("cpu_limit", 0.5),
        ("variables", {"TRITON_INTERPRET": "1"}),
    ],
)
def test_the_id_depends_on_what_matters(captured: dict[str, Any], path: str, value: Any) -> None:
    assert environment.env_id(changed(captured, path, value)) != environment.env_id(captured)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("load_average", [9.0, 9.0, 9.0]),
        ("git", {"commit": "0", "dirty": True, "reason": None}),
        ("ceilings", {"copy_bytes_per_s": 1.0}),
        ("calibration", {"kinds": {}}),
        ("calibration_reason", "another"),
        ("versions.ssmperf", "9.9"),
        ("hardware.cpu.memory_bytes", 1),
    ],
)
def test_the_id_ignores_the_rest(captured: dict[str, Any], path: str, value: Any) -> None:
    assert environment.env_id(changed(captured, path, value)) == environment.env_id(captured)


def test_two_gpus_of_one_host_are_comparable(captured: dict[str, Any]) -> None:
    first, second = (
        changed(changed(captured, "device", f"cuda:{i}"), "hardware.gpu", {"name": "X", "uuid": f"GPU-{i}"})
        for i in range(2)
    )
    assert environment.env_id(first) == environment.env_id(second)


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_state_of_a_checkout(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert environment.git_state(package)["reason"] == "not run from a git checkout"
    git(tmp_path, "init", "-q")
    assert environment.git_state(package)["commit"] is None  # the repository around it does not track it
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    state = environment.git_state(package)
    assert len(state["commit"]) == 40 and state["dirty"] is False and state["reason"] is None
    (package / "__init__.py").write_text("changed = 1\n")
    assert environment.git_state(package)["dirty"] is True


@pytest.mark.parametrize(("text", "cores"), [("max 100000", None), ("150000 100000", 1.5)])
def test_cpu_limit_of_a_container(tmp_path: Path, text: str, cores: float | None) -> None:
    (tmp_path / "cpu.max").write_text(f"{text}\n")
    assert environment.cpu_limit(tmp_path) == cores


def test_cpu_limit_of_an_older_container(tmp_path: Path) -> None:
    assert environment.cpu_limit(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("200000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert environment.cpu_limit(tmp_path) == 2.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_described() -> None:
    found = environment.capture("cuda:0")
    assert json.loads(json.dumps(found)) == found
    assert found["hardware"]["gpu"]["multiprocessors"] > 0 and found["driver"]


def test_a_place_is_one_whatever_peers_are_installed_besides(captured: dict[str, Any]) -> None:
    bare = {**captured, "versions": {**captured["versions"]}}
    bare["versions"].pop("fla-core", None)
    with_fla = {**bare, "versions": {**bare["versions"], "fla-core": "1"}}
    with_mamba = {**bare, "versions": {**bare["versions"], "mamba-ssm": "2"}}
    newer_fla = {**bare, "versions": {**bare["versions"], "fla-core": "2"}}
    newer_torch = {**bare, "versions": {**bare["versions"], "torch": "9"}}
    given = {"a": with_fla, "b": with_mamba, "c": newer_fla, "d": newer_torch, "e": {}, "f": bare}
    assert environment.places(given) == {"a": "a", "b": "a", "c": "c", "d": "d", "e": "e", "f": "a"}
