"""Error rates of `ssmperf history`, by simulation through the functions that find steps and creeps.

    python tests/proofs/simulate_history.py                    all rows, hours on one core
    python tests/proofs/simulate_history.py --noise normal --histories 20
    python tests/proofs/simulate_history.py --out FILE         write the rows as JSON, too
    python tests/proofs/simulate_history.py --read FILE        print the table of what was written

A history is 30 runs of 20 cases, in five of which a step is planted, up or down, with at least four runs on
either side. Noise is that between runs; ±1 % is its standard deviation, or for heavy tails 1.48 times its
median deviation. Counted are

- alarms: histories without any change in which some step is reported, and in which the cumulative alarm is
  raised, once over all runs (`creep`) and in any look since the tenth run (`nightly`);
- found: planted steps of a size that are reported at most one run beside their place, as the only step of
  their case; extra: histories in which any other step is reported;
- creep found: cases that creep by 0.5 % per run, beside 19 others, for which the alarm is raised by the tenth
  and by the twelfth run.

Exits 3 where false steps or alarms are more than the level of the tests explains, for noise whose runs can be
exchanged: all kinds but `sticky`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from scipy.stats import binom  # noqa: E402

from ssmperf.comparison.trends.creep import LEAST_RUNS, find_creeps  # noqa: E402
from ssmperf.comparison.trends.creep import SIGNIFICANCE as CREEP_LEVEL  # noqa: E402
from ssmperf.comparison.trends.noise import SharedNoise, Shuffles  # noqa: E402
from ssmperf.comparison.trends.steps import SIGNIFICANCE as STEP_LEVEL  # noqa: E402
from ssmperf.comparison.trends.steps import ChangePoint, find_changes  # noqa: E402

Array = npt.NDArray[np.float64]
Random = np.random.Generator
Draw = Callable[[Random, int, int], Array]  # cases and runs -> log times without a change

CASES, RUNS, PLANTED = 20, 30, 5
FIRST, LAST = 4, 26  # places of planted steps
THRESHOLD = 0.05
SIZES = (0.03, 0.05, 0.07, 0.10)
CREEP = 0.005  # per run
HISTORIES = 100  # per row
LUCK = 1e-3  # probability of so many false steps or alarms at their level, below which the promise is broken


def normal(scale: float) -> Draw:
    return lambda random, cases, runs: random.normal(0, scale, (cases, runs))


def even(random: Random, cases: int, runs: int) -> Array:
    """All values within ±1 % are equally likely."""
    return random.uniform(-0.01, 0.01, (cases, runs))


def heavy(random: Random, cases: int, runs: int) -> Array:
    """Student's distribution with 3 degrees of freedom, with the median deviation of ±1 %."""
    return 0.01 * random.standard_t(3, (cases, runs)) / 1.134


def common(random: Random, cases: int, runs: int) -> Array:
    """Half of the variance is that of a run, the same for all of its cases."""
    return normal(0.00707)(random, cases, runs) + normal(0.00707)(random, 1, runs)


def odd_runs(random: Random, cases: int, runs: int) -> Array:
    """One value in ten has four times the spread."""
    return normal(0.01)(random, cases, runs) * np.where(random.random((cases, runs)) < 0.1, 4, 1)


def unequal(random: Random, cases: int, runs: int) -> Array:
    """Spreads between ±0.2 and ±4 %, by case."""
    spreads = np.exp(random.uniform(math.log(0.002), math.log(0.04), (cases, 1)))
    return normal(1.0)(random, cases, runs) * spreads


def sticky(random: Random, cases: int, runs: int) -> Array:
    """Two states 2 % apart, each kept for ten runs on average."""
    switches = random.random((cases, runs)) < 0.1
    return 0.02 * (np.cumsum(switches, axis=1) % 2) + normal(0.003)(random, cases, runs)


NOISE: dict[str, tuple[str, Draw]] = {
    "normal": ("±1 %", normal(0.01)),
    "even": ("at most 1 %", even),
    "common": ("±1 %, half of it common to all cases", common),
    "heavy": ("heavy tails, scale 1 %", heavy),
    "odd": ("±1 %, one value in ten ±4 %", odd_runs),
    "wide": ("±3 %", normal(0.03)),
    "unequal": ("±0.2 to 4 %, by case", unequal),
    "sticky": ("two states 2 % apart, ten runs each", sticky),
}


@dataclass
class Row:
    """Counts of one kind of noise; `found` and `extra` are shares by the size of the planted steps."""

    title: str
    histories: int
    steps: float = 0.0
    creep: float = 0.0
    nightly: float = 0.0
    tenth: float = 0.0
    twelfth: float = 0.0
    found: dict[str, float] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)


def steps_of(logs: Array) -> tuple[list[list[ChangePoint]], list[list[ChangePoint]], SharedNoise]:
    """Give the steps of each case that are reported, all that were found, and the noise."""
    numbers = [np.arange(logs.shape[1])] * len(logs)
    found = find_changes(list(logs), numbers, Shuffles(logs.shape[1]))
    reported = [
        [step for step in steps if step.reaches(THRESHOLD) and not step.creeps] for steps in found.changes
    ]
    return reported, found.changes, found.noise


