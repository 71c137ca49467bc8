"""Repositories with a plug-in file that changes from commit to commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

PLUGIN = "kernels/mine.py"
KERNEL = """
import time
import torch
import ssmperf

@ssmperf.backend("scan", name="mine")
def mine(log_a, b, initial_state=None, *, phase=None):
    h = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    states = []
    for a_t, b_t in zip(log_a.exp().expand_as(b).unbind(1), b.unbind(1)):
        h = a_t * h + b_t
        states.append(h)
    time.sleep({seconds})
    return torch.stack(states, 1), h
"""


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, and return its output."""
    identity = ("-c", "user.name=Ada", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path, number: int, text: str | None) -> str:
    """Commit a plug-in file with this text, or without one, and give the commit's name."""
    file = folder / PLUGIN
    file.parent.mkdir(exist_ok=True)
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    (folder / "number").write_text(str(number))
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", f"change {number}", "--date", f"2026-01-{1 + number:02}T12:00:00+00:00")
    return git(folder, "rev-parse", "HEAD")


def state_of(repository: Path) -> dict[str, str]:
    """Give all that a search must not change."""
    return {
        "head": (repository / ".git" / "HEAD").read_text(),
        "index": (repository / ".git" / "index").read_bytes().hex(),
        "status": git(repository, "status", "--porcelain"),
        "refs": git(repository, "for-each-ref"),
        "worktrees": git(repository, "worktree", "list", "--porcelain"),
        "files": str(sorted(str(file) for file in repository.rglob("*") if ".git" not in file.parts)),
        "number": (repository / "number").read_text(),
    }
