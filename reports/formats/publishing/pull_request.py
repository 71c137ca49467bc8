"""The comment on a pull request: before and after, measured in one go by `ab`, in at most 80 columns."""

from __future__ import annotations

import dataclasses
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssmperf import Case, Pair, RunComparison
from ssmperf.suitekit import report

from ...delivery import deliver
from ...rows import frames, units
from ...views.texts.comparison import UNREMARKABLE, alarms, listing, means, numbers, remarks
from ..exports import escape
from .pivots import WIDEST

HEADINGS = ("case", "before", "after", "after / before", "verdict")
LONGEST = 60  # letters of a name from outside
MOST_CASES = 40  # that are shown whatever their verdict
MOST_KERNELS = 6  # named below a table
_NAMED = ("suite", "recurrence", "model", "backend", "shape", "dtype", "pass_")
_OTHERS = tuple(field.name for field in dataclasses.fields(Case) if field.name not in _NAMED)
# what would begin a list or a heading at the start of a line
_BLOCK = re.compile(r"^(\d*)([.)+-]|#+|[-=]+)(?=\s|$)")

Axes = dict[str, str]  # of a case: its dtype, pass, further axes and sizes, as text
Rows = Mapping[str, Mapping[str, Mapping[str, Any]]]  # of a side's frame, by the id of the case


@report("pr", of="comparison")
def pull_request(comparison: RunComparison, destination: Path | None = None) -> str | None:
    """Write the comparison for a pull request: tables, kernels, errors, versions, device, how to repeat it.

    The tables have all cases with a time on both sides, or, of many, those that the report `summary` lists.
    """
    listed = listing(comparison)
    rows = {
        name: {str(row["case_id"]): row for row in frames.records(frames.frame([run]))}
        for name, run in (("before", comparison.base), ("after", comparison.new))
    }
    parts = [_wrapped(f"**{comparison.concluded(_name)}**")]
    parts += [_bullet(f"**alarm: {escape(text)}**") for text in alarms(comparison)]
    measured = [pair for pair in comparison.pairs if pair.ratio is not None]
    if len(measured) > MOST_CASES:
        measured = [pair for pair in listed.pairs if pair.ratio is not None]
    for members in _by_subject(measured):
        parts += _tables(members, rows)
    remarkable = (pair for pair in listed.pairs if pair.ratio is None and pair.verdict not in UNREMARKABLE)
    told = [comparison.told(pair, _name) for pair in remarkable]
    others = [*told, *map(escape, listed.sums)]
    others += [f"and {listed.more} more"] if listed.more else []
    parts += ["\n".join(map(_bullet, others))] if others else []
    parts.append("\n".join(map(_bullet, _facts(comparison, rows))))
    if comparison.repeat:
        parts.append(f"To repeat it:\n\n```sh\n{_command(comparison.repeat)}\n```")
    return deliver("\n\n".join(parts) + "\n", destination)


def _by_subject(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    groups: dict[tuple[str, ...], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.case.suite, pair.case.subject, pair.case.backend), []).append(pair)
    yield from groups.values()


def _tables(pairs: Sequence[Pair], rows: Rows) -> Iterator[str]:
    """Write one table, or one for each value of an axis if it would be too wide."""
    axes = [_axes(pair.case) for pair in pairs]
    shared = {name: text for name, text in axes[0].items() if all(each.get(name) == text for each in axes)}
    varying = [name for name in dict.fromkeys(name for each in axes for name in each) if name not in shared]
    labels = [" ".join(each[name] for name in varying if name in each) or each["pass"] for each in axes]
    table = _table(labels, pairs)
    if varying and len(table.partition("\n")[0]) > WIDEST:
        groups: dict[str | None, list[Pair]] = {}
        for pair, each in zip(pairs, axes, strict=True):
            groups.setdefault(each.get(varying[0]), []).append(pair)
        for members in groups.values():
            yield from _tables(members, rows)
        return
    shared.pop("device", None)  # named below all tables
    case = pairs[0].case
    title = ", ".join(map(_name, (case.subject, case.backend, *shared.values(), case.suite)))
    yield _wrapped(f"**{title}**")
    yield table
    yield _wrapped("; ".join(filter(None, (_kernels(pairs, rows), _errors(pairs, rows)))))


def _table(cases: Sequence[str], pairs: Sequence[Pair]) -> str:
    from tabulate import tabulate

    lines = [
        [_name(case), *map(escape, numbers(pair)), pair.verdict]
        for case, pair in zip(cases, pairs, strict=True)
    ]
    align = ("left", "right", "right", "right", "left")
    return tabulate(lines, HEADINGS, "pipe", disable_numparse=True, colalign=align)


