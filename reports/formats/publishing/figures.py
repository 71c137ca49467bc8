"""The charts of each suite as PNG, SVG and PDF files, in the colours of the HTML page."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ssmperf import UsageError
from ssmperf.suitekit import Chart, Section, report

from ...rows import frames, units
from ...views import charts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ssmperf import Run

REFERENCE_DASHES = (":", "--")
_SIZE = (6.4, 4.0)  # inches
_LINE = 110  # letters of the text under a figure
_FILES: dict[str, dict[str, Any]] = {  # without a date: the same input gives the same bytes
    "png": {"dpi": 160, "metadata": {"Software": None}},
    "svg": {"metadata": {"Date": None, "Creator": None}},
    "pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}},
}
_FONTS: Any = {"svg.hashsalt": "ssmperf", "svg.fonttype": "none", "pdf.fonttype": 42, "font.size": 9}

Looks = tuple[dict[str, str], dict[str, str]]  # colours and marks, both by series


@report("figures")
def figures(runs: Sequence[Run], destination: Path | None = None) -> str:
    """Draw every chart of every suite into the folder `destination`, which is made if it is missing.

    There is one file per panel and combination of the other axes, such as
    `throughput-latency_s-mamba-float32-forward.svg`. Under each are sizes, dtype, device and date.

    Raises:
        UsageError: there is no destination, or the folder cannot be written.
    """
    if destination is None:
        raise UsageError("figures are files: name the folder to write them to")
    folder = _folder(Path(destination))
    table = frames.frame(runs)
    sections = frames.sections(runs, table)
    looks = _looks(table, sections.values())
    count = 0
    for name, section in sections.items():
        rows = table[table["suite"] == name]
        for chart in section.charts:
            count += _draw_chart(folder, name, chart, rows, looks)
    return f"{count} figures (PNG, SVG and PDF) in {folder}"


def _draw_chart(folder: Path, suite: str, chart: Chart, rows: pd.DataFrame, looks: Looks) -> int:
    """Draw the files of one chart, and give their number."""
    count = 0
    for facet, panel in charts.panels(chart, rows).items():
        axes = charts.selectors(chart, rows)
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for line in panel:
            groups.setdefault(tuple(line["axes"][axis] for axis in axes), []).append(line)
        for combination, lines in groups.items():
            fixed = [value for axis, value in zip(axes, combination, strict=True) if value]
            stem = folder / slug("-".join([suite, chart.y, facet, *fixed]))
            drawn = charts.drawn(chart, rows, facet, dict(zip(axes, combination, strict=True)))
            texts = " · ".join([facet, *fixed]), _circumstances(chart, drawn)
            _draw(stem, texts, chart, lines, looks)
            count += 1
    return count


def _circumstances(chart: Chart, rows: Sequence[dict[str, Any]]) -> str:
    """Say under which circumstances a figure's cases were measured: sizes, dtypes, devices and days."""
    values: dict[str, list[int]] = {}
    for row in rows:
        for letter, size in frames.sizes(row).items():
            if letter != chart.x:
                values.setdefault(letter, []).append(size)
    sizes = " ".join(
        f"{letter}{' to '.join(map(str, dict.fromkeys([min(found), max(found)])))}"
        for letter, found in values.items()
    )
    dtypes = " / ".join(dict.fromkeys(units.plain(row["dtype"]) for row in rows))
    return ", ".join(filter(None, [sizes, dtypes, *frames.devices_and_dates(rows)]))


