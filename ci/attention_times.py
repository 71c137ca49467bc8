"""Device time of linear attention beside its peers, by the replay of CUDA graphs with a cold L2.

    python ci/attention_times.py OUT.jsonl                      all rows; those that OUT has are not repeated
    python ci/attention_times.py OUT.jsonl --rows 'few-*' --minutes 8
    python ci/attention_times.py OUT.jsonl --rows key --first   first calls, in processes with empty caches
    python ci/attention_times.py OUT.jsonl --compile --jobs 12  compiles peers' kernels side by side, untimed
    python ci/attention_times.py OUT.jsonl --table              prints the ratios of a file

OUT gets one JSON object per row, subject and pass: microseconds (median, and the quartiles of the samples),
the bytes at the peak beyond operands and results, and the kernels that ran. `inference` runs without
gradients, `training` is a forward and a backward pass. Data are bfloat16, gates float32, log sigmoid of a
normal variable over 16. Both sides get the same values. Peers get their own layout before the clock starts.
A call that cannot be captured is timed by events (`clock`).

Results are not judged here: `ssmperf run --suite correctness` does that.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402

import ssmperf  # noqa: E402
from ci.attention_rows import (  # noqa: E402
    OURS,
    PASSES,
    ROWS,
    XL_CHUNK,
    Call,
    Row,
    call_of,
    operands,
    tensors,
)
from ssmperf import registry  # noqa: E402
from ssmperf.engine.execute.worker import warm_up  # noqa: E402
from ssmperf.engine.machine.cache import flusher  # noqa: E402
from ssmperf.engine.measure.device_clocks import EventClock, GraphClock  # noqa: E402

SAMPLES = 15
WARM_UPS = 3
TIMEOUT_S = 500


def beyond(call: Call) -> int:
    """Measure the bytes at the peak of a call beyond its operands and results."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = tensors(call())
    torch.cuda.synchronize()
    results_bytes = sum(
        {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in results}.values()
    )
    return torch.cuda.max_memory_allocated() - before - results_bytes


def kernels_of(call: Call) -> dict[str, list[float]]:
    """Name the kernels of a call: microseconds, and launches."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    return {
        each.key[:60]: [round(each.self_device_time_total, 1), each.count]
        for each in found.key_averages()
        if each.self_device_time_total
    }


def measured(row: Row, subject: str, pass_: str, clock: GraphClock) -> dict[str, Any]:
    """Time one subject in one pass."""
    started = time.perf_counter()
    given = operands(row, "cuda")
    call = call_of(subject, given, pass_)
    call()
    torch.cuda.synchronize()
    ready_s = time.perf_counter() - started
    for _ in range(WARM_UPS - 1):
        call()
    torch.cuda.synchronize()
    found: dict[str, Any] = {"first_s": round(ready_s, 2), "beyond_bytes": beyond(call)}
    reason = clock.capture(call)
    timer: EventClock = clock
    if reason:
        timer = EventClock("cuda", clock.before)
        found |= {"clock": "event", "reason": reason}
    samples = sorted(timer.time(call) * 1e6 for _ in range(SAMPLES))
    quarter = len(samples) // 4
    found |= {"us": round(statistics.median(samples), 1)}
    found |= {"fast_us": round(samples[quarter], 1), "slow_us": round(samples[-1 - quarter], 1)}
    clock.release()
    return found if row.name.startswith("few") else found | {"kernels": kernels_of(call)}


def attempted(row: Row, subject: str, pass_: str, clock: GraphClock) -> dict[str, Any]:
    """Time one subject, or say why it has no time."""
    try:
        return measured(row, subject, pass_, clock)
    except torch.OutOfMemoryError:
        return {"failed": "out of memory"}
    except (ssmperf.SsmperfError, ImportError) as problem:
        return {"failed": str(problem).partition("\n")[0]}
    except Exception as problem:  # a peer may raise anything; the row says what
        return {"failed": f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"}
    finally:
        clock.release()
        torch.cuda.empty_cache()


def head(row: Row, subject: str, pass_: str) -> dict[str, Any]:
    """Give the fields that identify an object of the file."""
    return {"row": row.name, "gate": row.gate, "shape": row.shape, "subject": subject, "pass": pass_}


def known(file: Path) -> list[dict[str, Any]]:
    """Read the objects of a file; none if it is not there."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def append(file: Path, found: Mapping[str, Any]) -> None:
    with file.open("a") as stream:
        stream.write(json.dumps(found) + "\n")


