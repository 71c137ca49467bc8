"""One self-contained HTML page: everything is inline, nothing is fetched, text from outside is escaped."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ssmperf.suitekit import busy_line, judged_lines, node_lines, report

from ..delivery import deliver
from ..rows import answers, contests, costs, frames, joined, ranking, units
from ..rows.ranking import Part
from ..views import charts, choices, glance
from ..views.texts import answers as answer_texts
from ..views.texts import choices as choice_texts
from . import details, packing, sections
from .best_table import best_table

if TYPE_CHECKING:
    import jinja2

    from ssmperf import Run

TEMPLATES = Path(__file__).parent / "templates"
_SCRIPTS = ("table.js", "charts.js")


@report("html")
def html(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Render the page as text, or into a file. The same runs give the same bytes."""
    page, data = _page(runs)
    scripts = ("answer.js", *_SCRIPTS) if page["choices"] else _SCRIPTS
    return deliver(render("page.html", page, data, scripts, plots=bool(data["charts"])), destination)


def render(
    template: str, page: Mapping[str, Any], data: Mapping[str, Any], scripts: Sequence[str], *, plots: bool
) -> str:
    """Render a page.

    data: for its scripts, by the id of the element that holds it, packed. plots: whether they need the
    plotting library.
    """
    import markupsafe

    names = ("unpack.js", *scripts) if scripts else ()
    found = _environment().get_template(template)
    return found.render(
        **page,
        data={name: packing.pack(value) for name, value in data.items()},
        plotly=packing.plotting_library() if plots else None,
        style=markupsafe.Markup((TEMPLATES / "page.css").read_text()),
        scripts=[markupsafe.Markup((TEMPLATES / name).read_text()) for name in names],
    )


@functools.cache
def _environment() -> jinja2.Environment:
    """Make what keeps the compiled templates."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["named"] = _named
    return environment


def _named(text: str) -> str:
    """Set names in backticks as code; everything else is escaped."""
    import markupsafe

    return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(markupsafe.escape(text))))


def _page(runs: Sequence[Run]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the data of the page's template, and those of its scripts."""
    table = frames.frame(runs)
    parts = ranking.parts(runs, table)
    views, drawn, data = _sections(parts)
    looks = charts.looks(table, [section for section, _ in parts.values()])
    found, glances = contests.contests(runs), joined.glances(parts)
    answered = answers.answers(runs, parts)
    chosen = choice_texts.views(choices.choices(found, answered))
    scatters = glance.charts(glances)
    data |= {
        **({"answers": chosen} if chosen else {}),
        "looks": {name: {"colour": colour, "mark": mark} for name, (colour, (mark, _)) in looks.items()},
        "charts": [*map(charts.lean, (*drawn, *scatters))],
    }
    return {
        "title": " · ".join(frames.run_names(runs)) or "no runs",
        "choices": chosen,
        "workloads": _workloads(answered),
        "best": best_table(found) if found else None,
        "glances": {**glance.views(glances), "charts": [*enumerate(scatters, len(drawn))]}
        if glances
        else None,
        "runs": run_views(runs, table),
        "summary": _summary(table, list(parts.values())),
        "sections": views,
        "problems": details.problems(table),
        "costs": costs.costs(table),
        "environments": details.environments(runs),
    }, data


def _workloads(found: Sequence[answers.PhaseAnswer]) -> dict[str, Any] | None:
    """Give the cards of workloads, and their tables over backends and over gates; None without workloads."""
    if not found:
        return None
    cards = answer_texts.by_workload(found)
    return {
        "cards": [(name, answer_texts.lines(members)) for name, members in cards.items()],
        "matrix": answer_texts.matrix(found),
        "gates": answer_texts.against_gates(found),
    }


def _sections(parts: Mapping[str, Part]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Give the view of each suite, all charts, to which the views refer by number, and the tables by id."""
    views: list[dict[str, Any]] = []
    drawn: list[dict[str, Any]] = []
    tables: dict[str, Any] = {}
    keep = details.samples_kept(sum(len(rows) for _, rows in parts.values()))
    for place, (name, (section, rows)) in enumerate(parts.items(), 1):
        found = sections.view(section, rows)
        numbered = list(enumerate(found["charts"], len(drawn)))
        drawn += found["charts"]
        tables[f"cases-{place}"] = found.pop("table")
        tables[f"details-{place}"] = details.details(rows, keep)
        views.append({**found, "place": place, "name": name, "charts": numbered})
    return views, drawn, tables


def run_views(runs: Sequence[Run], table: pd.DataFrame) -> list[dict[str, Any]]:
    """Give what a page's header says of each run. table: the frame of all runs."""
    return [
        {
            "name": name,
            "path": str(run.path),
            "created": units.plain(run.meta.get("created")),
            "command": _command(run.meta),
            "hardware": _hardware(table[table["run"] == name]),
            "cases": len(run.records),
            "planned": (run.meta.get("plan") or {}).get("cases"),
            "judged": units.plain("; ".join([*judged_lines([run]), *node_lines([run])])),
            "busy": (busy_line(run.records) or "").removeprefix("busy: "),
        }
        for name, run in zip(frames.run_names(runs), runs, strict=True)
    ]


def _command(meta: Mapping[str, Any]) -> str:
    """Give the command line that made a run; empty for a run made from Python."""
    given = meta.get("argv")
    argv = [str(word) for word in given] if isinstance(given, list) else []
    return units.plain(meta.get("command")) or units.plain(shlex.join(["ssmperf", *argv]) if argv else "")


def _hardware(rows: pd.DataFrame) -> str:
    names = rows["hardware"].where(rows["hardware"].notna(), rows["device"])
    return ", ".join(dict.fromkeys(map(units.plain, names)))


def _summary(table: pd.DataFrame, parts: Sequence[Part]) -> dict[str, Any]:
    """Give the numbers at the top of the page. Wins are those by time, if any suite ranks by a time."""
    contested = [(section.rank, rows) for section, rows in parts if section.rank]
    timed = [(rank, rows) for rank, rows in contested if units.is_time(rank)] or contested
    wins: dict[str, int] = {}
    decided = shared = 0
    for _, rows in timed:
        counts = ranking.decided(rows)
        decided, shared = decided + counts[0], shared + counts[1]
        for name, count in ranking.wins(rows).items():
            wins[name] = wins.get(name, 0) + count
    unsettled = int((table["converged"] == False).sum()) if "converged" in table else 0  # noqa: E712
    return {
        "cases": len(table),
        "statuses": frames.status_counts(table),
        "models": sorted(set(map(units.plain, table["model"].dropna())))
        or sorted(set(map(units.plain, table["subject"]))),
        "backends": sorted(set(map(units.plain, table["backend"]))),
        "wins": sorted(wins.items(), key=lambda win: (-win[1], win[0])),
        "first": "Fastest" if timed and units.is_time(timed[0][0]) else "Least",
        "contests": decided,
        "shared": shared,
        "unsettled": unsettled,
    }
