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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

import ssmperf  # noqa: E402
from ssmperf import registry  # noqa: E402
from ssmperf.machine.cache import flusher  # noqa: E402
from ssmperf.measure.device_clocks import EventClock, GraphClock  # noqa: E402

SAMPLES = 15
WARM_UPS = 3
TIMEOUT_S = 500
PASSES = ("inference", "training")
OURS, FLA, SSD, MLSTM = "triton", "fla_triton", "mamba_ssd", "mlstm_kernels"
XL_CHUNK = "mlstm xl_chunk"  # its form with exponential gates is no case of the recurrence's signature

Given = Mapping[str, Any]
Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A shape and gate to time. subjects: backends of linear_attention, or XL_CHUNK."""

    name: str
    gate: str
    B: int
    T: int
    H: int
    K: int
    V: int
    subjects: tuple[str, ...] = (OURS,)
    passes: tuple[str, ...] = PASSES

    @property
    def shape(self) -> str:
        return f"B{self.B} T{self.T} H{self.H} K{self.K} V{self.V}"


def few_heads() -> Iterator[Row]:
    """List lengths from 512 to 131,072 for few and many heads, at 16 K and 128 K tokens."""
    for H, D in ((1, 128), (4, 128), (16, 128), (64, 128), (16, 64)):
        for tokens in (1 << 14, 1 << 17):
            for T in (1 << power for power in range(9, 18, 2)):
                if tokens < T or tokens * H * D > 1 << 30:
                    continue
                for gate in ("key", "scalar"):
                    yield Row(
                        f"few-{gate}-H{H}-D{D}-{tokens >> 10}K", gate, tokens // T, T, H, D, D, (OURS, FLA)
                    )


def main_rows() -> Iterator[Row]:
    """List the rows of the table in docs/kernels/linear_attention.md."""
    first = (4, 4096, 16, 128, 128)
    yield Row("key", "key", *first, (OURS, FLA))
    yield Row("scalar", "scalar", *first, (OURS, FLA, MLSTM))
    yield Row("const", "const", *first, (OURS, FLA))
    yield Row("none", "none", *first, (OURS, FLA))
    yield Row("complex", "complex", *first)
    yield Row("both", "both", *first)
    yield Row("mlstm", "scalar", 4, 4096, 16, 128, 129, (OURS, XL_CHUNK))
    yield Row("ssd", "scalar", 8, 2048, 32, 128, 64, (OURS, SSD))
    yield Row("ssd-shared", "shared", 8, 2048, 32, 128, 64, (OURS, SSD))
    yield Row("key-long", "key", 1, 65536, 16, 128, 128, (OURS, FLA))
    yield Row("scalar-long", "scalar", 1, 65536, 16, 128, 128, (OURS, FLA))
    for gate in ("key", "scalar"):  # of fla the pass that it compiles in less than minutes
        yield Row(f"{gate}-odd", gate, 3, 5003, 5, 80, 112, (OURS, FLA), ("inference",))
        yield Row(f"{gate}-odd", gate, 3, 5003, 5, 80, 112, passes=("training",))
    yield Row("key-43884", "key", 1, 43884, 8, 128, 128, (OURS, FLA))
    for gate in ("key", "scalar", "none"):
        yield Row(f"decode-{gate}", gate, 64, 1, 16, 128, 128, (OURS, "fla_recurrent"), ("inference",))


ROWS = (*main_rows(), *few_heads())


def operands(row: Row, device: str) -> dict[str, Tensor]:
    """Draw the operands of a row."""
    B, T, H, K, V = row.B, row.T, row.H, row.K, row.V
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16, generator=generator)

    def gates(*shape: int) -> Tensor:
        drawn = torch.randn(shape, device=device, generator=generator)
        return functional.logsigmoid(drawn) / 16

    found = {"q": normal(B, T, H, K), "k": normal(B, T, H, K), "v": normal(B, T, H, V)}
    if row.gate == "shared":
        found |= {name: normal(B, T, 1, K) for name in "qk"}
    if V % 2:
        found["v"][..., -1] = 1  # the column of the normaliser
    shapes = {"key": (B, T, H, K), "complex": (B, T, H, K), "both": (B, T, H, K), "const": (H,), "none": None}
    shape = shapes.get(row.gate, (B, T, H))
    if shape is not None:
        found["log_a"] = gates(*shape)
    if row.gate == "complex":
        found["phase"] = torch.randn(B, T, H, K, device=device, generator=generator)
    if row.gate == "both":
        found["log_b"] = gates(B, T, H, V)
    if T == 1:
        found["initial_state"] = torch.randn(B, H, K, V, device=device, generator=generator)
    return found


def function_of(subject: str, given: Given) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Find what a subject calls, and with which operands, in its own layout."""
    if subject == XL_CHUNK:
        return _xl_chunk(given)
    entry = registry.backend("linear_attention", subject)
    if reason := entry.missing("cuda"):
        raise ssmperf.Unsupported(reason)
    if entry.prepare is None:
        return entry.function, dict(given)
    assert entry.native is not None
    native, prepared = entry.native, entry.prepare(**given)
    return lambda **named: native(*named.values()), {
        str(place): operand for place, operand in enumerate(prepared.operands)
    }