def alarms_of(logs: Array) -> set[int]:
    """Give the cases for which the cumulative alarm is raised, against the first run after the last step."""
    reported, changes, noise = steps_of(logs)
    found = find_creeps(
        list(logs),
        [np.arange(logs.shape[1])] * len(logs),
        [steps[-1].position if steps else 0 for steps in reported],
        [[change.position for change in each] for each in changes],
        noise,
        Shuffles(logs.shape[1]),
        THRESHOLD,
    )
    return {case for case, creep in enumerate(found) if creep}


def planted(draw: Draw, random: Random, size: float) -> tuple[Array, list[int]]:
    """Make a history with steps in its first cases, and give their places."""
    logs = draw(random, CASES, RUNS)
    places = random.integers(FIRST, LAST + 1, PLANTED)
    for case, place in enumerate(places):
        logs[case, place:] += random.choice((-1, 1)) * math.log1p(size)
    return logs, [int(place) for place in places]


def measure(title: str, draw: Draw, histories: int, sizes: Sequence[float] = SIZES) -> Row:
    row = Row(title, histories)
    looks = max(1, histories // 4)
    for seed in range(histories):
        logs = draw(np.random.default_rng((seed, 0)), CASES, RUNS)
        row.steps += any(steps_of(logs)[0]) / histories
        row.creep += bool(alarms_of(logs)) / histories
        if seed < looks:
            row.nightly += any(alarms_of(logs[:, :runs]) for runs in range(LEAST_RUNS, RUNS + 1)) / looks
        logs = draw(np.random.default_rng((seed, 1)), CASES, 12)
        logs[0] += CREEP * np.arange(12)
        seen = [0 in alarms_of(logs[:, :runs]) for runs in (10, 11, 12)]
        row.tenth += seen[0] / histories
        row.twelfth += any(seen) / histories
        for size in sizes:
            logs, places = planted(draw, np.random.default_rng((seed, 2)), size)
            found = steps_of(logs)[0]
            right = [
                len(found[case]) == 1 and abs(found[case][0].position - place) <= 1
                for case, place in enumerate(places)
            ]
            name = percent(size)
            row.found[name] = row.found.get(name, 0.0) + sum(right) / PLANTED / histories
            others = any(
                abs(step.position - places[case]) > 1 if case < PLANTED else True
                for case, steps in enumerate(found)
                for step in steps
            )
            row.extra[name] = row.extra.get(name, 0.0) + others / histories
    return row


def percent(size: float) -> str:
    return f"{100 * size:g}"


def as_text(rows: Sequence[Row]) -> str:
    """Write the rows as a Markdown table."""
    sizes = list(map(percent, SIZES))
    heads = ["noise between runs", "false steps", *(f"finds {size} %" for size in sizes), "extra steps"]
    heads += ["false alarm", "nightly", "creep by 10th", "by 12th"]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for row in rows:
        shares = [row.steps, *(row.found[size] for size in sizes), row.extra[percent(THRESHOLD)]]
        shares += [row.creep, row.nightly, row.tenth, row.twelfth]
        lines.append([row.title, *(f"{100 * share:.1f} %" for share in shares)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def broken(rows: Sequence[Row]) -> list[str]:
    """List the promises about false steps and alarms that rows of exchangeable noise break."""
    found = []
    for row in rows:
        for name, share, level in (
            ("false steps", row.steps, STEP_LEVEL),
            ("false alarms", row.creep, CREEP_LEVEL),
        ):
            count = round(share * row.histories)
            if row.title != NOISE["sticky"][0] and binom.sf(count - 1, row.histories, level) < LUCK:
                found.append(
                    f"{row.title}: {count} {name} in {row.histories} histories, promised {level:.0%}"
                )
    return found


def read(file: Path) -> list[Row]:
    """Read the rows that an earlier simulation wrote."""
    return [Row(**each) for each in json.loads(file.read_text())["rows"]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--noise", choices=NOISE, action="append", help="default: all")
    parser.add_argument("--histories", type=int, default=HISTORIES, help="per row")
    parser.add_argument("--out", type=Path, help="file for the rows as JSON")
    parser.add_argument("--read", type=Path, help="file of an earlier simulation: simulate nothing")
    given = parser.parse_args(arguments)
    if given.histories < 1:
        parser.error("--histories must be at least 1")
    if given.read:
        rows = read(given.read)
    else:
        rows = []
        for name in given.noise or NOISE:
            rows.append(measure(*NOISE[name], given.histories))
            print(f"{name}: {rows[-1]}", file=sys.stderr, flush=True)
    if given.out:
        options = sys.argv[1:] if arguments is None else arguments
        words = ["python", "tests/proofs/simulate_history.py", *options]
        document = {"command": shlex.join(words), "rows": [dataclasses.asdict(row) for row in rows]}
        given.out.write_text(json.dumps(document, indent=1) + "\n")
    print(as_text(rows))
    problems = broken(rows)
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 3 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