def _draw(
    stem: Path, texts: tuple[str, str], chart: Chart, lines: list[dict[str, Any]], looks: Looks
) -> None:
    """Draw one figure. texts: above and under it."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    title, under = texts
    with mpl.rc_context(_FONTS):
        figure = Figure(figsize=_SIZE, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        _plot(axes, chart, lines, looks)
        axes.set_title(_literal(title), loc="left", fontsize=10)
        figure.supxlabel(textwrap.fill(_literal(under), _LINE), x=0.01, ha="left", fontsize=7)
        for format_, options in _FILES.items():
            file = stem.with_name(f"{stem.name}.{format_}")
            try:
                figure.savefig(file, **options)
            except OSError as error:
                raise UsageError(f"cannot write {file}: {error.strerror or error}") from error


def _plot(axes: Axes, chart: Chart, lines: list[dict[str, Any]], looks: Looks) -> None:
    if len({x for line in lines for x in line["x"]}) == 1:
        _dots(axes, chart, lines, looks)
    else:
        _lines(axes, chart, lines, looks)
    axes.grid(True, which="major", linewidth=0.4, alpha=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _dots(axes: Axes, chart: Chart, lines: list[dict[str, Any]], looks: Looks) -> None:
    """Draw one row of points per series: with a single value of x, a line would be a point.

    The least comes first, after it what does not compete.
    """
    from matplotlib.ticker import EngFormatter

    colours, marks = looks
    lines = [line for line in lines if not line["reference"]]
    lines = sorted(lines, key=lambda line: (charts.STANDINGS.index(line["standing"]), line["y"][0]))
    names = list(dict.fromkeys(line["series"] for line in lines))
    labels = {line["series"]: _label(line) for line in reversed(lines)}
    for line in lines:
        name = line["series"]
        interval = [line["below"], line["above"]] if line["below"] else None
        axes.errorbar(line["y"], [names.index(name)], xerr=interval, color=colours.get(name),
                      marker=marks.get(name, "o"), markersize=6, capsize=3, **_face(line))  # fmt: skip
    axes.set_yticks(range(len(names)), [labels[name] for name in names])
    axes.invert_yaxis()
    if chart.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(EngFormatter(unit=units.unit(chart.y), sep=" "))
        axes.tick_params(axis="x", which="minor", labelbottom=False)
    axes.set_xlabel(_literal(f"{units.label(chart.y)} at {chart.x} = {lines[0]['x'][0]}"))


def _lines(axes: Axes, chart: Chart, lines: list[dict[str, Any]], looks: Looks) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogFormatterSciNotation

    colours, marks = looks
    dashes = ("-", "--", ":", "-.")
    rests = list(dict.fromkeys(line["rest"] for line in lines))
    named: set[str] = set()
    for line in lines:
        name = line["series"]
        if line["reference"]:
            shown = f"_{name}" if name in named else _label(line)
            dash = REFERENCE_DASHES[(line["reference"] - 1) % len(REFERENCE_DASHES)]
            axes.plot(line["x"], line["y"], color="0.6", linestyle=dash, linewidth=1.2, label=shown)
            named.add(name)
            continue
        interval = [line["below"], line["above"]] if line["below"] else None
        dash = dashes[rests.index(line["rest"]) % len(dashes)]
        axes.errorbar(line["x"], line["y"], yerr=interval, color=colours.get(name), linestyle=dash,
                      marker=marks.get(name, "o"), markersize=4, linewidth=1.4, capsize=2, **_face(line),
                      label=_label(line) if name not in named else "_again")  # fmt: skip
        named.add(name)
    numeric = all(isinstance(x, (int, float)) for line in lines for x in line["x"])
    if chart.log:
        axes.set_yscale("log")
        unit = units.unit(chart.y)
        # engineering prefixes are for quantities: an error of "3 µ" is hard to read
        axes.yaxis.set_major_formatter(
            EngFormatter(unit=unit, sep=" ") if unit else LogFormatterSciNotation()
        )
    if (chart.log or chart.log_x) and numeric:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.set_xlabel(_literal(units.axis_title(chart.x)))
    axes.set_ylabel(_literal(units.label(chart.y)))
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _label(line: dict[str, Any]) -> str:
    """Name a line in a legend, with its mark if its backend does not compete everywhere."""
    return _literal(f"{line['series']} ({line['mark']})" if line["mark"] else line["series"])


def _face(line: dict[str, Any]) -> dict[str, Any]:
    """Give a line that does not compete hollow markers, and make it faint if its backend is wrong."""
    if line["standing"] == "competes":
        return {}
    return {"markerfacecolor": "none", "alpha": 0.8 if line["standing"] == "beside" else 0.4}


def slug(text: str) -> str:
    """Make a file name of text from outside: letters, digits, dots, dashes, and a hash if that lost any."""
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip(".-")[:120]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _looks(table: pd.DataFrame, sections: Iterable[Section]) -> Looks:
    found = charts.looks(table, sections)
    return {name: look[0] for name, look in found.items()}, {name: look[1][1] for name, look in found.items()}


def _literal(text: str) -> str:
    """Escape text, which matplotlib would read as mathematics, or hide if it starts with an underscore."""
    return units.plain(text).replace("$", r"\$").replace("_", "\u200b_", 1 if text.startswith("_") else 0)


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {path}: {error.strerror or error}") from error
    return path
