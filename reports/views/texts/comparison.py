"""The texts of a comparison that its formats share: pairs worth a row, their numbers, sums and remarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ssmperf import Pair, RunComparison
from ssmperf.suitekit import BROKEN, VERDICTS

from ...rows import units

UNREMARKABLE = ("same", "new", "failing")  # always counted, but listed only if nothing else is there
MOST_ROWS = 60
MOST_UNREMARKABLE = 12
MOST_ALIKE = 3  # wrong or lost cases of one backend, or ambiguous ones of a kind; more become one line
MOST_MODELS = 4  # named in such a line
NAMED = ("verdict", "suite", "model", "backend", "shape", "dtype", "pass")
NUMBERS = ("base", "new", "new / base")


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of a report.

    pairs: one row each. sums: lines such as "missing: 12 cases of backend triton (gla, hgrn)".
    more: number of pairs left out.
    """

    pairs: tuple[Pair, ...]
    sums: tuple[str, ...]
    more: int


def listing(comparison: RunComparison) -> Contents:
    """Choose the pairs that changed, or some of all if none did; many of one kind become one line.

    Missing cases are summed up by backend, as are wrong and lost ones, if a backend has more than a few, and
    ambiguous ones that lie within the threshold or cannot be compared, if there are more than a few.
    """
    changed = [pair for pair in comparison.pairs if pair.verdict not in UNREMARKABLE]
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in changed:
        if pair.verdict in BROKEN:
            groups.setdefault((pair.verdict, pair.case.backend), []).append(pair)
        elif pair.verdict == "ambiguous" and (pair.low is None or within(pair, comparison.threshold)):
            groups.setdefault((pair.verdict, pair.reason or "" if pair.low is None else ""), []).append(pair)
    summed = [g for (verdict, _), g in groups.items() if verdict == "missing" or len(g) > MOST_ALIKE]
    gone = {pair.case.id for group in summed for pair in group}
    rows = [pair for pair in changed if pair.case.id not in gone]
    most = MOST_ROWS
    if not changed:
        rows, most = list(comparison.pairs), MOST_UNREMARKABLE
    sums = [_sum(group) for group in sorted(summed, key=lambda group: list(VERDICTS).index(group[0].verdict))]
    if comparison.unmeasured:
        sums.append(f"missing: {comparison.unmeasured_text}")
    return Contents(tuple(rows[:most]), tuple(sums), max(0, len(rows) - most))


def within(pair: Pair, threshold: float) -> bool:
    """Tell whether a ratio lies within the threshold."""
    return pair.ratio is not None and 1 / (1 + threshold) <= pair.ratio <= 1 + threshold


def _sum(pairs: Sequence[Pair]) -> str:
    """Sum up pairs of one verdict in a line."""
    first = pairs[0]
    backend = units.plain(first.case.backend)
    if first.verdict == "ambiguous":
        if first.low is None:
            return f"ambiguous: {len(pairs)} cases: {units.plain(first.reason)}"
        least = min(pair.least_change for pair in pairs if pair.least_change is not None)
        return (
            f"ambiguous: {len(pairs)} cases within the threshold, whose noise could hide a change of "
            f"{percent(least)} or more"
        )
    if len(pairs) == 1:
        return f"{first.verdict}: 1 case of backend {backend} ({units.plain(first.case)})"
    models = list(dict.fromkeys(units.plain(pair.case.subject) for pair in pairs))
    named = ", ".join(models[:MOST_MODELS]) + (", …" if len(models) > MOST_MODELS else "")
    reason, times = Counter(units.plain(pair.reason) for pair in pairs).most_common(1)[0]
    why = f": {reason}" if first.verdict != "missing" else ""
    if why and times < len(pairs):
        why += f" ({times} times)"
    return f"{first.verdict}: {len(pairs)} cases of backend {backend} ({named}){why}"


def means(comparison: RunComparison) -> list[str]:
    """Give the geometric mean of the ratios of each suite in a line."""
    return [
        f"{units.plain(suite)}: geometric mean of new / base {ratio(mean.overall.ratio)} "
        f"({units.label(mean.field)}, {mean.overall.cases} {'case' if mean.overall.cases == 1 else 'cases'})"
        for suite, mean in comparison.means.items()
    ]


def remarks(comparison: RunComparison) -> list[str]:
    """Say how the runs were compared, what would have been found, and what else to know about them."""
    differences = (f"environments differ: {each}" for each in comparison.differences)
    found = (comparison.method, comparison.resolution, *differences, *comparison.notes)
    return [units.plain(each) for each in found if each]


def alarms(comparison: RunComparison) -> list[str]:
    """Say what a reader must know before the verdicts."""
    return list(map(units.plain, comparison.alarms))


def commands(comparison: RunComparison) -> list[str]:
    """List the commands that lead on from the comparison."""
    return list(map(units.plain, comparison.commands))


def named(pair: Pair) -> list[str]:
    """Give a pair's verdict and the names of its case, in the order of NAMED."""
    case = pair.case
    texts = (case.suite, case.subject, case.backend, case.shape, case.dtype, case.pass_)
    return [pair.verdict, *map(units.plain, texts)]


def numbers(pair: Pair) -> list[str]:
    """Give a pair's numbers as text, in the order of NUMBERS."""
    values = [units.number(pair.field, value) if pair.field else "" for value in (pair.base, pair.new)]
    return [*values, change(pair)]


def change(pair: Pair) -> str:
    """Give the ratio and its interval as text, such as 1.981 (1.953 to 2.018)."""
    found = interval(pair)
    return f"{ratio(pair.ratio)} ({found})" if found else ratio(pair.ratio)


def interval(pair: Pair) -> str:
    """Give the interval of the ratio as text; empty if it is a point or unknown."""
    return "" if pair.low is None or pair.low == pair.high else f"{ratio(pair.low)} to {ratio(pair.high)}"


def ratio(value: float | None) -> str:
    """Give a ratio with as many digits as a threshold of a few percent needs."""
    return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:.3g}"


def least_change(pair: Pair) -> str:
    """Give the least increase that would have been found as text, such as +8.4 %."""
    return "" if pair.least_change is None else f"+{percent(pair.least_change)}"


def percent(value: float) -> str:
    """Write a share as a percentage with two digits, or as a whole number."""
    return f"{100 * value:.0f} %" if value >= 0.095 else f"{100 * value:.2g} %"