def environment() -> dict[str, str]:
    import triton

    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}


def run(rows: Sequence[Row], file: Path, subjects: Sequence[str], minutes: float) -> None:
    """Time the subjects that the file lacks, until the time is over."""
    end = time.monotonic() + 60 * minutes
    done = {
        tuple(each.get(key) for key in ("row", "shape", "subject", "pass"))
        for each in known(file)
        if "empty caches" not in each
    }
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        clock = GraphClock("cuda", flusher("cuda", "cold").flush)
        for row in rows:
            for pass_ in row.passes:
                for subject in row.subjects:
                    about = head(row, subject, pass_)
                    if subjects and subject not in subjects:
                        continue
                    if (row.name, row.shape, subject, pass_) in done:
                        continue
                    if time.monotonic() > end:
                        print("the time is over", flush=True)
                        return
                    began = time.monotonic()
                    found = attempted(row, subject, pass_, clock)
                    append(
                        file, about | environment() | found | {"spent_s": round(time.monotonic() - began, 1)}
                    )
                    said = found.get("failed") or f"{found['us']:.1f} us"
                    print(f"{row.name} {row.shape} {pass_} {subject}: {said}", flush=True)


def compiled(rows: Sequence[Row], subjects: Sequence[str], jobs: int) -> None:
    """Run every peer's calls once, in processes side by side, to fill the caches of their compilers.

    Timings of a peer's configurations beside other work are not kept. Some of fla's forward
    kernels choose again for each number of heads; for its other kernels a process compiles only the winner.
    """
    kinds: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        for subject in row.subjects:
            if subject != OURS and (not subjects or subject in subjects):
                for pass_ in row.passes:
                    heads = row.H if pass_ == "inference" else 0
                    kinds.setdefault((heads, row.gate, row.K, row.V, row.T == 1, subject, pass_), row)

    def once(kind: tuple[Any, ...]) -> str:
        row, subject, pass_ = kinds[kind], kind[-2], kind[-1]
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, str(Path(folder) / "out"), "--exact", row.name, row.shape]
            options = ["--subject", subject, "--pass", pass_]
            variables = os.environ | {"FLA_CACHE_RESULTS": "0"}
            done = subprocess.run([*command, *options], env=variables, capture_output=True, timeout=TIMEOUT_S)
        said = "compiled" if not done.returncode else done.stderr.decode()[-200:]
        return (
            f"{row.gate} K{row.K} V{row.V} {subject} {pass_}: {said} after {time.monotonic() - began:.0f} s"
        )

    with ThreadPoolExecutor(jobs) as pool:
        for text in pool.map(once, kinds):
            print(text, flush=True)


def first_calls(rows: Sequence[Row], file: Path, subjects: Sequence[str]) -> None:
    """Time the first call of each subject in a process of its own whose caches are empty."""
    for row in rows:
        for pass_ in row.passes:
            for subject in row.subjects:
                if subjects and subject not in subjects:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    out = Path(folder) / "out"
                    command = [sys.executable, __file__, str(out), "--exact", row.name, row.shape]
                    options = ["--subject", subject, "--pass", pass_, "--once"]
                    variables = os.environ | {"TRITON_CACHE_DIR": str(Path(folder) / "cache")}
                    subprocess.run([*command, *options], env=variables, check=True, timeout=TIMEOUT_S)
                    (found,) = known(out)
                append(file, found | {"empty caches": True})
                print(
                    f"{row.name} {pass_} {subject}: {found.get('first_s', found.get('failed'))} s", flush=True
                )


