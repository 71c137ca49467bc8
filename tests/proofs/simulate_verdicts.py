"""Error rates of the verdicts on pairs, by simulation through the functions that `ab` decides with.

    python tests/proofs/simulate_verdicts.py              all rows, about a quarter of an hour on one core
    python tests/proofs/simulate_verdicts.py --noise 'two states*' --cases 6 --blocks 200
    python tests/proofs/simulate_verdicts.py --out FILE   write the rows as JSON
    python tests/proofs/simulate_verdicts.py --read FILE --figure FILE.svg --markdown
                                                          draw what an earlier simulation wrote

A block is one comparison of some cases. Noise is that of one process on top of what changes between
processes; a change is planted in a few cases: 1 of 6, 3 of 40, 10 of 300. A row counts

- alarms: blocks in which any case without a change is `slower`;
- power: the share of changed cases that are `slower`; where the change is `least`, each changed case has the
  least change that another comparison, with the same kind of noise, stated for it;
- screened, same: the shares of all cases and of unchanged cases; least: the median least change;
- old alarms and old power: those of one process per side, judged by the intervals of the two medians.

Bounds are exact 95 % intervals (Clopper and Pearson), with blocks as trials, since the cases of a block
depend on each other. A line is met or missed if the whole interval lies on one side of it, else open.

Exits 2 on wrong usage, 3 where a line is missed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import shlex
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402

from ssmperf.engine.measure import paired  # noqa: E402
from ssmperf.engine.measure.statistics import summarise  # noqa: E402

Array = npt.NDArray[np.float64]
Random = np.random.Generator
Draw = Callable[[int], Array]  # number of pairs -> log ratios without a change, (cases, pairs)
LEAST = "least"  # instead of a change: the least change of each case
SAMPLES = 40  # of one process, for the old rule
MOST_BLOCKS = 4000  # of a row: without a change, or of 6 cases
SIZES = {40: 2000, 300: 1000}  # cases -> blocks of the other rows
PLANTED = {6: 1, 40: 3, 300: 10}
NOMINAL = 0.05


@dataclass(frozen=True)
class Noise:
    """A kind of noise.

    text: description, for the tables.
    make: draws what differs between the cases of a block, and returns a function that draws pairs.
    within: standard error of the median of one process, in logs.
    lines: least power by change, where it is demanded.
    """

    text: str
    make: Callable[[Random, int], Draw]
    within: float = 0.002
    threshold: float = 0.05
    changes: tuple[float, ...] = (0.0, 0.10, 0.20)
    lines: Mapping[float, float] | None = None
    honest: bool = True  # whether the least change must hold


def normal(spread: float) -> Callable[[Random, int], Draw]:
    """Make processes that differ independently, by a standard deviation."""
    return lambda rng, cases: lambda pairs: spread * math.sqrt(2) * rng.standard_normal((cases, pairs))


def states(rng: Random, rows: int) -> Draw:
    """Put every process of every row into one of two states 6 % apart."""

    def draw(pairs: int) -> Array:
        new, base = rng.integers(0, 2, (2, rows, pairs))
        return 0.06 * (new - base)

    return draw


def states_of_a_process(rng: Random, cases: int) -> Draw:
    one = states(rng, 1)
    return lambda pairs: np.broadcast_to(one(pairs), (cases, pairs))


def drift(rng: Random, cases: int) -> Draw:
    """Let the machine drift from process to process: AR(1), common to all cases; sides in random order."""
    own = normal(0.01)(rng, cases)

    def draw(pairs: int) -> Array:
        level, correlation = 0.04 * rng.standard_normal(), 0.8
        levels = []  # of processes, two per pair
        for step in rng.standard_normal(2 * pairs):
            levels.append(level)
            level = correlation * level + 0.04 * math.sqrt(1 - correlation**2) * step
        return own(pairs) + rng.choice([-1, 1], pairs) * np.diff(levels)[::2]

    return draw


def unequal(rng: Random, cases: int) -> Draw:
    """Give each case a spread of its own, from 0.5 to 8 %."""
    spreads = np.exp(rng.uniform(math.log(0.005), math.log(0.08), (cases, 1)))
    return lambda pairs: spreads * math.sqrt(2) * rng.standard_normal((cases, pairs))


def heavy_tails(rng: Random, cases: int) -> Draw:
    """Student's distribution with three degrees of freedom and a scale of 2 %."""

    def draw(pairs: int) -> Array:
        new, base = rng.standard_t(3, (2, cases, pairs))
        return 0.02 * (new - base)

    return draw


