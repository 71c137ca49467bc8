"""See the gate pass and fail: a repository with three commits of a kernel, and the gate's answer to each.

    python tests/proofs/gate_example.py OUT --device cuda   takes minutes; kernel: this project's Triton scan
    python tests/proofs/gate_example.py OUT --device cpu    kernel: a tree scan in torch
    python tests/proofs/gate_example.py OUT --only wrong    one of equal, slower, wrong; OUT may exist

The commits are tagged `right`, `slower` and `wrong`. The slower kernel spins for a share of its own measured
time: 5 % on a GPU, all of it on a CPU. The wrong one doubles its gradients. The gate compares `right` with
itself and with the other two, and must end with 0, 1 and 3.

OUT gets the repository, and a folder per comparison with JUnit, summary, page and runs. OUT/gate.json has the
exit codes and verdicts. Exits 3 where a comparison did not end as it must. $SSMPERF names the command, as for
the gate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

GATE = Path(__file__).resolve().parents[2] / "ssmperf" / "authors" / "starter" / "files" / "gate"
PLUGIN = "my_scan.py"
LAUNCH_S = 1.6e-6  # of a GPU, for the spin's own kernel (as measured on an H200)
CLOCK_HZ = 1.98e9  # of that GPU's multiprocessors
EXPECTED = {"equal": 0, "slower": 1, "wrong": 3}


@dataclass(frozen=True)
class Setting:
    """The comparison to make on one kind of device.

    original: the backend of this project behind the example's kernel. cases: options that select the cases.
    how: options for the comparison alone. threshold: largest change that counts as the same.
    share: time that the slower kernel spins, over its own.
    """

    original: str
    cases: tuple[str, ...]
    how: tuple[str, ...]
    threshold: str
    share: float


SETTINGS = {
    "cuda": Setting(
        "triton",
        ("--models", "hgrn,mingru", "--backends", "my_scan", "--axis", "T=8192",
         "--dtype", "bfloat16,float32", "--time", "0.1"),
        ("--suite", "correctness,throughput"),
        "2.5%",
        0.05,
    ),
    "cpu": Setting(
        "blelloch",
        ("--models", "hgrn", "--backends", "my_scan", "--axis", "T=512", "--axis", "B=2", "--axis", "C=64",
         "--time", "0.1"),
        ("--suite", "correctness,throughput"),
        "30%",
        1.0,
    ),
}  # fmt: skip

KERNEL = '''"""A kernel that this repository pretends to develop. Its work is done by ssmperf's own scan."""

import time

import torch

import ssmperf
from ssmperf import registry

EXTRA_S = {extra}  # seconds of extra work by dtype and pass
GRADIENT = {gradient}  # factor of the gradients; 1 is right


def spin(seconds, device):
    if device.type == "cuda":
        torch.cuda._sleep(int(seconds * {clock_hz}))
        return
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Around(torch.autograd.Function):
    """Pass a result on, with extra work in both directions."""

    @staticmethod
    def forward(ctx, output):
        ctx.extra_s = EXTRA_S.get(str(output.dtype), {{}})
        if "forward" in ctx.extra_s:
            spin(ctx.extra_s["forward"], output.device)
        return output.view_as(output)

    @staticmethod
    def backward(ctx, gradient):
        if "backward" in ctx.extra_s:
            spin(ctx.extra_s["backward"], gradient.device)
        return gradient if GRADIENT == 1 else GRADIENT * gradient


@ssmperf.backend("scan", name="my_scan", devices=("{device}",), dtypes=("float32", "bfloat16"))
def my_scan(log_a, b, initial_state=None, *, phase=None):
    """Compute it by scan/{original}."""
    scan = registry.backend("scan", "{original}").function
    output, state = scan(log_a, b, initial_state, phase=phase)
    return Around.apply(output), state
