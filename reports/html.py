"""One self-contained HTML page: everything is inline, nothing is fetched, text from outside is escaped."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ssmperf import Section, busy_line, report

from . import best, charts, contests, costs, details, frames, glance, joined, ranking, sections, units
from .exports import deliver

if TYPE_CHECKING:
    from ssmperf import Run

TEMPLATES = Path(__file__).parent / "templates"
_DATA = ("details", "charts", "looks")  # read by the page's scripts

Part = tuple[Section, pd.DataFrame]  # a suite's section and its ranked rows


@report("html")
def html(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Render the page as text, or into a file. The same runs give the same bytes."""
    page = _page(runs)
    scripts = ("table.js", "charts.js")
    return deliver(render("page.html", page, _DATA, scripts, plots=bool(page["charts"])), destination)


def render(
    template: str, page: Mapping[str, Any], data: Sequence[str], scripts: Sequence[str], *, plots: bool
) -> str:
    """Render a page.

    data: names of what its scripts read, which becomes JSON. plots: whether they need the plotting library.
    """
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    codes = [(TEMPLATES / name).read_text() for name in scripts]
    if plots:
        from plotly.offline import get_plotlyjs

        codes.insert(0, get_plotlyjs())
    return environment.get_template(template).render(
        **{name: value for name, value in page.items() if name not in data},
        data={name: markupsafe.Markup(script_json(page[name])) for name in data},
        style=markupsafe.Markup((TEMPLATES / "page.css").read_text()),
        scripts=[markupsafe.Markup(code) for code in codes],
    )


def script_json(value: Any) -> str:
    """Write JSON that cannot end its script element; all beyond ASCII is escaped."""
    text = json.dumps(units.as_json(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _page(runs: Sequence[Run]) -> dict[str, Any]:
    """Give all data of the page: that of its template, and that of its scripts (`_DATA`)."""
    table = frames.frame(runs)
    parts = {
        name: (section, ranking.ranked(table[table["suite"] == name], section.rank))
        for name, section in frames.sections(runs, table).items()
    }
    views, drawn = _sections(parts)
    looks = charts.looks(table, [section for section, _ in parts.values()])
    found, glances = contests.contests(runs), joined.glances(parts)
    scatters = glance.charts(glances)
    return {
        "title": " · ".join(frames.run_names(runs)) or "no runs",
        "best": _best(found) if found else None,
        "glances": {**glance.views(glances), "charts": [*enumerate(scatters, len(drawn))]}
        if glances
        else None,
        "runs": run_views(runs, table),
        "summary": _summary(table, list(parts.values())),
        "sections": views,
        "problems": details.problems(table),
        "costs": costs.costs(table),
        "environments": details.environments(runs),
        "looks": {name: {"colour": colour, "mark": mark} for name, (colour, (mark, _)) in looks.items()},
        "details": details.rows(rows for _, rows in parts.values()),
        "charts": [*drawn, *scatters],
    }


def _best(found: Sequence[contests.Contest]) -> dict[str, Any]:
    return {
        "headings": [(heading, heading in best.NUMBERS) for heading in best.HEADINGS],
        "rows": best.rows(found),
        "remarks": best.remarks(found),
    }


def _sections(parts: Mapping[str, Part]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Give the view of each suite, and the charts of all suites, to which the views refer by number."""
    views: list[dict[str, Any]] = []
    drawn: list[dict[str, Any]] = []
    first_place = 0
    for name, (section, rows) in parts.items():
        found = sections.view(section, rows, first_place)
        numbered = list(enumerate(found["charts"], len(drawn)))
        drawn += found["charts"]
        views.append({**found, "id": f"suite-{len(views) + 1}", "name": name, "charts": numbered})
        first_place += len(rows)
    return views, drawn


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
    timed = [(rank, rows) for rank, rows in contested if units.suffix(rank) == "_s"] or contested
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
        "first": "Fastest" if timed and units.suffix(timed[0][0]) == "_s" else "Least",
        "contests": decided,
        "shared": shared,
        "unsettled": unsettled,
    }