def neighbours(rng: Random, cases: int) -> Draw:
    """Slow one process in ten down by 30 %, on top of 2 %."""
    calm = normal(0.02)(rng, cases)

    def draw(pairs: int) -> Array:
        new, base = rng.random((2, cases, pairs)) < 0.1
        return calm(pairs) + math.log(1.3) * (new.astype(float) - base)

    return draw


STEADY = {0.10: 0.95, 0.20: 0.99}
NOISE = {
    "within": Noise("±0.5 % within processes alone", normal(0), 0.005, lines=STEADY),
    "2 %": Noise("±2 % between processes", normal(0.02), lines=STEADY),
    "4 %": Noise("±4 % between processes", normal(0.04), lines={0.10: 0.90, 0.20: 0.99}),
    "two states, cases": Noise("two states 6 % apart, per case", states, lines=STEADY),
    "two states, processes": Noise("two states 6 % apart, per process", states_of_a_process, lines=STEADY),
    "drift": Noise("AR(1) drift of all cases", drift, lines=STEADY),
    "unequal": Noise("±0.5 to 8 %, by case", unequal),
    "heavy tails": Noise("heavy tails, scale 2 %", heavy_tails),
    "neighbours": Noise("one process in ten 30 % slower", neighbours, honest=False),
    "quiet": Noise(
        "±0.5 % (a GPU), threshold 2.5 %", normal(0.005), 0.001, 0.025, (0.0, 0.05), {0.05: 59 / 60}
    ),
}
CURVE = {"2 %": 40, "4 %": 40, "unequal": 40}  # rows of the figure's power curves: noise -> cases
CURVE_CHANGES = (0.025, 0.05, 0.075, 0.15)


def compare(rng: Random, draw: Draw, noise: Noise, logs: Array) -> tuple[list[paired.PairVerdict], float]:
    """Compare one block through the real functions.

    Args:
        logs: (cases,), the planted changes as natural logs.

    Returns:
        The verdicts, and the share of cases that were screened.
    """

    def pairs(count: int) -> Array:
        within = noise.within * math.sqrt(2) * rng.standard_normal((len(logs), count))
        return draw(count) + within + logs[:, None]

    first = pairs(paired.FIRST_PAIRS)
    screened = paired.screen(first, noise.threshold)
    fresh = pairs(paired.fresh_pairs(len(logs)))[screened]
    return paired.confirm(first, fresh, screened, noise.threshold), float(screened.mean())


def compare_single(rng: Random, draw: Draw, noise: Noise, logs: Array) -> npt.NDArray[np.bool_]:
    """Say which cases the former rule calls slower, which looked at one process per side.

    Each median had an interval at confidence 1 − 0.05 / (2 · cases). A case was slower if the low end of the
    new one, divided by the high end of the base, was beyond the threshold. The ends of an interval are
    interpolated order statistics, so the interval of the ranks themselves says where they are.
    """
    cases = len(logs)
    deviation = noise.within * math.sqrt(2 * SAMPLES / math.pi)  # the median's error is 1.25 / √n of it
    samples = np.sort(deviation * rng.standard_normal((2, cases, SAMPLES)), axis=2)
    ranks = summarise(range(SAMPLES), 1 - NOMINAL / (2 * cases))
    assert ranks.low is not None and ranks.high is not None
    shift = draw(1)[:, 0] + logs
    gap = shift + _at(samples[1], ranks.low) - _at(samples[0], ranks.high)
    return np.asarray(gap > math.log1p(noise.threshold), dtype=np.bool_)


def _at(ordered: Array, rank: float) -> Array:
    """Interpolate between the order statistics next to a rank."""
    below = min(int(rank), ordered.shape[1] - 2)
    weight = rank - below
    return (1 - weight) * ordered[:, below] + weight * ordered[:, below + 1]


