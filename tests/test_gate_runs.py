"""The gate with ssmperf itself, on three commits of a kernel: good, slower and wrong."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.processes.quick_processes import shell_command
from support.results.pages import Page
from support.versions.gate import Place, commit, git

# A plug-in that is slower by repeating its work, and wrong by a factor of its gradients.
PLUGIN = """
import torch
import ssmperf

REPEATS, FACTOR = {repeats}, {factor}

@ssmperf.backend("scan", name="mine")
def mine(log_a, b, initial_state=None, *, phase=None):
    for _ in range(REPEATS):
        h = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
        states = []
        for a_t, b_t in zip(log_a.exp().expand_as(b).unbind(1), b.unbind(1)):
            h = a_t * h + b_t
            states.append(h)
    output = torch.stack(states, 1)
    if output.requires_grad and FACTOR != 1:
        output.register_hook(lambda gradient: FACTOR * gradient)
    return output, h
"""
CASES = ("--suite", "throughput", "--models", "hgrn", "--backends", "mine", "--axis", "T=32", "--axis", "B=1",
         "--axis", "C=2", "--device", "cpu", "--time", "0.05")  # fmt: skip
LOOSE = ("--threshold", "300%", "--unsure", "pass")  # a busy machine must not fail the test


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("kernels")
    git(folder, "init", "-q", "-b", "main")
    for name, repeats, factor in (("good", 1, 1), ("slower", 12, 1), ("wrong", 1, 2)):
        commit(folder, PLUGIN.format(repeats=repeats, factor=factor), name)
        git(folder, "tag", name)
    git(folder, "switch", "-q", "--detach", "good")
    yield Place(folder, shell_command(), folder / "asked")


def gate(kernels: Place, cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return kernels.gate(*words, "--plugin", "mine.py", OMP_NUM_THREADS="1", XDG_CACHE_HOME=str(cache))


@pytest.mark.slow
def test_equal_versions_pass(kernels: Place, tmp_path: Path) -> None:
    sides = ("--base", "good", "--new", "good")
    done = gate(kernels, tmp_path, *sides, *LOOSE, "--", *CASES, "--pass", "forward", "--pairs", "2+5")
    assert done.returncode == 0, done.stderr
    out = kernels.folder / "gate"
    suite = ElementTree.parse(out / "junit.xml").getroot()
    (case,) = suite.iter("testcase")
    assert "mine" in str(case.get("name")) and suite.get("failures") == "0"
    summary = (out / "summary.md").read_text()
    assert summary.count(f"git ref good ({git(kernels.folder, 'rev-parse', 'good')[:10]})") == 2
    assert "(index.html)" in summary and summary in done.stdout
    page = (out / "index.html").read_text()
    assert page.startswith("<!doctype html>") and "src=" not in page.split("<script", 1)[0]


@pytest.mark.slow
def test_a_phase_of_a_workload_is_compared(kernels: Place, tmp_path: Path) -> None:
    layer = tmp_path / "layer.toml"
    layer.write_text('model = "hgrn"\nsource = "made up"\n[sizes]\nC = 2\n')
    sides = ("--base", "good", "--new", "good")
    cases = ("--suite", "throughput", "--workload", f"{layer}:decode", "--backends", "mine",
             "--preset", "smoke", "--device", "cpu", "--time", "0.05", "--pairs", "2+5")  # fmt: skip
    done = gate(kernels, tmp_path, *sides, *LOOSE, "--", *cases)
    assert done.returncode == 0, done.stderr
    (case,) = ElementTree.parse(kernels.folder / "gate" / "junit.xml").getroot().iter("testcase")
    assert "mine" in str(case.get("name")) and "decode" in str(case.get("name"))


@pytest.mark.slow
def test_a_wrong_gradient_ends_with_3_and_its_reason_is_everywhere(kernels: Place, tmp_path: Path) -> None:
    sides = ("--base", "good", "--new", "wrong")
    done = gate(kernels, tmp_path, *sides, *LOOSE, "--", *CASES, "--pass", "backward", "--pairs", "2+5")
    assert done.returncode == 3, done.stderr
    out, reason = kernels.folder / "gate", "gradient of log_a: relative error"
    suite = ElementTree.parse(out / "junit.xml").getroot()
    (failure,) = suite.iter("failure")
    message = str(failure.get("message"))
    assert (
        failure.get("type") == "wrong" and message.startswith("wrong: mine backward of") and reason in message
    )
    summary = (out / "summary.md").read_text()
    (row,) = [line for line in summary.splitlines() if line.startswith("| wrong | throughput ")]
    assert "mine" in row and reason in row
    assert all(git(kernels.folder, "rev-parse", name)[:10] in summary for name in ("good", "wrong"))
    assert reason in str(Page((out / "index.html").read_text()).data)


@pytest.mark.slow
def test_a_baseline_is_kept_and_fails_what_is_slower(kernels: Place, tmp_path: Path) -> None:
    cases = ("--", *CASES, "--pass", "forward")
    kept = ("--baseline", str(tmp_path / "kept"))
    done = gate(kernels, tmp_path, *kept, "--write-baseline", *cases)
    assert done.returncode == 0, done.stderr
    assert "mine" in (kernels.folder / "gate" / "summary.md").read_text()
    git(kernels.folder, "switch", "-q", "--detach", "slower")
    try:
        done = gate(kernels, tmp_path, *kept, "--threshold", "40%", *cases)
    finally:
        git(kernels.folder, "switch", "-q", "--detach", "good")
    assert done.returncode == 1, done.stderr
    suite = ElementTree.parse(kernels.folder / "gate" / "junit.xml").getroot()
    (failure,) = suite.iter("failure")
    assert failure.get("type") == "slower"
    summary = (kernels.folder / "gate" / "summary.md").read_text()
    for name in ("good", "slower"):
        assert f"commit {git(kernels.folder, 'rev-parse', name)[:10]}" in summary
    first = str(failure.get("message"))
    since = git(kernels.folder, "log", "-1", "--abbrev=10", '--format=%h "%s" (%an)', "good")
    assert first.startswith("slower: mine forward of ") and f"since {since}" in first


@pytest.mark.slow
def test_a_gradient_that_is_wrong_at_odd_lengths_fails_whatever_t_is_named(
    kernels: Place, tmp_path: Path
) -> None:
    """Times are compared at the T that is named; correctness is judged elsewhere."""
    before = (kernels.folder / "mine.py").read_text()
    broken = before.replace("FACTOR != 1", "FACTOR != 1 and len(states) > 40 and len(states) % 2")
    commit(kernels.folder, broken.replace("FACTOR = 1, 1", "FACTOR = 1, 2"), "odd")
    git(kernels.folder, "tag", "odd")
    git(kernels.folder, "switch", "-q", "--detach", "good")
    sides = ("--base", "good", "--new", "odd")
    cases = ("--", *CASES, "--suite", "correctness,throughput", "--pass", "backward", "--pairs", "2+5")
    done = gate(kernels, tmp_path, *sides, *LOOSE, *cases)
    assert done.returncode == 3, done.stderr
    suite = ElementTree.parse(kernels.folder / "gate" / "junit.xml").getroot()
    found = {str(case.get("classname")): case for case in suite.iter("testcase")}
    (failure,) = found["correctness.hgrn"].iter("failure")
    assert "B1 T67 C2" in str(found["correctness.hgrn"].get("name"))
    assert "gradient of log_a: relative error" in str(failure.get("message"))
    assert "B1 T32 C2" in str(found["throughput.hgrn"].get("name"))
    assert not [*found["throughput.hgrn"].iter("failure")]


@pytest.mark.slow
def test_a_baseline_is_judged_at_odd_lengths_too(kernels: Place, tmp_path: Path) -> None:
    kept = ("--baseline", str(tmp_path / "kept"), "--write-baseline")
    cases = ("--", *CASES, "--suite", "correctness", "--pass", "forward")
    assert gate(kernels, tmp_path, *kept, *cases).returncode == 0
    (line,) = (tmp_path / "kept" / "records.jsonl").read_text().splitlines()
    assert json.loads(line)["shape"]["T"] == 67
