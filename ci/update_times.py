"""Time updates of the networks that claims train, by their CUDA graphs, alone and six side by side; on a GPU.

    python ci/update_times.py OUT.jsonl                 all networks
    python ci/update_times.py OUT.jsonl hgrn2 gateloop  some

A line per network: milliseconds of an update alone (`alone_ms`), of its graph (`replay_ms`), and of a sixth
of six networks' on six streams (`streams_ms`); those that the host takes; and the longest kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
from ssmperf.claims import (  # noqa: E402
    gateloop_fig6,
    hgrn2_fig3,
    lcsm_fig4,
    longhorn_fig1,
    longhorn_fig4,
)
from ssmperf.claims._learning import Plan, Variant, job_of  # noqa: E402

from ci.attention_times import kernels_of  # noqa: E402
from ssmperf import ClaimSetting, registry  # noqa: E402
from ssmperf.learn.data import TrainingRows  # noqa: E402
from ssmperf.learn.training import build  # noqa: E402
from ssmperf.learn.update import GraphUpdates, make_updates  # noqa: E402

COPIES, REPEATS, WARM_UP, LONGEST = 6, 40, 5, 10
SETTING = ClaimSetting(device="cuda:0")
SHORT = Plan("mqar", 64, 512, 3000, hgrn2_fig3.RATES)
SCANS, HEADS = longhorn_fig4.SCANS, longhorn_fig4.HEADS


def code(name: str) -> Variant:
    """A code of the LCSM grid in its claim's sizes."""
    return Variant(name, lcsm_fig4.sizes_of(name))


CODES = Plan("mqar", 64, lcsm_fig4.BATCH, lcsm_fig4.UPDATES, lcsm_fig4.RATES)
NETWORKS = {
    "hgrn2": (SHORT, hgrn2_fig3.VARIANTS["hgrn2"]),
    "hgrn": (SHORT, hgrn2_fig3.VARIANTS["hgrn"]),
    "longhorn": (SHORT, Variant("longhorn", SCANS)),
    "mamba256": (Plan("mqar", 256, 256, 3000, hgrn2_fig3.RATES), Variant("mamba", SCANS)),
    "deltanet": (SHORT, Variant("deltanet", HEADS)),
    "attention": (SHORT, Variant("attention", HEADS)),
    "lcsm11": (CODES, code(lcsm_fig4.COMPLEX)),
    "lcsm1": (CODES, code(lcsm_fig4.BASE)),
    "lcsm6": (CODES, code(lcsm_fig4.BY_KEY[0])),
    "gateloop": (gateloop_fig6.PLAN, Variant("gateloop", gateloop_fig6.CHANNELS, gateloop_fig6.HIDDEN)),
    "fig1-longhorn": (longhorn_fig1.PLAN, longhorn_fig1.VARIANTS["longhorn"]),
    "fig1-deltanet": (longhorn_fig1.PLAN, longhorn_fig1.VARIANTS["deltanet"]),
}


def main() -> None:
    """Time the networks, and write a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.networks) - set(NETWORKS))
    if unknown:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(NETWORKS)}")
    with chosen.out.open("w") as file:
        for name in chosen.networks or NETWORKS:
            row = timed(name, *NETWORKS[name])
            print(json.dumps(row), file=file, flush=True)
            print({key: value for key, value in row.items() if key != "top"}, flush=True)


def timed(name: str, plan: Plan, variant: Variant) -> dict[str, Any]:
    """Time the updates of one network."""
    job = job_of(variant, plan, SETTING)
    task = registry.task(job.task)
    rows = TrainingRows(task, job.draw, job.sizes["B"])
    batches = [rows.rows_of(number) for number in range(4)]
    networks = []
    for _ in range(COPIES):
        updates = make_updates(build(job, task), job.backend, job.device, decay=job.decay)
        assert isinstance(updates, GraphUpdates)
        for number in range(WARM_UP):
            updates(*batches[number % 4], 1e-3)
        networks.append(updates)
    first, streams = networks[0], [torch.cuda.Stream() for _ in networks]

    def update(number: int) -> None:
        first(*batches[number % 4], 1e-3)

    def update_all(number: int) -> None:
        for updates, stream in zip(networks, streams, strict=True):
            with torch.cuda.stream(stream):
                updates(*batches[number % 4], 1e-3)

    def replay(number: int) -> None:
        assert first._replay is not None, first.without_graph
        first._replay()

    alone, together = each_ms(update), each_ms(update_all)
    return {
        "name": name,
        "backend": job.backend,
        "alone_ms": alone[0],
        "alone_host_ms": alone[1],
        "replay_ms": each_ms(replay)[0],
        "streams_ms": together[0] / COPIES,
        "streams_host_ms": together[1] / COPIES,
        "top": sorted(kernels_of(lambda: replay(0)).items(), key=lambda each: -each[1][0])[:LONGEST],
    }


def each_ms(call: Callable[[int], None]) -> tuple[float, float]:
    """Call many times; give the milliseconds of a call, and those until the host was done with it."""
    call(0)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for number in range(REPEATS):
        call(number)
    host = time.perf_counter() - begin
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / REPEATS, 1e3 * host / REPEATS


if __name__ == "__main__":
    main()
