"""The answers about workloads as text: a line per phase, and a table of workloads, phases and backends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ...rows import units
from ...rows.answers import PhaseAnswer
from ...rows.contests import Contest

NOT_MEASURED = "not measured"
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
        elsewhere.setdefault("" if same else brief(each.contest), []).append(each.form)
    more = [f"{text or 'the same'} at {' and '.join(forms)}" for text, forms in elsewhere.items()]
    right = f"right to: {first.right_to or NOT_MEASURED}"
    parts = [f"{brief(first.contest)} at {first.form}"]
    if first.contest["backend"] is not None:
        memory, share = (
            units.number("_bytes", first.peak_bytes),
            units.number("_fraction", first.limit_fraction),
        )
        parts += [f"peak memory {memory}", f"{share} of the limit", right]
    return "; ".join([*parts, *more])


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
        return f"{text}, {units.ratio(rest[0]['value'] / contest['value'])} ahead of {rest[0]['backend']}"
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
        dtypes, where = (
            ", ".join(dict.fromkeys(each.contest[key] for each in members)) for key in ("dtype", "where")
        )
        parts += [Text(f"{name}  ({dtypes}, {where})", style="bold"), grid, Text()]
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
