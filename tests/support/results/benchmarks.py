"""Files as pytest-benchmark writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HOSTILE = "<script>alert(1)</script>"


def benchmark(name: str, median_s: float, *, group: str | None = None, **changed: Any) -> dict[str, Any]:
    """A benchmark as pytest-benchmark writes it, with 21 samples around a median."""
    data = [median_s * (1 + (place - 10) * 1e-5) for place in range(21)]
    stats = {
        "min": data[0], "max": data[-1], "mean": median_s, "stddev": 0.0, "rounds": 21, "median": median_s,
        "iqr": data[15] - data[5], "q1": data[5], "q3": data[15], "iqr_outliers": 0, "stddev_outliers": 0,
        "outliers": "0;0", "ld15iqr": data[0], "hd15iqr": data[-1], "ops": 1 / median_s if median_s else 0,
        "total": sum(data), "data": data, "iterations": 3,
    }  # fmt: skip
    return {
        "group": group,
        "name": name,
        "fullname": f"test_it.py::{name}",
        "params": {"T": 4096},
        "param": "4096",
        "extra_info": {"note": HOSTILE},
        "options": {"timer": "perf_counter", "min_rounds": 5},
        "stats": stats,
    } | changed


def document(*benchmarks: dict[str, Any], cpu: str = "A CPU") -> dict[str, Any]:
    return {
        "machine_info": {
            "node": "here", "machine": "x86_64", "python_version": "3.12.1", "release": "6.1",
            "cpu": {"brand_raw": cpu, "count": 8},
        },
        "commit_info": {"id": "abcdef", "dirty": False, "branch": HOSTILE},
        "benchmarks": list(benchmarks),
        "datetime": "2026-01-01T00:00:00+00:00",
        "version": "5.2.3",
    }  # fmt: skip


def write(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path
