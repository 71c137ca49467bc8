"""docs/your-kernel.md: its commands, run in order in an empty folder, end as it says.

Not run are the installations, which the environment of the tests stands in for, and what the gate measures:
the command that the gate is given checks the two commits that it is to compare.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from support.processes.quick_processes import shell_command
from torch.utils._python_dispatch import TorchDispatchMode

import ssmperf
from ssmperf.comparison.versions import sides
from ssmperf.suitekit import registry

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "your-kernel.md").read_text()
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
EXIT_CODE = re.compile(r"# exit code (\d+)$")
SLOWER, WRONG = 1, 3

# Stands in for ssmperf where the gate calls it: it notes its arguments and ends as it is told.
NOTED = """#!/bin/bash
printf '%s\\n' "$@" >"$NOTES"
exit "$EXIT_CODE"
"""
# Verbs that no other test starts in full are so here, once.
TOOL = """#!/bin/bash
case " $* " in
    *" --package "*) exec {forked} "$@" ;;
    " diagnose "* | " new "*) exec {full} "$@" ;;
    *) exec {forked} "$@" ;;
esac
"""


@dataclass
class Walk:
    """A person at a terminal. commands: each with what it printed; gated: the words of each call of `ab`."""

    folder: Path
    tools: Path
    commands: list[tuple[str, str]] = field(default_factory=list)
    gated: list[tuple[int, list[str], Path]] = field(default_factory=list)

    def do(self, line: str) -> None:
        """Run a line of a block; it must end with the exit code that its comment tells, or 0."""
        words = shlex.split(line, comments=True)
        told = EXIT_CODE.search(line)
        expected = int(told[1]) if told else 0
        if words[0] == "cd":
            self.folder = self.folder / words[1]
        elif words[:2] == ["pip", "install"]:
            assert version("ssmperf") and version("pytest")
        elif words[0] != "export":
            first = not any(command.startswith("pytest") for command, _ in self.commands)
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=self.folder,
                env=self.environment(expected, first_time=first),
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == expected, f"{line}: {done.returncode}\n{done.stdout}\n{done.stderr}"
            self.commands.append((line, done.stdout + done.stderr))
            if words[0] == "ci/gate":
                self.keep(expected)

    def environment(self, code: int, *, first_time: bool) -> dict[str, str]:
        who = {
            f"GIT_{role}_{what}": "me@localhost"
            for role in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        return {
            **os.environ,
            **who,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "PYTEST_ADDOPTS": "-k 'float32 or extreme or innermost'" if first_time else "-k float32",
            "SSMPERF": str(self.tools / "noted"),
            "SSMPERF_INSTALL": "../ssmperf",
            "NOTES": str(self.tools / "notes"),
            "EXIT_CODE": str(code),
        }

    def keep(self, code: int) -> None:
        """Note what the gate was to compare, and the two commits as they are now."""
        words = (self.tools / "notes").read_text().splitlines()
        copy = self.tools / f"compared-{len(self.gated)}"
        shutil.copytree(self.folder, copy)
        self.gated.append((code, words, copy))


def tool(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """Follow the document from its first block to its last."""
    tools = tmp_path_factory.mktemp("tools")
    for name, module in (("ssmperf", "ssmperf.shell.cli"), ("pytest", "pytest")):
        full = f"{shlex.quote(sys.executable)} -P -m {module}"
        tool(tools, name, TOOL.format(full=full, forked=shell_command(module)))
    tool(tools, "noted", NOTED)
    walk = Walk(tmp_path_factory.mktemp("empty"), tools)
    for language, block in BLOCKS:
        if language == "python":
            replace_code(walk.folder / "my_kernel.py", block)
            continue
        for line in block.splitlines():
            walk.do(line)
    return walk


def replace_code(file: Path, code: str) -> None:
    """Do what the document says: replace the code below the docstring."""
    docstring, end, _ = file.read_text().partition('\n"""\n')
    file.write_text(f"{docstring}{end}\n{code}")


def printed(walk: Walk, beginning: str) -> list[str]:
    return [text for line, text in walk.commands if line.startswith(beginning)]


def test_there_is_something_to_run() -> None:
    assert [language for language, _ in BLOCKS].count("python") == 1
    assert sum(block.count("\n") for language, block in BLOCKS if language == "sh") > 20


@pytest.mark.slow
def test_all_commands_end_as_told(walk: Walk) -> None:
    assert len(printed(walk, "pytest")) == 3
    assert len(printed(walk, "ssmperf run")) == 3
    assert "installed" not in "".join(printed(walk, "pip"))


@pytest.mark.slow
def test_both_kernels_are_right_and_have_times(walk: Walk) -> None:
    loop, chunked, *_ = (path for path in sorted((walk.folder / "runs").iterdir()))
    for run in (loop, chunked):
        records = ssmperf.load(run).records
        assert {str(record.status) for record in records} == {"ok"}
        assert {record.case.backend for record in records if "latency_s" in record.numbers} == {
            "my_kernel",
            "sequential",
        }


@pytest.mark.slow
def test_the_fault_is_named(walk: Walk) -> None:
    fault = "as if the gradient at the final state were 0"
    assert fault in TEXT.replace("\n", " ")
    assert fault in printed(walk, "pytest")[-1]
    assert fault in printed(walk, "ssmperf diagnose")[0]
    (command,) = re.findall(r"^ssmperf diagnose .*$", TEXT, re.MULTILINE)
    assert command in printed(walk, "ssmperf run")[-1]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["base", "new"])
@pytest.mark.parametrize("code", [WRONG, SLOWER])
@pytest.mark.usefixtures("own_registrations")
def test_the_gate_is_given_two_versions(
    walk: Walk, code: int, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base is right and steps through chunks. The new one is wrong, or steps through all of time."""
    assert [each for each, _, _ in walk.gated] == [WRONG, SLOWER]
    ((words, folder),) = ((words, folder) for each, words, folder in walk.gated if each == code)
    assert words[0] == "ab"
    option = {words[place]: words[place + 1] for place in range(1, len(words) - 1)}
    assert option["--models"] == "hgrn" and option["--backends"] == "my_kernel"
    monkeypatch.chdir(folder)
    version = sides.install(option[f"--{side}"], side, (option["--plugin"],), walk.tools / f"gate-{code}")
    registry.load_plugin(version.plugins[0])
    right = bool(ssmperf.verify("scan", "my_kernel", T=67, gates="data"))
    assert right == (side == "base" or code != WRONG)
    assert (operations(T=512) > 512) == (side == "new" and code == SLOWER)


def operations(T: int) -> int:
    """Count the operations of a forward call."""
    with Counting() as counting:
        registry.backend("scan", "my_kernel").function(-torch.rand(1, T, 2), torch.randn(1, T, 2))
    return counting.count


class Counting(TorchDispatchMode):
    """Counts the operations within its block."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return function(*args, **(kwargs or {}))
