"""Measure how often `ssmperf ab` is wrong on this machine: alarms where nothing changed, and misses.

    python tests/proofs/verdict_rates.py cuda OUT --minutes 9   measure blocks; the same command goes on
    python tests/proofs/verdict_rates.py cpu OUT --minutes 60
    python tests/proofs/verdict_rates.py summary OUT            counts and bounds

A block is one comparison of two copies of this checkout, each with packages and compiler caches of its own.
In the new one a few kernels have extra work: a spin of a known share of their time. All other cases
are the same code twice. Blocks are independent; the cases of a block are not.

Exits 3 where more blocks have an alarm than the level of 5 % per comparison explains, 4 where no block ended.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from proofs.verdict_counts import summarise  # noqa: E402
from ssmperf.comparison.comparison import compare_runs  # noqa: E402
from ssmperf.engine.runs import store  # noqa: E402
from ssmperf.engine.runs.store import Run  # noqa: E402

STOP_S = 20.0  # before the time is over, for writing the results
LAUNCH_S = 1.6e-6  # of a GPU, for the planted kernel itself (as measured on an H200)


@dataclass(frozen=True)
class Setting:
    """The comparison to make on one kind of device.

    options: to select cases. pairs: pairs of rounds in the two stages. threshold: least change that counts.
    share: time of the planted work over the kernel's. plants: for each kind of block, the files of the
        backends with extra work, and the dtypes in which they have it.
    calibrate: whether to calibrate the machine first, so that single rounds have verdicts too.
    threads: torch's threads; 0 for its own choice. Where others use a core, threads on all cores wait for it.
    """

    options: tuple[str, ...]
    pairs: str
    threshold: str
    share: float
    plants: tuple[Mapping[str, tuple[str, ...]], ...]
    calibrate: bool = True
    threads: int = 0


SETTINGS = {
    "cuda": Setting(
        ("--models", "hgrn,mingru,mingru_pos,minlstm,rg_lru,lrn,gateloop,mamba,longhorn",
         "--backends", "triton,cuda", "--axis", "T=2048", "--dtype", "bfloat16,float32",
         "--pass", "forward,backward,forward_backward", "--time", "0.03"),
        "5+7",
        "2.5%",
        0.05,
        (
            {"selective_scan/triton.py": ("bfloat16",), "scan/cuda.py": ("bfloat16",)},
            {"scan/triton.py": ("float32",)},
        ),
        calibrate=False,
    ),
    "cpu": Setting(
        ("--models", "hgrn,mingru,gla,retnet,mamba,longhorn",
         "--backends", "blelloch,hillis_steele,chunkwise", "--axis", "T=1024,2048",
         "--axis", "B=2", "--axis", "C=64", "--axis", "D=64",
         "--pass", "forward", "--time", "0.8"),
        "5+10",
        "5%",
        0.20,
        ({"scan/blelloch.py": ("float32",)}, {"scan/hillis_steele.py": ("float32",)}),
        threads=1,
    ),
}  # fmt: skip

# Source that a planted copy adds. EXTRA_S follows: seconds by pass, by backend and operands.
PLANTED = '''"""Extra work of known length behind a backend's forward and backward pass."""

import functools
import time

import torch


def spin(seconds, device):
    if device.type == "cuda":
        torch.cuda._sleep(int(seconds * 1.98e9))
        return
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Extra(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward_s, backward_s):
        ctx.backward_s = backward_s
        if forward_s:
            spin(forward_s, x.device)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        if ctx.backward_s:
            spin(ctx.backward_s, gradient.device)
        return gradient, None, None


def planted(name):
    def around(function):
        @functools.wraps(function)
        def call(*operands, **options):
            output, state = function(*operands, **options)
            kind = "complex" if options.get("phase") is not None else "real"
            key = f"{name} {kind} {output.dtype} {tuple(output.shape)}"
            extra = EXTRA_S.get(key)
            if extra:
                output = Extra.apply(output, extra.get("forward", 0.0), extra.get("backward", 0.0))
            return output, state

        return call

    return around
