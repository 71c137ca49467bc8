"""Made-up runs for the reports, as a store would load them, without running anything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ssmperf import Case, Record, Shape, Status
from ssmperf.engine.machine.environment import places
from ssmperf.suitekit import Chart, Section

BACKENDS = ("sequential", "blelloch", "hillis_steele", "chunkwise", "logspace", "surrogate_softmax", "fft",
            "torch_scan", "triton")  # fmt: skip
MODELS = ("gateloop", "gla", "hgrn", "hgrn2", "linear_transformer", "longhorn", "lru", "mamba", "mamba2",
          "mingru", "retnet", "rg_lru", "rwkv6", "s4d_lin", "s5", "tnl")  # fmt: skip

THROUGHPUT = Section(
    title="Throughput",
    question="How long does each backend take, and what fraction of the device's limits does it reach?",
    columns=("latency_s", "tokens_per_s", "copy_fraction", "limit", "limit_fraction", "peak_bytes"),
    rank="latency_s",
    charts=(Chart(x="T", y="latency_s", title="Time against length"),),
)
CORRECTNESS = Section(
    title="Correctness",
    question="Does each backend agree with the float64 definition, within a tolerance that was derived?",
    columns=("error_output", "error_final_state", "error_gradients"),
)


@dataclass
class FakeRun:
    records: list[Record]
    path: Path = Path("runs/20260101T120000-fake")
    meta: dict[str, Any] = field(default_factory=dict)
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def places(self) -> dict[str, str]:
        return places(self.environments)


def make_case(**changes: Any) -> Case:
    shape = changes.pop("shape", {"B": 2, "T": 1024, "C": 64})
    fields = {
        "suite": "throughput",
        "recurrence": "scan",
        "model": "mingru",
        "backend": "sequential",
    } | changes
    return Case(shape=Shape(shape), **fields)


def timed(latency: float, **changes: Any) -> Record:
    """Make an `ok` record of a case with that time."""
    numbers = changes.pop("numbers", {})
    numbers = {
        "latency_s": latency,
        "latency_low_s": latency * 0.99,
        "latency_high_s": latency * 1.02,
    } | numbers
    return Record(make_case(**changes), Status.OK, env_id="env1", numbers=numbers)


def failed(status: str, reason: str, **changes: Any) -> Record:
    return Record(make_case(**changes), Status(status), reason, env_id="env1")


def make_run(records: Sequence[Record], **fields: Any) -> FakeRun:
    meta = {
        "schema_version": 1,
        "created": "2026-01-01T12:00:00+00:00",
        "command": "ssmperf run --suite throughput,correctness --tag nightly",
        "argv": ["run", "--suite", "throughput,correctness"],
        "suites": {"throughput": THROUGHPUT.to_json(), "correctness": CORRECTNESS.to_json()},
        "plan": {"cases": len(records)},
    } | fields.pop("meta", {})
    environment = {
        "device": "cuda:0",
        "hardware": {
            "cpu": {"model": "Example CPU 9000", "cores": 16, "memory_bytes": 64 * 1024**3},
            "gpu": {"name": "Example GPU", "uuid": "GPU-0", "memory_bytes": 80 * 1024**3},
        },
        "driver": "600.10",
        "versions": {"python": "3.11.9", "torch": "2.13.0", "triton": "3.6.0"},
        "git": {"commit": "c3e85d8a", "dirty": False},
        "ceilings": {
            "copy_bytes_per_s": 3.9e12,
            "matmul_flops_per_s": {"float32": 4.5e13, "bfloat16": 6.8e14},
        },
    }
    return FakeRun(
        list(records), meta=meta, environments=fields.pop("environments", {"env1": environment}), **fields
    )


def plausible_run(
    models: Sequence[str] = MODELS,
    backends: Sequence[str] = BACKENDS,
    lengths: Sequence[int] = (1024, 4096, 16384),
    passes: Sequence[str] = ("forward", "forward_backward"),
    samples: int = 60,
) -> FakeRun:
    """Make a run like one of a GPU: two suites, every status, some intervals that did not settle."""
    chance = random.Random(7)
    records: list[Record] = []
    for model in models:
        speed = {name: chance.uniform(4, 40) for name in backends}
        for length in lengths:
            for pass_ in passes:
                for name in backends:
                    place = {"model": model, "backend": name, "pass_": pass_, "device": "cuda",
                             "shape": {"B": 8, "T": length, "C": 1024}, "dtype": "bfloat16"}  # fmt: skip
                    records.append(_plausible(chance, place, speed[name], length, samples))
        for name in backends:
            for dtype in ("float32", "bfloat16"):
                place = {"suite": "correctness", "model": model, "backend": name, "dtype": dtype,
                         "pass_": "forward_backward", "device": "cuda",
                         "shape": {"B": 2, "T": 129, "C": 32}}  # fmt: skip
                records.append(_plausible_error(chance, place))
    return make_run(records)


def _refusal(place: dict[str, Any]) -> Record | None:
    if place["backend"] == "fft" and place["model"] not in ("s4d_lin", "s5", "lru", "tnl", "retnet"):
        return failed("unsupported", "fft: gates that depend on data have no convolution form", **place)
    if place["backend"] == "torch_scan" and place["pass_"] == "forward_backward":
        return failed("unsupported", "associative_scan has no backward here", **place)
    return None


def _plausible(
    chance: random.Random, place: dict[str, Any], speed: float, length: int, samples: int
) -> Record:
    refused = _refusal(place)
    if refused:
        return refused
    if place["backend"] == "hillis_steele" and length > 8192 and place["pass_"] != "forward":
        return failed("oom", "CUDA out of memory: tried to allocate 96.0 GiB", **place)
    if place["model"] == "longhorn" and place["backend"] == "logspace":
        return failed("nan", "output is NaN at (0, 517, 3)", **place)
    if place["model"] == "rwkv6" and place["backend"] == "chunkwise":
        return failed("wrong", "gradient of log_a: error 3.1e-02, tolerance 4.0e-03", **place)
    cost = 3e-8 * length * (3 if place["pass_"] != "forward" else 1)
    time = 40 * cost if place["backend"] == "sequential" else cost * 40 / speed + 2e-5
    time *= chance.uniform(0.9, 1.1)
    tokens = 8 * length
    series = [time * chance.lognormvariate(0, 0.01) for _ in range(samples)]
    numbers = {
        "latency_low_s": time * 0.995, "latency_high_s": time * 1.006, "quartile_low_s": time * 0.99,
        "quartile_high_s": time * 1.02, "samples": samples, "samples_s": series,
        "converged": chance.random() > 0.03, "clock": "device_events", "wall_latency_s": time * 1.05,
        "first_call_s": 0.8, "tokens_per_s": tokens / time,
        "copy_fraction": min(0.95, 2e-5 / time * length / 1024),
        "limit": "bytes", "limit_fraction": min(0.9, 1.8e-5 / time * length / 1024),
        "peak_bytes": tokens * 1024 * 6, "least_bytes": tokens * 1024 * 6, "flops": tokens * 2048.0,
        "kernels": [f"{place['backend']}_kernel"],
        "errors": {"output": 2e-3, "final_state": 1e-4}, "tolerances": {"output": 8e-3, "final_state": 8e-3},
        "command": f"ssmperf run --suite throughput --models {place['model']} --backends {place['backend']}",
    }  # fmt: skip
    return timed(time, **place, numbers=numbers)


def _plausible_error(chance: random.Random, place: dict[str, Any]) -> Record:
    refused = _refusal(place)
    if refused:
        return refused
    size = 1e-6 if place["dtype"] == "float32" else 4e-3
    errors = {name: size * 10 ** chance.uniform(-2, 0.2) for name in ("output", "final_state", "log_a", "b")}
    tolerances = dict.fromkeys(errors, 2 * size)
    numbers = {"error_output": errors["output"], "error_final_state": errors["final_state"],
               "error_gradients": max(errors["log_a"], errors["b"]), "errors": errors,
               "tolerances": tolerances, "decay_span": 12.5}  # fmt: skip
    if place["model"] == "rwkv6" and place["backend"] == "chunkwise":
        errors["log_a"] = 40 * size
        return Record(
            make_case(**place), Status.WRONG, "gradient of log_a: error above tolerance", "env1", numbers
        )
    return Record(make_case(**place), Status.OK, env_id="env1", numbers=numbers)


class Fake:
    """The functions above, in one fixture."""

    run = staticmethod(make_run)
    timed = staticmethod(timed)
    failed = staticmethod(failed)
    case = staticmethod(make_case)
    plausible = staticmethod(plausible_run)


@pytest.fixture
def fake() -> Fake:
    return Fake()
