"""Measure how often `ssmperf ab` is wrong on this machine: alarms where nothing changed, and misses.

    python ci/verdict_rates.py cuda OUT --minutes 9   measure blocks; the same command goes on with them
    python ci/verdict_rates.py cpu OUT --minutes 60
    python ci/verdict_rates.py summary OUT            counts, bounds, and OUT/rates.json.gz to commit

A block is one comparison of two copies of this checkout, each with packages and compiler caches of its own.
In the new one a few kernels have extra work: a spin of a known share of their time. All other cases
are the same code twice. Blocks are independent; the cases of a block are not.
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import beta

ROOT = Path(__file__).parents[1]
STOP_S = 20.0  # before the time is over, for writing what is done


@dataclass(frozen=True)
class Setting:
    """What to compare on one kind of device.

    options: that select the cases. pairs: of rounds in the two stages.
    threshold: beyond which a change counts.
    share: of a kernel's time that the planted work takes. plants: for each kind of block, the files of the
        backends with extra work, and the dtypes in which they have it.
    """

    options: tuple[str, ...]
    pairs: str
    threshold: str
    share: float
    plants: tuple[Mapping[str, tuple[str, ...]], ...]


SETTINGS = {
    "cuda": Setting(
        ("--models", "hgrn,rg_lru,gateloop,mamba,longhorn,rwkv4", "--backends", "triton,cuda",
         "--dtype", "bfloat16,float32", "--pass", "forward,backward", "--time", "0.05"),
        "5+7",
        "2.5%",
        0.05,
        (
            {"selective_scan/triton.py": ("bfloat16",), "ratio_scan/triton.py": ("bfloat16",)},
            {"scan/triton.py": ("float32",)},
        ),
    ),
    "cpu": Setting(
        ("--models", "hgrn,mingru,gla,mamba", "--backends", "blelloch,hillis_steele,chunkwise,surrogate",
         "--axis", "T=256,1024", "--axis", "B=2", "--axis", "C=64", "--axis", "D=64",
         "--pass", "forward", "--time", "0.2"),
        "5+10",
        "10%",
        0.20,
        ({"scan/blelloch.py": ("float32",)}, {"scan/hillis_steele.py": ("float32",)}),
    ),
}  # fmt: skip

# What a planted copy has beside the rest. EXTRA_S follows: seconds by pass, by backend and operands.
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


def main() -> None:
    """Measure blocks until the time is over, or sum up those that are done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*SETTINGS, "summary"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument(
        "--devices", default="0", help="indices of the GPUs, one comparison at a time on each"
    )
    chosen = parser.parse_args()
    if chosen.what == "summary":
        summarise(chosen.out)
        return
    end_s = time.monotonic() + 60 * chosen.minutes - STOP_S
    chosen.out.mkdir(parents=True, exist_ok=True)
    setting = SETTINGS[chosen.what]
    (chosen.out / "setting.json").write_text(json.dumps({"device": chosen.what, **vars(setting)}))
    trees = make_trees(chosen.out, setting, chosen.what, chosen.devices.split(",")[0])
    measure(chosen.out, setting, trees, chosen.what, chosen.devices.split(","), chosen.blocks, end_s)
    summarise(chosen.out)


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
                "\nfrom ssmperf import ", "\nfrom ssmperf.planted import planted\nfrom ssmperf import ", 1
            )
            path.write_text(text)
            for key, passes in seconds.items():
                if key.startswith(f"{name} ") and any(f"torch.{dtype} " in key for dtype in dtypes):
                    extra[key] = {pass_: setting.share * each for pass_, each in passes.items()}
        assert extra, plant
        (tree / "ssmperf" / "planted.py").write_text(f"{PLANTED}\n\nEXTRA_S = {extra!r}\n")
    setup = [tree / "setup.py" for tree in trees]
    assert all(file.exists() for file in setup)
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
    call(
        ["run", "--suite", "throughput", *setting.options, "--device", device, "--out", str(run), "--resume"],
        gpu,
    )
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


