"""Answers as text: a sentence per contest; a line per phase of a workload, and a table of its backends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ...rows import units
from ...rows.answers import PhaseAnswer
from ...rows.contests import Contest, axes_that_differ
from ...rows.needs import Need

NOT_MEASURED = "not measured"
DAY = len("2026-01-01")
SHOWN = 1.01  # the least ratio that is shown as one
MOST_DATES = 3
START = "start"  # the gates that are shown first


def by_workload(found: Iterable[PhaseAnswer]) -> dict[str, list[PhaseAnswer]]:
    cards: dict[str, list[PhaseAnswer]] = {}
    for answer in found:
        cards.setdefault(answer.workload, []).append(answer)
    return cards


def lines(found: Sequence[PhaseAnswer]) -> list[tuple[str, str]]:
    """Give a label and a sentence per phase and kind of gates of a workload.

    The first form of a phase has the line. The others follow in it, as far as another backend wins there.
    """
    groups: dict[tuple[str, str], list[PhaseAnswer]] = {}
    for answer in found:
        if not answer.contest["older"]:
            groups.setdefault((answer.phase, answer.gates), []).append(answer)
    return [
        (phase if gates == START else f"{phase}, gates: {gates}", _line(members))
        for (phase, gates), members in groups.items()
    ]


def _line(members: Sequence[PhaseAnswer]) -> str:
    first, *others = members
    elsewhere: dict[str, list[str]] = {}
    for each in others:
        same = {*each.contest["fastest"]} == {*first.contest["fastest"]}
        winner = "the same" if same else brief(each.contest)
        elsewhere.setdefault(", ".join([winner, *doubts(each.contest)]), []).append(each.form)
    more = [f"{text} at {' and '.join(forms)}" for text, forms in elsewhere.items()]
    parts = [f"{brief(first.contest)} at {first.form}", *doubts(first.contest)]
    if first.contest["backend"] is not None:
        parts += [*needs(first.contest), f"right to: {first.right_to or NOT_MEASURED}"]
    return "; ".join([*parts, *more])


def sentences(found: Sequence[Contest]) -> list[str]:
    """Say who is the fastest in each contest of the newest run that has it."""
    newest = [each for each in found if not each["older"]]
    texts = [sentence(contest, axes) for contest, axes in zip(newest, differing(newest), strict=True)]
    return [*texts, *older(found)]


def sentence(contest: Contest, axes: Sequence[str] = ()) -> str:
    """Say in a sentence who is the fastest, by how much, and what it needs. axes: further ones, as text."""
    sizes = dict(contest["sizes"])
    length = f"{sizes.pop('T'):,}" if "T" in sizes else "–"
    others = " ".join(f"{letter}{size}" for letter, size in sizes.items())
    place = ", ".join([f"T = {length} ({others})", contest["dtype"], contest["pass"], *axes])
    parts = [f"{contest['subject']} at {place}: {brief(contest)}", *needs(contest)]
    if contest["beside"]:
        parts.append(f"not ranked: {', '.join(unranked(contest, each) for each in contest['beside'])}")
    parts.append(f"{contest['hardware']}, {measured(contest)}")
    return "; ".join([*parts, *doubts(contest)])


def doubts(contest: Contest) -> list[str]:
    """Say that one of the fastest backends is wrong there in a newer run."""
    return [f"but wrong there on {contest['refuted'][:DAY]}"] if contest["refuted"] else []


def memory(found: Sequence[Need]) -> list[str]:
    """Say in a sentence per place and use what each backend needs, and whether that is a forecast."""
    places: dict[tuple[str, ...], list[str]] = {}
    for each in found:
        text = f"{each.backend} {units.number('_bytes', each.bytes)} ({each.forecast or 'measured'})"
        if each.free_bytes is not None and each.bytes > each.free_bytes:
            text += f", more than the {units.number('_bytes', each.free_bytes)} that were free"
        places.setdefault((each.place, each.use, each.hardware), []).append(text)
    return [
        f"memory of {place}, {use}, beyond the operands: {'; '.join(texts)}; {hardware}"
        for (place, use, hardware), texts in places.items()
    ]


def older(found: Sequence[Contest]) -> list[str]:
    """Say how many contests of older runs are left out."""
    old = [each for each in found if each["older"]]
    dates = sorted({measured(each) for each in old})
    return [f"older, not shown: {len(old)} of {'; '.join(dates[-MOST_DATES:])}"] if old else []


def differing(found: Sequence[Contest]) -> list[list[str]]:
    """Give each contest's values of the axes in which the contests differ, as text."""
    axes = axes_that_differ(found)
    return [[f"{units.label(axis)} {units.plain(each['axes'][axis])}" for axis in axes] for each in found]


