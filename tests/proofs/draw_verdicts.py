"""The figure of docs/measurement.md, drawn from the rows of tests/proofs/simulate_verdicts.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CASES = 40
OLD, NEW, LINE = "#d55e00", "#0072b2", "#555555"
CURVES = {"2 %": ("o", "-"), "4 %": ("s", "--"), "unequal": ("^", ":")}

Row = Mapping[str, Any]


def draw(rows: Sequence[Row], names: Mapping[str, str], file: Path) -> None:
    """Draw the rows of 40 cases: alarms by noise on the left, power by true change on the right.

    Args:
        names: the text of each noise.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["cases"] == CASES]
    # a fixed salt and no date: the same rows give the same bytes
    with mpl.rc_context({"svg.hashsalt": "ssmperf", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(10, 4.4), layout="constrained", facecolor="white")
        FigureCanvasSVG(figure)
        left, right = figure.subplots(1, 2)
        _alarms(left, [row for row in rows if row["change"] == 0], names)
        _power(right, [row for row in rows if isinstance(row["change"], float)], names)
        for axes in (left, right):
            axes.grid(True, linewidth=0.4, alpha=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_axisbelow(True)
        figure.savefig(file, metadata={"Date": None, "Creator": None})


def _alarms(axes: Axes, rows: Sequence[Row], names: Mapping[str, str]) -> None:
    for name, colour, marker, label in (
        ("old_alarms", OLD, "D", "one process per side, by intervals"),
        ("alarms", NEW, "o", "pairs of fresh processes"),
    ):
        rates = [row[name] for row in rows]
        ends = [[100 * abs(rate[0] - rate[end]) for rate in rates] for end in (1, 2)]
        axes.errorbar([100 * rate[0] for rate in rates], range(len(rows)), xerr=ends, label=label,
                      color=colour, marker=marker, linestyle="none", markersize=5, capsize=2)  # fmt: skip
    axes.axvline(5, color=LINE, linewidth=1)
    axes.set_yticks(range(len(rows)), [names[row["noise"]] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(-3, 103)
    axes.set_xlabel(f"% of comparisons of {CASES} unchanged cases")
    axes.set_title("False alarms (line: 5 %)", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.3, -0.13), ncols=2)


def _power(axes: Axes, rows: Sequence[Row], names: Mapping[str, str]) -> None:
    for noise, (marker, dash) in CURVES.items():
        curve = sorted(
            (row["change"], row["power"]) for row in rows if row["noise"] == noise and row["change"]
        )
        if curve:
            changes = [100 * change for change, _ in curve]
            ends = [[100 * abs(power[0] - power[end]) for _, power in curve] for end in (1, 2)]
            axes.errorbar(changes, [100 * power[0] for _, power in curve], yerr=ends, label=names[noise],
                          color=NEW, marker=marker, linestyle=dash, markersize=5, capsize=2)  # fmt: skip
    axes.axvline(5, color=LINE, linewidth=1)
    axes.set_ylim(-3, 103)
    axes.set_xlim(0, 21)
    axes.set_xlabel("true change, % slower")
    axes.set_ylabel(f"% of the changed cases (3 of {CASES})")
    axes.set_title("Called slower (line: the threshold)", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