def call(words: Sequence[str], gpu: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line; interrupt it when its time is over, and let it end."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
    command = [sys.executable, "-m", "ssmperf.cli", *words]
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
    blocks: int,
    end_s: float,
) -> None:
    """Measure blocks, one at a time on each GPU, until all are done or the time is over."""
    todo = iter(range(blocks))

    def lane(gpu: str) -> None:
        for number in todo:
            left_s = end_s - time.monotonic()
            result = out / f"block-{number:02d}.json"
            if result.exists():
                continue
            if left_s <= 0:
                return
            new = trees[1 + number % (len(trees) - 1)]
            words = ["ab", "--base", str(trees[0]), "--new", str(new), "--suite", "throughput", "--json"]
            words += [*setting.options, "--pairs", setting.pairs, "--threshold", setting.threshold]
            words += ["--device", device]
            words += ["--out", str(out / f"block-{number:02d}"), "--resume"]
            done = call(words, gpu, left_s)
            if done.returncode == 130:
                return
            if "}" not in done.stdout:
                raise SystemExit(f"block {number} failed: {done.stderr[-2000:]}")
            cases = json.loads(done.stdout[: done.stdout.rindex("}") + 1])["cases"]
            values = rounds_of(out / result.stem)
            with_rounds = [{**each, "rounds": values.get(each["case_id"], {})} for each in cases]
            result.write_text(json.dumps({"cases": with_rounds}))
            print(f"block {number} on GPU {gpu}: exit {done.returncode}", flush=True)

    with ThreadPoolExecutor(len(gpus)) as pool:
        for each in [pool.submit(lane, gpu) for gpu in gpus]:
            each.result()


def summarise(out: Path) -> None:
    """Print counts per block and over all blocks with bounds, and write what is to be committed."""
    setting = json.loads((out / "setting.json").read_text())
    rows = list(blocks_of(out, setting))
    alarms = sum(row["alarms"] for row in rows)
    same = sum(row["same"] for row in rows)
    found, planted = (sum(row[name] for row in rows) for name in ("found", "planted"))
    for row in rows:
        print(
            f"block {row['block']:2d}: {row['alarms']} alarms in {row['same']} unchanged cases, "
            f"{row['found']} of {row['planted']} planted found"
        )
    bounds = {"alarms": bound(alarms, same), "missed": bound(planted - found, planted)}
    print(
        f"{alarms} alarms in {same} unchanged cases (at most {bounds['alarms']:.2%} with 95 % confidence, "
        f"were they independent), in {sum(row['alarms'] > 0 for row in rows)} of {len(rows)} blocks (at most "
        f"{bound(sum(row['alarms'] > 0 for row in rows), len(rows)):.1%}); {found} of {planted} planted "
        f"found (at most {bounds['missed']:.2%} missed)"
    )
    with gzip.open(out / "rates.json.gz", "wt") as file:
        json.dump({"setting": setting, "bounds": bounds, "blocks": rows}, file)


def blocks_of(out: Path, setting: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Read the blocks that are done: counts, and per case the verdict and the value of each round."""
    for result in sorted(out.glob("block-*.json")):
        number = int(result.stem.split("-")[1])
        plant = setting["plants"][number % len(setting["plants"])]
        cases = []
        for each in json.loads(result.read_text())["cases"]:
            file = f"{each['recurrence']}/{each['backend']}.py"
            cases.append(
                {
                    **{
                        name: each[name] for name in ("model", "backend", "dtype", "pass", "verdict", "ratio")
                    },
                    **{name: each.get(name) for name in ("low", "high", "p", "least_change")},
                    "shape": each["shape"],
                    "planted": each["dtype"] in plant.get(file, ()) and each["model"] != "gateloop",
                    "rounds": each["rounds"],
                }
            )
        timed = [each for each in cases if each["ratio"] is not None]
        yield {
            "block": number,
            "same": sum(not each["planted"] for each in timed),
            "alarms": sum(not each["planted"] and each["verdict"] == "slower" for each in timed),
            "planted": sum(each["planted"] for each in timed),
            "found": sum(each["planted"] and each["verdict"] == "slower" for each in timed),
            "cases": cases,
        }


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


def bound(count: int, trials: int) -> float:
    """Give the upper 95 % bound of a share, after Clopper and Pearson."""
    return 1.0 if count >= trials else float(beta.ppf(0.95, count + 1, trials - count))


if __name__ == "__main__":
    main()
