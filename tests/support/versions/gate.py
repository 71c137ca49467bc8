"""Call the gate in a repository made for a test."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.versions.repositories import git

ROOT = Path(__file__).parents[3]
GATE = ROOT / "ssmperf" / "authors" / "starter" / "files" / "gate"
# Variables of a CI, which must not reach a test from the CI that runs it.
OF_A_CI = (
    "BUILDKITE",
    "BUILDKITE_PULL_REQUEST_BASE_BRANCH",
    "CI_JOB_URL",
    "CI_MERGE_REQUEST_TARGET_BRANCH_NAME",
    "GITHUB_BASE_REF",
    "GITHUB_RUN_ID",
    "GITHUB_STEP_SUMMARY",
    "SSMPERF_INSTALL",
    "SSMPERF_PAGE_URL",
    "SSMPERF_VENV",
)


def commit(folder: Path, text: str, message: str) -> str:
    """Commit a plug-in file with this text; return the commit."""
    (folder / "mine.py").write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@dataclass
class Place:
    """A repository, and the command that the gate shall use for ssmperf.

    asked: the file in which a stand-in for ssmperf keeps its arguments.
    """

    folder: Path
    ssmperf: str
    asked: Path

    def gate(self, *words: str, script: Path = GATE, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the gate in the folder, with these variables added to the environment."""
        environment = {name: value for name, value in os.environ.items() if name not in OF_A_CI}
        environment |= {"SSMPERF": self.ssmperf, "ASKED": str(self.asked), **variables}
        return subprocess.run(
            [script, *words], cwd=self.folder, env=environment, capture_output=True, text=True
        )

    def commands(self) -> list[list[str]]:
        """List the command lines with which the stand-in was called."""
        return (
            [json.loads(line) for line in self.asked.read_text().splitlines()] if self.asked.exists() else []
        )

    def only(self) -> list[str]:
        """Get the command line of the stand-in's only call."""
        (command,) = self.commands()
        return command