def _xl_chunk(given: Given) -> tuple[Callable[..., Any], dict[str, Any]]:
    """mLSTM with exponential input gates and its normaliser, without the column of ones."""
    from mlstm_kernels.torch.chunkwise import mlstm_chunkwise__xl_chunk

    q, k, v = (given[name].transpose(1, 2).contiguous() for name in "qkv")
    forget = given["log_a"].mT.contiguous()
    opened = torch.zeros_like(forget)

    def call(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Any:
        return mlstm_chunkwise__xl_chunk(
            q, k, v, i, f, return_last_states=True, chunk_size=256, autocast_kernel_dtype=torch.bfloat16
        )

    return call, {"q": q, "k": k, "v": v[..., :-1].contiguous(), "i": opened, "f": forget}


def call_of(subject: str, given: Given, pass_: str) -> Call:
    """Build the call to time."""
    if pass_ == "inference":
        with torch.no_grad():
            function, named = function_of(subject, given)

        def infer() -> Any:
            with torch.no_grad():
                return function(**named)

        return infer
    leaves = {
        name: x.detach().requires_grad_() if x.is_floating_point() and x.dim() > 1 else x
        for name, x in given.items()
    }
    function, named = function_of(subject, leaves)
    named = {
        name: x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
        for name, x in named.items()
    }
    wanted = [x for x in named.values() if isinstance(x, Tensor) and x.requires_grad]
    cotangents: list[Tensor] = []  # made in the first call, which so compiles nothing but its own kernels

    def train() -> Any:
        output = tensors(function(**named))[0]
        if not cotangents:
            cotangents.append(torch.randn_like(output))
        return torch.autograd.grad(output, wanted, cotangents[0], allow_unused=True)

    return train


def tensors(result: Any) -> list[Tensor]:
    """List the tensors of a result, those of tuples inside it included."""
    if isinstance(result, Tensor):
        return [result]
    return [x for each in result if each is not None for x in tensors(each)]


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
    """Say what an object of the file is about."""
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
    """Time what the file does not have yet, until the time is over."""
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

    What a peer finds by timing its configurations beside other work is not kept.
    """
    kinds: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        for subject in row.subjects:
            if subject != OURS and (not subjects or subject in subjects):
                for pass_ in row.passes:
                    kinds.setdefault((row.gate, row.K, row.V, row.T == 1, subject, pass_), row)

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
    """Make the first call of a process; its time is without that of drawing operands and of starting CUDA."""
    given = operands(row, "cuda")
    torch.matmul(given["q"][0, :1, 0], given["q"][0, :1, 0].mT)
    torch.cuda.synchronize()
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