'''


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the repository, run the gate, and print one line per comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=SETTINGS, default="cuda")
    parser.add_argument("--only", help="comparisons, separated by commas: equal, slower, wrong")
    parser.add_argument("--pairs", default="5+7", help="pairs of rounds of the two stages")
    chosen = parser.parse_args(arguments)
    names = chosen.only.split(",") if chosen.only else list(EXPECTED)
    if unknown := [name for name in names if name not in EXPECTED]:
        parser.error(f"there is no comparison {unknown[0]!r} (there are: {', '.join(EXPECTED)})")
    out = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    repository = out / "repository"
    if not (repository / "ready").exists():
        make_repository(repository, chosen.device, out)
    file = out / "gate.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for name in names:
        found[name] = compared(name, chosen.device, chosen.pairs, repository, out / name)
        file.write_text(json.dumps(found, indent=1) + "\n")
        print(
            f"{name}: exit code {found[name]['exit_code']}, must be {EXPECTED[name]}; "
            f"{found[name]['seconds']:.0f} s; {found[name]['conclusion']}",
            flush=True,
        )
    return 0 if all(found[name]["exit_code"] == EXPECTED[name] for name in names) else 3


def command() -> str:
    """Name the command line of ssmperf, as the gate reads it."""
    return os.environ.get("SSMPERF") or f"{sys.executable} -m ssmperf.shell.cli"


def make_repository(repository: Path, device: str, out: Path) -> None:
    """Commit the three kernels. The slower one needs the times of the right one, which are measured here."""
    repository.mkdir(parents=True, exist_ok=True)
    git(repository, "init", "--quiet", "--initial-branch=main")
    (repository / ".gitignore").write_text("/ready\n__pycache__/\n")
    commit(repository, "right", kernel(device))
    seconds = measured_seconds(repository, device, out / "times")
    commit(repository, "slower", kernel(device, extra=seconds))
    commit(repository, "wrong", kernel(device, gradient=2))
    (repository / "ready").touch()


def kernel(device: str, extra: Mapping[str, Mapping[str, float]] | None = None, gradient: int = 1) -> str:
    """Write the code of the plug-in. extra: seconds of a spin by dtype and pass."""
    return KERNEL.format(
        extra=extra or {},
        gradient=gradient,
        clock_hz=CLOCK_HZ,
        device=device,
        original=SETTINGS[device].original,
    )


def commit(repository: Path, tag: str, code: str) -> None:
    (repository / PLUGIN).write_text(code)
    git(repository, "add", ".")
    who = ("-c", "user.name=example", "-c", "user.email=example@localhost", "-c", "commit.gpgsign=false")
    git(repository, *who, "commit", "--quiet", "--message", f"Make the kernel {tag}")
    git(repository, "tag", "--force", tag)


def git(repository: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(repository), *words], check=True, stdout=subprocess.DEVNULL)


def measured_seconds(repository: Path, device: str, run: Path) -> dict[str, dict[str, float]]:
    """Measure the right kernel, and give the seconds that the slower one must spin, by dtype and pass."""
    setting = SETTINGS[device]
    words = [*command().split(), "run", "--suite", "throughput", "--plugin", PLUGIN, *setting.cases]
    words += ["--device", device, "--out", str(run), "--resume", "--strict"]
    subprocess.run(words, cwd=repository, check=True)
    times: dict[str, dict[str, list[float]]] = {}
    for line in (run / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        by_pass = times.setdefault(f"torch.{record['dtype']}", {})
        by_pass.setdefault(record["pass"], []).append(record["latency_s"])
    launch_s = LAUNCH_S if device == "cuda" else 0.0
    return {
        dtype: {
            pass_: max(setting.share * statistics.mean(each) - launch_s, 0.0) for pass_, each in found.items()
        }
        for dtype, found in times.items()
    }


def compared(name: str, device: str, pairs: str, repository: Path, out: Path) -> dict[str, Any]:
    """Run the gate on the right kernel and another one; give its exit code, verdicts and seconds."""
    setting = SETTINGS[device]
    new = "right" if name == "equal" else name
    words = [str(GATE), "--base", "right", "--new", new, "--plugin", PLUGIN, "--out", str(out)]
    words += ["--threshold", setting.threshold, "--unsure", "pass" if name == "equal" else "fail"]
    words += ["--", *setting.how, *setting.cases, "--device", device, "--pairs", pairs]
    began_s = time.monotonic()
    environment = {key: value for key, value in os.environ.items() if key != "GITHUB_STEP_SUMMARY"}
    done = subprocess.run(["bash", *words], cwd=repository, env={**environment, "SSMPERF": command()})
    seconds = time.monotonic() - began_s
    cases, conclusion = read_junit(out / "junit.xml")
    return {
        "exit_code": done.returncode,
        "expected": EXPECTED[name],
        "seconds": round(seconds, 1),
        "conclusion": conclusion,
        "cases": cases,
        "command": words,
    }


def read_junit(file: Path) -> tuple[dict[str, str], str]:
    """Read the outcome of each case, and the conclusion; nothing if the gate ended before."""
    if not file.exists():
        return {}, "it ended before there was a verdict"
    suite = ElementTree.parse(file).getroot()
    cases = {}
    for case in suite.iter("testcase"):
        said = [*case.iter("failure"), *case.iter("skipped")]
        cases[f"{case.get('classname')} {case.get('name')}"] = (
            said[0].get("message", "") if said else "passed"
        )
    facts = {each.get("name"): each.get("value", "") for each in suite.iter("property")}
    return cases, str(facts.get("conclusion", ""))


if __name__ == "__main__":
    sys.exit(main())