def once(row: Row, subject: str, pass_: str) -> dict[str, Any]:
    """Make the first call of a process. Its time is without the start of CUDA, of operands and of autograd.

    The first gradient in a process imports more of torch, whatever it is of; sympy is a second of that.
    """
    given = operands(row, "cuda")
    warm_up("cuda")
    if subject != XL_CHUNK:
        registry.backend("linear_attention", subject)  # imports it
    began = time.perf_counter()
    try:
        call_of(subject, given, pass_)()
        torch.cuda.synchronize()
    except Exception as problem:  # a peer may raise anything; the row says what
        return {"failed": f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"}
    return {"first_s": round(time.perf_counter() - began, 2)}


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Draw a line per row and pass: our time, and each peer's with its ratio to ours."""
    timed = {(e["row"], e["shape"], e["pass"], e["subject"]): e for e in found if "empty caches" not in e}
    lines, worst = [], []
    for row, shape, pass_ in dict.fromkeys(key[:3] for key in timed):
        ours = timed.get((row, shape, pass_, OURS), {})
        text = f"{row:24} {shape:28} {pass_:10} {ours.get('us', ours.get('failed', '?'))!s:>9}"
        text += f" {ours.get('beyond_bytes', 0) / 2**20:6.0f} MiB"
        for (*place, subject), each in timed.items():
            if place == [row, shape, pass_] and subject != OURS:
                us = each.get("us")
                text += f"  {subject} {us or each.get('failed')}"
                if us and ours.get("us"):
                    text += f" ({us / ours['us']:.2f})"
                    worst.append((us / ours["us"], row, shape, pass_, subject))
        lines.append(text)
    behind = [each for each in sorted(worst) if each[0] < 1]
    lines.append(f"{len(behind)} of {len(worst)} behind a peer")
    lines += [f"  {ratio:.2f} {' '.join(names)}" for ratio, *names in behind]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT.jsonl")
    parser.add_argument("--rows", default="*", metavar="PATTERN", help="names of rows, such as 'few-*'")
    parser.add_argument("--subject", action="append", default=[], help="only this backend; may be repeated")
    parser.add_argument("--minutes", type=float, default=1e6, help="start no row after so many")
    parser.add_argument("--compile", action="store_true", help="fill the caches of the peers' compilers")
    parser.add_argument("--jobs", type=int, default=8, help="processes of --compile")
    parser.add_argument("--first", action="store_true", help="time first calls instead")
    parser.add_argument(
        "--table", action="store_true", help="print the ratios of the file, and measure nothing"
    )
    parser.add_argument("--exact", nargs=2, metavar=("ROW", "SHAPE"), help="one row, once, in this process")
    parser.add_argument("--pass", dest="pass_", choices=PASSES, default=None, help="of --exact")
    parser.add_argument("--once", action="store_true", help="of --exact: time the first call alone")
    options = parser.parse_args(arguments)
    if options.table:
        print(table(known(options.out)))
        return 0
    rows = [row for row in ROWS if fnmatch.fnmatch(row.name, options.rows)]
    if not rows:
        parser.error(
            f"no row is called {options.rows!r} (there are {', '.join(sorted({r.name for r in ROWS}))})"
        )
    if not torch.cuda.is_available():
        print("no CUDA device here", file=sys.stderr)
        return 2
    if options.exact:
        row = next(each for each in ROWS if [each.name, each.shape] == options.exact)
        (subject,) = options.subject
        append(
            options.out, head(row, subject, options.pass_) | environment() | once(row, subject, options.pass_)
        )
    elif options.compile:
        compiled(rows, options.subject, options.jobs)
    elif options.first:
        first_calls(rows, options.out, options.subject)
    else:
        run(rows, options.out, options.subject, options.minutes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