def _axes(case: Case) -> Axes:
    found = {"dtype": case.dtype, "pass": case.pass_}
    declared = {field.name: field.default for field in dataclasses.fields(Case)}
    for name in _OTHERS:
        if (value := getattr(case, name)) != declared[name]:
            found[name] = f"{units.label(name)} {value}"
    return found | {letter: f"{letter}{size}" for letter, size in case.shape.items()}


def _kernels(pairs: Sequence[Pair], rows: Rows) -> str:
    """Name the kernels that ran on either side, once if they are the same."""
    found = {
        side: list(dict.fromkeys(
            str(name) for pair in pairs for name in _mapping(own.get(pair.case.id, {}).get("kernels"))
        ))
        for side, own in rows.items()
    }  # fmt: skip
    if not any(found.values()):
        return ""
    if set(found["before"]) == set(found["after"]):
        return f"kernels: {_some(found['after'])}"
    return "; ".join(f"kernels {side}: {_some(names) or 'unknown'}" for side, names in found.items())


def _errors(pairs: Sequence[Pair], rows: Rows) -> str:
    """Give the largest error of a judged answer on either side, over its tolerance."""
    texts = []
    for side, own in rows.items():
        known = [own[pair.case.id] for pair in pairs if pair.case.id in own]
        judged = [row for row in known if not units.missing(row["error_ratio"])]
        if judged:
            worst = max(judged, key=lambda row: float(row["error_ratio"]))
            ratio = units.number("error_ratio", worst["error_ratio"])
            texts.append(f"{ratio} {side} ({_name(worst['worst_object'])})")
    return f"largest {units.label('error_ratio')}: {', '.join(texts)}" if texts else ""


def _facts(comparison: RunComparison, rows: Rows) -> list[str]:
    """Name the versions, the device and its state, and how they were compared."""
    before, after = comparison.origins.values()
    facts = [
        f"before: {escape(comparison.since or before.version)}",
        f"after: {escape(comparison.until or after.version)}",
    ]
    devices = dict.fromkeys(filter(None, (before.device, after.device)))
    date = after.measured[:10]
    facts.append(escape(", ".join(filter(None, [*devices, date, *_state(rows)]))))
    return [*facts, *map(escape, (*means(comparison), *remarks(comparison)))]


def _state(rows: Rows) -> list[str]:
    """Give the device's clock, temperature and power while cases were timed, and what slowed it down."""
    timed = [row for own in rows.values() for row in own.values()]
    found = []
    for name, label, unit in (
        ("sm_clock_hz", "SM clock", ""),
        ("temperature_c", "temperature", " °C"),
        ("power_w", "power", ""),
    ):
        known = [float(row[name]) for row in timed if units.is_number(row.get(name))]
        if known:
            ends = dict.fromkeys(f"{units.number(name, end)}{unit}" for end in (min(known), max(known)))
            found.append(f"{label} {' to '.join(ends)}")
    if found:
        slowed = {
            str(each): None
            for row in timed
            for each in (row["throttles"] if isinstance(row.get("throttles"), list) else ())
        }
        found.append(f"throttled: {', '.join(slowed)}" if slowed else "never throttled")
    return found


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _some(names: Sequence[str]) -> str:
    more = [f"{len(names) - MOST_KERNELS} more"] if len(names) > MOST_KERNELS else []
    return ", ".join([*map(_name, names[:MOST_KERNELS]), *more])


def _name(text: object) -> str:
    """Escape a name from outside, cut to a length that fits a line."""
    line = units.plain(text)
    if len(escape(line)) <= LONGEST:
        return escape(line)
    while len(escape(line)) >= LONGEST:
        line = line[:-1]
    return f"{escape(line)}…"


def _bullet(text: str) -> str:
    return _wrapped(text, "- ", "  ")


def _wrapped(text: str, first: str = "", rest: str = "") -> str:
    """Break text into lines, none of which begins a list or a heading."""
    lines = textwrap.wrap(text, WIDEST - len(first) - 1, break_long_words=False, break_on_hyphens=False)
    safe = [lines[0], *(_BLOCK.sub(r"\1\\\2", line) for line in lines[1:])] if lines else [""]
    return f"{first}{safe[0]}" + "".join(f"\n{rest}{line}" for line in safe[1:])


def _command(command: str) -> str:
    """Break a command before its options, into lines that a shell joins again."""
    parts: list[str] = []
    for word in map(shlex.quote, shlex.split(units.plain(command))):
        if word.startswith("--") or not parts:
            parts.append(word)
        else:
            parts[-1] += f" {word}"
    lines = parts[:1]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 > WIDEST:
            lines.append("   ")
        lines[-1] += f" {part}"
    return " \\\n".join(lines)
