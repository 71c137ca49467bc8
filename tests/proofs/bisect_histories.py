"""Does `ssmperf bisect` name innocent commits? Ten planted histories, searched on this machine.

    python tests/proofs/bisect_histories.py OUT            all ten
    python tests/proofs/bisect_histories.py OUT --only 3,9 some of them
    python tests/proofs/bisect_histories.py OUT --load 2   beside two processes that keep cores busy

A history takes about 5 minutes of processor time, which is 3 minutes of two idle cores. Beside a load of 6
to 11 it took 14 to 18 minutes.

Each history is a git repository with a plug-in kernel on the CPU. A commit makes it slower by 15 to 30 % by
idle steps behind its loop; those around it change comments alone. One history has two such commits, one has a
commit that does not import. What `bisect` prints is kept under OUT. Printed per history: `right commit`,
`honest range` (exit 4, the range holds a slow commit), `undecided` (exit 4, the ends cannot be told apart),
or else INNOCENT (another commit is named) or DISHONEST (a range without a slow one).

Exits 1 if any history is one of the last two, else 0. What was searched before is not searched again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEPS = 64  # of the kernel's loop
EXTRA = 1.65  # idle steps that take as long as one of them
KERNEL = '''"""A scan step by step. Commit {number}."""

import torch

import ssmperf


@ssmperf.backend("scan", name="mine")
def mine(log_a, b, initial_state=None, *, phase=None):
    h = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    gates, states = log_a.exp().expand_as(b).unbind(1), []
    for a_t, b_t in zip(gates, b.unbind(1)):
        h = a_t * h + b_t
        states.append(h)
    for step in range({extra}):  # the result is thrown away
        gates[step] * h + h
    return torch.stack(states, 1), h
'''
OPTIONS = (
    "--case", "", "--models", "hgrn", "--backends", "mine", "--axis", f"T={STEPS}", "--axis", "B=1",
    "--axis", "C=16", "--pass", "forward", "--device", "cpu", "--time", "0.3", "--plugin", "mine.py",
)  # fmt: skip


@dataclass(frozen=True)
class History:
    """commits: how many there are. slow: by how much a commit makes the kernel slower, by its number.
    broken: those that do not import.
    """

    commits: int
    slow: dict[int, float]
    broken: tuple[int, ...] = ()


HISTORIES = (
    History(9, {3: 0.15}),
    History(9, {8: 0.20}),
    History(8, {1: 0.30}),
    History(12, {7: 0.25}),
    History(9, {4: 0.30}),
    History(10, {6: 0.20}),
    History(12, {3: 0.15, 9: 0.30}),
    History(9, {5: 0.25}, (4,)),
    History(10, {2: 0.22}, (7,)),
    History(16, {11: 0.18}),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", help="numbers of histories, separated by commas; from 1")
    parser.add_argument("--load", type=int, default=0, help="processes that keep a core busy meanwhile")
    given = parser.parse_args()
    chosen = [int(text) for text in given.only.split(",")] if given.only else range(1, len(HISTORIES) + 1)
    given.out.mkdir(parents=True, exist_ok=True)
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(given.load)]
    try:
        out = given.out.resolve()
        words = [search(number, HISTORIES[number - 1], out / f"{number:02}") for number in chosen]
    finally:
        for process in load:
            process.kill()
    print(", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)))
    return int("INNOCENT" in words or "DISHONEST" in words)


def search(number: int, history: History, folder: Path) -> str:
    """Plant a history, search it, print what was found in one line, and return that in words."""
    answer, begun = folder / "answer.json", time.monotonic()
    if not answer.exists():
        folder.mkdir(exist_ok=True)
        repository = folder / "repository"
        if not repository.exists():
            plant(history, repository)
        ends = ("--good", "first", "--bad", "main", "--out", str(folder / "search"), "--resume", "--json")
        command = [sys.executable, "-m", "ssmperf.shell.cli", "bisect", *ends, *OPTIONS]
        with (folder / "log").open("a") as log:
            done = subprocess.run(
                command, cwd=repository, env=environment(folder), stdout=subprocess.PIPE, stderr=log,
                text=True, check=False,
            )  # fmt: skip
        if done.returncode not in (0, 4):
            raise SystemExit(f"history {number}: exit {done.returncode}, see {folder / 'log'}")
        answer.write_text(done.stdout or json.dumps({"named": None, "first": []}))
    found = json.loads(answer.read_text())
    word = judged(history, found)
    planted = " and ".join(f"{share:.0%} at commit {at}" for at, share in history.slow.items())
    planted += "".join(f", commit {at} does not import" for at in history.broken)
    names = ", ".join(each["subject"] for each in found["first"])
    took = time.monotonic() - begun
    print(f"{number:2}  {word:13} {planted} of {history.commits}: {names or 'nothing'} ({took:.0f} s)")
    for line in found.get("conclusion", "").splitlines():
        print(f"        {line}", flush=True)
    return word


def judged(history: History, found: dict) -> str:
    """Say whether the answer is right: of two steps, the larger is to be named."""
    numbers = [int(each["subject"].split()[1]) for each in found["first"]]
    if found["named"]:
        largest = max(history.slow, key=lambda at: history.slow[at])
        return "right commit" if numbers[0] == largest else "INNOCENT"
    if not numbers:
        return "undecided"
    return "honest range" if set(numbers) & set(history.slow) else "DISHONEST"


def plant(history: History, repository: Path) -> None:
    """Make the repository of a history; its first commit has the tag `first`."""
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    factor = 1.0
    for number in range(history.commits):
        factor *= 1 + history.slow.get(number, 0.0)
        text = KERNEL.format(number=number, extra=round(STEPS * (factor - 1) * EXTRA))
        text = "import nothing\n" if number in history.broken else text
        (repository / "mine.py").write_text(text)
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "-m", f"commit {number}")
        if number == 0:
            git(repository, "tag", "first")


def git(repository: Path, *words: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(repository), *identity, *words], check=True)


def environment(folder: Path) -> dict[str, str]:
    """Take this checkout, one thread, and kept bytecode: rounds start fresh processes, which import torch."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    own = {
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode"),
        "XDG_CACHE_HOME": str(folder.parent / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    return {**kept, **own}


if __name__ == "__main__":
    sys.exit(main())
