"""Checks an installed wheel from an empty folder: `python ci/installed.py REPOSITORY`.

Run it with the Python of an environment that holds the wheel and nothing else of the project. Every
check calls the `ssmperf` command as a person would.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOMS = ("ssmperf", "impls", "suites", "reports")
COMMAND = Path(sys.executable).with_name("ssmperf")

# A backend that is wrong on purpose: it forgets the recurrence.
PLANTED = """
import ssmperf

@ssmperf.backend("scan", name="planted")
def planted(log_a, b, initial_state=None, *, phase=None):
    return b.clone(), b[:, -1].clone()
"""


def main(repository: Path) -> None:
    nothing_is_missing(repository)
    lists_every_model(repository)
    runs_and_reports()
    finds_a_planted_fault()
    refuses_wrong_usage()


def nothing_is_missing(repository: Path) -> None:
    """Every file of the five folders is in the wheel."""
    import ssmperf

    installed = Path(ssmperf.__file__).parent
    check(repository not in installed.parents, f"{installed} is the checkout, not an installation")
    for room in ROOMS:
        for source in (repository / room).rglob("*"):
            if source.is_file() and "__pycache__" not in source.parts:
                path = source.relative_to(repository / room)
                target = installed / path if room == "ssmperf" else installed / room / path
                check(target.is_file(), f"{source.relative_to(repository)} is not in the wheel")


def lists_every_model(repository: Path) -> None:
    """`ssmperf list models --json` names each model that the checkout declares."""
    listed = {entry["name"] for entry in json.loads(ssmperf("list", "models", "--json"))}
    declared = {
        decorator.args[0].value
        for file in (repository / "impls" / "models").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and decorator.args and isinstance(decorator.args[0], ast.Constant)
    }
    check(bool(declared), "no model found in the checkout")
    check(declared <= listed, f"models not listed: {', '.join(sorted(declared - listed))}")
    print(f"{len(listed)} models listed")


def runs_and_reports() -> None:
    ssmperf("run", "--suite", "correctness,throughput", "--preset", "smoke", "--models", "gla,mingru",
            "--backends", "blelloch,chunkwise,sequential", "--device", "cpu", "--out", "run")  # fmt: skip
    found = records("run")
    check({record["model"] for record in found} == {"gla", "mingru"}, "the run lacks a model")
    check({record["suite"] for record in found} == {"correctness", "throughput"}, "the run lacks a suite")
    bad = [" ".join(str(record[key]) for key in ("model", "backend", "shape", "pass", "status", "reason"))
           for record in found if record["status"] not in ("ok", "unsupported")]  # fmt: skip
    check(not bad, "not every case is ok:\n" + "\n".join(bad))
    ssmperf("report", "run", "--html", "report.html")
    text = Path("report.html").read_text()
    check("gla" in text and "mingru" in text, "the report does not name its models")
    print(f"{len(found)} cases run, report of {len(text)} characters")


def finds_a_planted_fault() -> None:
    """A wrong backend is recorded as wrong, without a time; --strict makes it exit code 3."""
    Path("planted.py").write_text(PLANTED)
    arguments = ("run", "--plugin", "planted.py", "--models", "mingru", "--backends", "planted",
                 "--suite", "throughput", "--preset", "smoke", "--device", "cpu")  # fmt: skip
    ssmperf(*arguments, "--out", "faulty")
    found = records("faulty")
    check(bool(found) and {record["status"] for record in found} == {"wrong"}, "the fault was not found")
    check(all(record.get("latency_s") is None for record in found), "a wrong backend has a time")
    ssmperf(*arguments, "--out", "faulty", "--resume", "--strict", expect=3)  # measures nothing again
    print(f"planted fault found in {len(found)} of {len(found)} cases")


def refuses_wrong_usage() -> None:
    ssmperf("run", "--suite", "throughput", "--models", "no_such_model", "--out", "never", expect=2)
    ssmperf("report", "no_such_run", expect=2)


def records(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run, "records.jsonl").read_text().splitlines()]


def ssmperf(*arguments: str, expect: int = 0) -> str:
    """The output of the installed command, which must end with the expected exit code."""
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True)
    ended = f"ssmperf {' '.join(arguments)}: exit code {done.returncode}, not {expect}"
    check(done.returncode == expect, f"{ended}\n{done.stdout}{done.stderr}")
    return done.stdout


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        sys.exit(f"installed wheel: {otherwise}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
