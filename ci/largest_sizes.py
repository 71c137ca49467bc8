"""Try directly the largest lengths that the memory suite found, each in a process of its own.

    ssmperf run --suite memory --device cuda --out RUN
    python ci/largest_sizes.py RUN OUT.json                     20 pairs of model and backend
    python ci/largest_sizes.py RUN OUT.json --pairs 5 --dimension B

The suite searches by bisection in a process that has run other sizes. Here a fresh process goes up in steps
of an eighth of the size that was found, from three steps below it, until a call runs out of memory. They
agree if the last size that ran lies within one step of what was found. Backends that take powers of two alone
are tried at the size that was found, and at its double.

Exits 1 where a pair does not agree, 2 where the run has none to try.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from ssmperf import Case  # noqa: E402
from ssmperf.runs import store  # noqa: E402

STEPS_BELOW, MOST_STEPS = 3, 8
GRID = 8  # of the suite: its sizes are known to one part in so many
SMALL = 64  # steps (or, of a batch, 1) that are drawn and repeated


def main() -> int:
    """Try the pairs one after another, and write the result of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--dimension", choices=("T", "B"), default="T")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of pairs")
    chosen = parser.parse_args()
    run = store.load(chosen.run)
    records = pairs([each.to_json() for each in run.records], chosen.dimension, chosen.pairs, chosen.seed)
    if not records:
        print(f"{chosen.run} has no record with a largest {chosen.dimension} that was searched")
        return 2
    found = []
    for record in records:
        # a process for each: memory that one leaves behind is none that the next lacks
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            ceilings = run.meta["environments"][record["env_id"]]["ceilings"]
            found.append(pool.submit(tried, record, chosen.dimension, ceilings).result())
        print(json.dumps(found[-1]), flush=True)
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    agreeing = sum(each["agrees"] for each in found)
    print(f"{agreeing} of {len(found)} within one step of a direct trial")
    return 0 if agreeing == len(found) else 1


def pairs(
    records: Sequence[Mapping[str, Any]], dimension: str, count: int, seed: int
) -> list[Mapping[str, Any]]:
    """Choose records at random whose search ended by itself: a size that ran, and one that did not."""
    ended = [
        record
        for record in records
        if record.get(f"largest_{dimension}")
        and record.get(f"least_failed_{dimension}")
        and not record.get(f"largest_{dimension}_reason")
    ]
    return random.Random(seed).sample(ended, min(count, len(ended)))


def tried(record: Mapping[str, Any], dimension: str, ceilings: Mapping[str, Any]) -> dict[str, Any]:
    """Try sizes of one record's case, going up; in a fresh process."""
    import torch
    from ssmperf.suites.largest_size import run_at

    from ssmperf.execute.context import Context, Settings
    from ssmperf.machine.ceilings import Ceilings

    case = Case.from_json(record)
    context = Context(case.device, "direct", Settings(), Ceilings.from_json(ceilings))
    doubling = dimension == "T" and context.backend(case).lengths is not None
    run = run_at(case, context, dimension, SMALL if dimension == "T" else 1)

    def fits(size: int) -> bool:
        torch.cuda.empty_cache()
        try:
            run(size)
        except torch.OutOfMemoryError:
            return False
        return True

    searched = int(record[f"largest_{dimension}"])
    last, failed = climb(fits, sizes(searched, doubling=doubling))
    return {
        "model": record["model"],
        "backend": record["backend"],
        "shape": record["shape"],
        f"largest_{dimension}": searched,
        "ran": last,
        "failed": failed,
        "agrees": agree(searched, last, doubling=doubling),
    }


def climb(fits: Callable[[int], bool], sizes: Iterable[int]) -> tuple[int | None, int | None]:
    """Go up; give the last size that fits and the first that does not."""
    last = None
    for size in sizes:
        if not fits(size):
            return last, size
        last = size
    return last, None


def sizes(searched: int, *, doubling: bool = False) -> list[int]:
    """List the sizes to try, in steps of an eighth of the searched one."""
    if doubling:
        return [searched, 2 * searched]
    step = max(1, searched // GRID)
    steps = (searched + number * step for number in range(-STEPS_BELOW, MOST_STEPS))
    return [size for size in steps if size > 0]


def agree(searched: int, last: int | None, *, doubling: bool = False) -> bool:
    """Tell whether the last size that ran lies within one step of the searched one."""
    step = 0 if doubling else max(1, searched // GRID)
    return last is not None and abs(last - searched) <= step


if __name__ == "__main__":
    sys.exit(main())