def simulate(name: str, cases: int, change: float | str, blocks: int, seed: int) -> dict[str, Any]:
    """Simulate the blocks of one row. The row does not depend on which other rows are simulated."""
    noise = NOISE[name]
    key = zlib.crc32(f"{name}/{cases}/{change}".encode())
    rng = np.random.default_rng([seed, key])
    planted = PLANTED.get(cases, max(1, cases // 30))
    alarms = found = old_alarms = old_found = 0
    shares: list[float] = []
    same: list[float] = []
    least: list[float] = []
    for _ in range(blocks):
        draw = noise.make(rng, cases)
        logs = np.zeros(cases)
        if change == LEAST:
            before, _ = compare(rng, draw, noise, logs)
            logs[:planted] = np.log1p([verdict.least_change for verdict in before[:planted]])
        else:
            logs[:planted] = math.log1p(float(change))
        changed = logs != 0
        verdicts, share = compare(rng, draw, noise, logs)
        slower = np.array([verdict.verdict == "slower" for verdict in verdicts])
        alarms += bool(slower[~changed].any())
        found += int(slower[changed].sum())
        shares.append(share)
        unchanged = [verdict for verdict, moved in zip(verdicts, changed, strict=True) if not moved]
        same.append(sum(verdict.verdict == "same" for verdict in unchanged) / len(unchanged))
        least.append(float(np.median([verdict.least_change for verdict in unchanged])))
        if change != LEAST:
            old = compare_single(rng, draw, noise, logs)
            old_alarms += bool(old[~changed].any())
            old_found += int(old[changed].sum())
    row: dict[str, Any] = {
        "noise": name, "cases": cases, "threshold": noise.threshold, "change": change, "blocks": blocks,
        "alarms": rate(alarms, blocks), "screened": round(float(np.mean(shares)), 4),
        "same": round(float(np.mean(same)), 4), "least_change": round(float(np.median(least)), 4),
    }  # fmt: skip
    if change != 0:
        row |= {"planted": planted, "power": rate(found / planted, blocks)}
    if change != LEAST:
        row["old_alarms"] = rate(old_alarms, blocks)
        row |= {"old_power": rate(old_found / planted, blocks)} if change != 0 else {}
    return row | {"lines": lines(row)}


def rate(hits: float, blocks: int) -> list[float]:
    """Compute a rate with the two ends of its 95 % interval, for hits that may be means over cases."""
    from scipy.stats import beta

    low = float(beta.ppf(0.025, hits, blocks - hits + 1)) if hits > 0 else 0.0
    high = float(beta.ppf(0.975, hits + 1, blocks - hits)) if hits < blocks else 1.0
    return [round(value, 5) for value in (hits / blocks, low, high)]


def lines(row: Mapping[str, Any]) -> dict[str, str]:
    """Judge a row: `met` or `missed` where the whole interval lies on one side of a line, else `open`."""
    noise = NOISE[row["noise"]]
    found = {"alarms": _judge(row["alarms"], NOMINAL, least=False)}
    wanted = (noise.lines or {}).get(row["change"])
    if row["change"] == LEAST and noise.honest:
        wanted = 0.9
    return found | ({"power": _judge(row["power"], wanted, least=True)} if wanted is not None else {})


def _judge(interval: Sequence[float], line: float, *, least: bool) -> str:
    _, low, high = interval
    if (low >= line) if least else (high <= line):
        return "met"
    return "missed" if (high < line if least else low > line) else "open"


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Make the text that is printed: one line per row."""
    columns = ("alarms", "power", "old alarms", "old power")
    head = f"{'noise':36}{'cases':>6}{'change':>8}" + "".join(f"{name:>24}" for name in columns)
    texts = [f"{head}{'screened':>10}{'same':>8}{'least':>8}  lines"]
    for row in rows:
        change = row["change"] if row["change"] == LEAST else f"{row['change']:.1%}"
        cells = "".join(f"{_interval(row.get(name.replace(' ', '_'))):>24}" for name in columns)
        judged = ", ".join(f"{name} {word}" for name, word in row["lines"].items())
        texts.append(
            f"{NOISE[row['noise']].text:36}{row['cases']:6}{change:>8}{cells}"
            f"{row['screened']:10.1%}{row['same']:8.1%}{row['least_change']:8.1%}  {judged}"
        )
    return "\n".join(texts)


def _interval(value: Sequence[float] | None) -> str:
    return f"{value[0]:.1%} [{value[1]:.1%}, {value[2]:.1%}]" if value else ""


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Make the table of docs/measurement.md: one line per noise and number of cases."""
    heads = ("noise", "cases", "old alarms", "alarms", "finds +10 %", "finds +20 %", "finds its least change",
             "`same` if unchanged", "screened")  # fmt: skip
    texts = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    by_key = {(row["noise"], row["cases"], row["change"]): row for row in rows}
    for name, cases in dict.fromkeys((row["noise"], row["cases"]) for row in rows):
        get = {change: by_key.get((name, cases, change), {}) for change in (0.0, 0.05, 0.1, 0.2, LEAST)}
        middle = get[0.1].get("power") if name != "quiet" else get[0.05].get("power")
        cells = [
            get[0.0].get("old_alarms"),
            get[0.0].get("alarms"),
            middle,
            get[0.2].get("power"),
            get[LEAST].get("power"),
            *([get[0.0][key]] if get[0.0] else None for key in ("same", "screened")),
        ]
        shown = [f"{cell[0]:.1%}".replace("%", " %") if cell else "" for cell in cells]
        if name == "quiet":
            shown[2] += " of +5 %"
        texts.append(f"| {NOISE[name].text} | {cases} | {' | '.join(shown)} |")
    return "\n".join(texts)


def plan(pattern: str, sizes: Sequence[int]) -> list[tuple[str, int, float | str]]:
    """List the rows of a selection: noise, cases, change."""
    found: list[tuple[str, int, float | str]] = []
    for name in fnmatch.filter(NOISE, pattern):
        for cases in sizes:
            extra = CURVE_CHANGES if CURVE.get(name) == cases else ()
            found += [(name, cases, change) for change in (*sorted((*NOISE[name].changes, *extra)), LEAST)]
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = ", ".join(NOISE).replace("%", "%%")
    parser.add_argument("--noise", default="*", metavar="PATTERN", help=f"of {names}")
    parser.add_argument("--cases", default="6,40,300", metavar="LIST", help="numbers of cases per comparison")
    parser.add_argument(
        "--blocks", type=int, help="comparisons per row (4,000, or fewer of many cases with a change)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the rows as JSON")
    parser.add_argument("--read", type=Path, metavar="FILE", help="rows of an earlier simulation")
    parser.add_argument("--figure", type=Path, metavar="FILE.svg", help="where to draw the rows of 40 cases")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/measurement.md")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    try:
        sizes = [int(text) for text in options.cases.split(",")]
    except ValueError:
        parser.error(f"--cases takes numbers with commas between them, not {options.cases!r}")
    if min(sizes) < 2 or (options.blocks is not None and options.blocks < 1):
        parser.error("a row needs at least two cases and one block")
    if options.read:
        rows = json.loads(options.read.read_text())["rows"]
    else:
        wanted = plan(options.noise, sizes)
        if not wanted:
            parser.error(f"no noise is called {options.noise!r} (there are {', '.join(NOISE)})")
        rows = []
        for name, cases, change in wanted:
            blocks = options.blocks or (SIZES.get(cases, MOST_BLOCKS) if change else MOST_BLOCKS)
            rows.append(simulate(name, cases, change, blocks, options.seed))
            print(f"{len(rows)} of {len(wanted)} rows", file=sys.stderr)
    print(markdown(rows) if options.markdown else table(rows))
    if options.out:
        command = shlex.join(["python", "tests/proofs/simulate_verdicts.py", *given])
        head = json.dumps({"command": command, "numpy": np.__version__})[1:-1]
        body = ",\n ".join(json.dumps(row) for row in rows)
        options.out.write_text(f'{{{head},\n "rows": [\n {body}\n]}}\n')
    if options.figure:
        from proofs import draw_verdicts

        draw_verdicts.draw(rows, {name: noise.text for name, noise in NOISE.items()}, options.figure)
    return 3 if any("missed" in row["lines"].values() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