def needs(contest: Contest) -> list[str]:
    """Say how much memory the fastest backend needs, and how near it is to the machine's limit."""
    peak = contest["peak_bytes"]
    return [
        f"peak memory {NOT_MEASURED if peak is None else units.number('peak_bytes', peak) + ' (measured)'}",
        f"{units.number('limit_fraction', contest['limit_fraction'])} of the limit",
    ]


def measured(*contests: Contest) -> str:
    """Say when contests were measured, and of which code."""
    commits: dict[str, dict[str, None]] = {}
    for each in contests:
        commits.setdefault(each["date"][:DAY] or "no date", {})[each["commit"]] = None
    return ", ".join(
        ", ".join([date, *(f"commit {commit}" for commit in of_date if commit)])
        for date, of_date in commits.items()
    )


def unranked(contest: Contest, entry: Mapping[str, Any]) -> str:
    """Name a backend that is never first, with its time and the reason."""
    return f"{entry['backend']} {units.number(contest['field'], entry['value'])} ({entry['mark']})"


def brief(contest: Contest) -> str:
    """Name the fastest backends, their time, and by how much they are ahead of the next one."""
    if contest["backend"] is None:
        return "no backend is right"
    winners, value = contest["fastest"], units.number(contest["field"], contest["value"])
    rest = [each for each in contest["competitors"] if each["backend"] not in winners]
    text = f"{' and '.join(winners)} {value}"
    if len(winners) > 1:
        text += " (tied)"
    if rest:
        ratio = rest[0]["value"] / contest["value"]
        by = units.ratio(ratio) if ratio >= SHOWN else "under 1 %"
        return f"{text}, {by} ahead of {rest[0]['backend']}"
    return text if len(winners) > 1 else f"{text}, the only backend that took part"


def cards(found: Sequence[PhaseAnswer]) -> list[Text | Table]:
    """Give the answers for a terminal."""
    parts: list[Text | Table] = []
    for name, members in by_workload(found).items():
        grid = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, text in lines(members):
            grid.add_row(Text(label), Text(text))
        newest = [each.contest for each in members if not each.contest["older"]]
        facts = dict.fromkeys(each[name] for name in ("dtype", "hardware") for each in newest)
        where = ", ".join([*facts, measured(*newest)])
        parts += [Text(f"{name}  ({where})", style="bold"), grid, Text()]
    return parts[:-1]


def matrix(found: Sequence[PhaseAnswer]) -> dict[str, Any]:
    """Give the table of workloads, phases and backends: times, and shares of the fastest one's speed."""
    backends = dict.fromkeys(
        each["backend"]
        for answer in found
        for each in (*answer.contest["competitors"], *answer.contest["beside"])
    )
    rows = []
    for answer in found:
        gates = "" if answer.gates == START else f", gates: {answer.gates}"
        rows.append({
            "workload": answer.workload,
            "phase": f"{answer.phase}{gates}",
            "form": answer.form,
            "cells": [_cell(answer.contest, name) for name in backends],
        })  # fmt: skip
    return {"backends": list(backends), "rows": rows}


def against_gates(found: Sequence[PhaseAnswer]) -> list[dict[str, Any]]:
    """Give a table of times against gates for each form that was timed under several: a line per backend."""
    forms: dict[tuple[str, str, str], dict[str, PhaseAnswer]] = {}
    for answer in found:
        forms.setdefault((answer.workload, answer.phase, answer.form), {})[answer.gates] = answer
    return [
        {
            "label": " · ".join(place),
            "gates": list(by_gates),
            "rows": [
                (name, [_cell(answer.contest, name) for answer in by_gates.values()])
                for name in matrix([*by_gates.values()])["backends"]
            ],
        }
        for place, by_gates in forms.items()
        if len(by_gates) > 1
    ]


def _cell(contest: Contest, backend: str) -> Mapping[str, Any] | None:
    for standing in ("competitors", "beside"):
        for each in contest[standing]:
            if each["backend"] == backend:
                share = contest["value"] / each["value"] if contest["value"] else None
                return {
                    "text": units.number(contest["field"], each["value"]),
                    "share": "" if share is None else units.number("share_fraction", share),
                    "won": backend in contest["fastest"],
                    "note": each["mark"] if standing == "beside" else each["note"],
                }
    out = next((each for each in contest["excluded"] if each["backend"] == backend), None)
    return None if out is None else {"text": out["status"], "share": "", "won": False, "note": out["reason"]}