'''


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure blocks until the time is over, or sum up those that are done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*SETTINGS, "summary"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--block", type=int, action="append", help="a block's number, in place of --blocks")
    parser.add_argument("--select", help="options that select the cases, in place of the setting's")
    parser.add_argument(
        "--devices", default="0", help="indices of the GPUs, one comparison at a time on each"
    )
    chosen = parser.parse_args(arguments)
    if chosen.what == "summary":
        return summarise(chosen.out)
    end_s = time.monotonic() + 60 * chosen.minutes - STOP_S
    if SETTINGS[chosen.what].threads:
        os.environ["OMP_NUM_THREADS"] = str(SETTINGS[chosen.what].threads)
    chosen.out.mkdir(parents=True, exist_ok=True)
    setting = SETTINGS[chosen.what]
    if chosen.select:
        setting = replace(setting, options=tuple(chosen.select.split()))
    if not (chosen.out / "setting.json").exists():
        (chosen.out / "setting.json").write_text(json.dumps({"device": chosen.what, **vars(setting)}) + "\n")
    if setting.calibrate and not (chosen.out / "calibration").exists():
        call(["calibrate", "--device", chosen.what, "--out", str(chosen.out / "calibrated")], chosen.out)
    trees = make_trees(chosen.out, setting, chosen.what, chosen.devices.split(",")[0])
    numbers = chosen.block or range(chosen.blocks)
    measure(chosen.out, setting, trees, chosen.what, chosen.devices.split(","), numbers, end_s)
    return summarise(chosen.out)


def make_trees(out: Path, setting: Setting, device: str, gpu: str) -> list[Path]:
    """Copy the checkout without planted work, and with that of each kind of block."""
    folder = out / "trees"
    trees = [folder / "base", *(folder / f"planted-{number}" for number in range(len(setting.plants)))]
    if (folder / "ready").exists():
        return trees
    for tree in trees:
        tree.mkdir(parents=True, exist_ok=True)
        for file in source_files():
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            (tree / file).write_bytes((ROOT / file).read_bytes())
    seconds = measured_seconds(out, setting, device, gpu)
    for tree, plant in zip(trees[1:], setting.plants, strict=True):
        extra = {}
        for file, dtypes in plant.items():
            name = file.removesuffix(".py")
            path = tree / "impls" / file
            text = path.read_text()
            decorator = re.search(r"\n@backend\((?:.|\n)*?\)\n(?=@|def )", text)
            assert decorator, file
            text = f'{text[: decorator.end()]}@planted("{name}")\n{text[decorator.end() :]}'
            text = text.replace(
                "\nfrom ssmperf.authoring import ",
                "\nfrom ssmperf.planted import planted\nfrom ssmperf.authoring import ",
                1,
            )
            path.write_text(text)
            for key, passes in seconds.items():
                if key.startswith(f"{name} real ") and any(f"torch.{dtype} " in key for dtype in dtypes):
                    launch_s = LAUNCH_S if device == "cuda" else 0.0
                    extra[key] = {
                        pass_: max(setting.share * each - launch_s, 0.0) for pass_, each in passes.items()
                    }
        assert extra, plant
        (tree / "ssmperf" / "planted.py").write_text(f"{PLANTED}\n\nEXTRA_S = {extra!r}\n")
    (folder / "ready").touch()
    return trees


def source_files() -> list[str]:
    """List the files of the package in this checkout."""
    kept = ("ssmperf", "impls", "suites", "reports")
    names = [
        str(file.relative_to(ROOT)) for part in kept for file in (ROOT / part).rglob("*") if file.is_file()
    ]
    names = [name for name in names if "__pycache__" not in name]
    return [*names, "setup.py", "pyproject.toml", "README.md", "LICENSE"]


def measured_seconds(out: Path, setting: Setting, device: str, gpu: str) -> dict[str, dict[str, float]]:
    """Measure the base's cases once. Give seconds by pass, for each backend, gates, dtype and shape."""
    run = out / "once"
    words = ["run", "--suite", "throughput", *setting.options, "--device", device]
    if not (run / "records.jsonl").exists():
        call([*words, "--out", str(run)], out, gpu)
    found: dict[str, dict[str, float]] = {}
    for line in (run / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["status"] != "ok":
            continue
        sizes = record["shape"]
        letters = {"scan": "BTC", "ratio_scan": "BTC", "selective_scan": "BTD", "linear_attention": "BTHV"}
        shape = tuple(sizes[letter] for letter in letters[record["recurrence"]])
        kind = "complex" if record["model"] == "gateloop" else "real"
        key = f"{record['recurrence']}/{record['backend']} {kind} torch.{record['dtype']} {shape}"
        found.setdefault(key, {})[record["pass"]] = record["latency_s"]
    return found


def call(
    words: Sequence[str], out: Path, gpu: str = "0", timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line; interrupt it when its time is over, and let it end."""
    own = {"CUDA_VISIBLE_DEVICES": gpu, "SSMPERF_CALIBRATION": str((out / "calibration").resolve())}
    environment = {**os.environ, **own}
    command = [sys.executable, "-m", "ssmperf.shell.cli", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    if process.returncode not in (0, 1, 3, 4, 130):
        raise SystemExit(f"{' '.join(command)} exited with {process.returncode}: {err[-2000:]}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def measure(
    out: Path,
    setting: Setting,
    trees: Sequence[Path],
    device: str,
    gpus: Sequence[str],
    numbers: Iterable[int],
    end_s: float,
) -> None:
    """Measure blocks, one at a time on each GPU, until all are done or the time is over."""
    todo = iter(numbers)

    def lane(gpu: str) -> None:
        for number in todo:
            left_s = end_s - time.monotonic()
            folder = out / f"block-{number:02d}"
            if folder.with_suffix(".json.gz").exists():
                continue
            if left_s <= 0:
                return
            new = trees[1 + number % (len(trees) - 1)]
            words = ["ab", "--base", str(trees[0]), "--new", str(new), "--suite", "throughput", "--json"]
            words += [*setting.options, "--pairs", setting.pairs, "--threshold", setting.threshold]
            words += ["--device", device, "--out", str(folder), "--resume"]
            began_s = time.monotonic()
            done = call(words, out, gpu, left_s)
            if done.returncode == 130:
                return
            if "}" not in done.stdout:
                raise SystemExit(f"block {number} failed: {done.stderr[-2000:]}")
            cases = json.loads(done.stdout[: done.stdout.rindex("}") + 1])["cases"]
            plant = setting.plants[number % len(setting.plants)]
            with gzip.open(folder.with_suffix(".json.gz"), "wt") as file:
                found = list(described(folder, cases, plant, setting))
                json.dump({"block": number, "options": setting.options, "cases": found}, file)
            print(
                f"block {number} on device {gpu}: exit {done.returncode}, {time.monotonic() - began_s:.0f} s",
                flush=True,
            )

    with ThreadPoolExecutor(len(gpus)) as pool:
        for each in [pool.submit(lane, gpu) for gpu in gpus]:
            each.result()


def described(
    folder: Path, cases: Sequence[Mapping[str, Any]], plant: Mapping[str, Sequence[str]], setting: Setting
) -> Iterator[dict[str, Any]]:
    """Describe each case of a block: whether work was planted, its verdicts, and the value of each round."""
    values, single = rounds_of(folder), single_rounds(folder, setting)
    names = ["model", "backend", "shape", "dtype", "pass", "verdict", "ratio", "low", "high", "p",
             "least_change"]  # fmt: skip
    for each in cases:
        dtypes = plant.get(f"{each['recurrence']}/{each['backend']}.py", ())
        yield {
            **{name: each.get(name) for name in names},
            "planted": each["dtype"] in dtypes and each["model"] != "gateloop",
            "rounds": values.get(each["case_id"], {}),
            "single": single.get(each["case_id"], []),
        }


def single_rounds(folder: Path, setting: Setting) -> dict[str, list[str]]:
    """Give the verdicts of `check` where each side has one round alone, for each pair of the first stage."""
    base, new = (store.load(folder / side) for side in ("base", "new"))
    found: dict[str, list[str]] = {}
    for number in range(int(setting.pairs.split("+")[0])):
        one = [
            Run(run.path, run.meta, [each[number] for each in run.rounds.values() if len(each) > number])
            for run in (base, new)
        ]
        for pair in compare_runs(one[0], one[1], threshold=setting.threshold).pairs:
            found.setdefault(pair.case.id, []).append(pair.verdict)
    return found


def rounds_of(folder: Path) -> dict[str, dict[str, list[float | None]]]:
    """Read the seconds of each round of both sides, by id of the case."""
    found: dict[str, dict[str, dict[int, float | None]]] = {}
    for side in ("base", "new"):
        for line in (folder / side / "records.jsonl").read_text().splitlines():
            record = json.loads(line)
            values = found.setdefault(record["case_id"], {}).setdefault(side, {})
            values[record.get("round", 0)] = record.get("latency_s")
    return {
        id_: {side: [values[number] for number in sorted(values)] for side, values in sides.items()}
        for id_, sides in found.items()
    }


if __name__ == "__main__":
    sys.exit(main())
