"""The backends named as fastest, read off every form in which a run is shown."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import ssmperf
from ssmperf.suitekit import registry

from .pages import case_rows, unpack

STANDINGS = ("competes", "beside", "wrong")
VOID = {"meta", "link", "img", "br", "hr", "input"}


@dataclass
class Element:
    """An element of a page, with its children and its own text in order."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag: str, name: str = "") -> Iterator[Element]:
        """Find the elements below this one with a tag, and a class if it is given."""
        for child in self.children:
            if isinstance(child, Element):
                if child.tag == tag and (not name or name in child.classes):
                    yield child
                yield from child.all(tag, name)

    def by_id(self, name: str) -> Element | None:
        for child in self.children:
            if isinstance(child, Element):
                found = child if child.attributes.get("id") == name else child.by_id(name)
                if found is not None:
                    return found
        return None


class Reader(HTMLParser):
    """Builds the tree of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("page")
        self._open = [self.root]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def page(runs: Sequence[Any]) -> Element:
    return Reader(str(registry.report("html")(runs, None))).root


def report(name: str, runs: Sequence[Any]) -> str:
    return str(registry.report(name)(runs, None))


def claims(runs: Sequence[Any]) -> dict[str, set[str]]:
    """Collect the backends that each form names as fastest in some comparison by a time."""
    found = {name: set(names) for name, names in _of_page(page(runs)).items()}
    found["terminal"] = {
        line.split("▸")[1].split()[0] for line in report("table", runs).splitlines() if "▸" in line
    }
    found["best"] = {name for names, _ in _best_lines(report("best", runs)) for name in names}
    contests = json.loads(report("best_json", runs))
    found["best_json"] = {name for each in contests for name in [*each["fastest"], each["backend"]] if name}
    found["python"] = {name for each in ssmperf.best(runs) for name in each["fastest"]}
    markdown = [line.split(" | ") for line in report("markdown", runs).splitlines() if "**" in line]
    places = [line.split(" | ") for line in report("markdown", runs).splitlines() if "| backend" in line]
    column = [part.strip() for part in places[0]].index("backend")
    found["markdown"] = {cells[column].split()[0].replace("\\", "") for cells in markdown}
    rows = csv.DictReader(io.StringIO(report("csv", runs)))
    found["csv"] = {row["backend"] for row in rows if row["fastest"] == "True"}
    return found


def _of_page(root: Element) -> dict[str, list[str]]:
    best = root.by_id("best")
    data = data_of(root)
    rows = case_rows(data)
    lines = [line for chart in data["charts"] for panel in chart["panels"] for line in panel["lines"]]
    groups = [
        [line for line in panel["lines"] if line["axes"] == first["axes"] and line["rest"] == first["rest"]]
        for chart in data["charts"]
        for panel in chart["panels"]
        for first in panel["lines"]
    ]
    assert all(line["standing"] in STANDINGS for line in lines)
    for chart in data["charts"]:
        for panel in chart["panels"]:
            order = [STANDINGS.index(line["standing"]) for line in panel["lines"]]
            assert order == sorted(order), "a line that does not compete is listed before one that does"
    return {
        "rows of the page": [row["backend"] for row in rows if row["best"]],
        "first rows of the page": [row["backend"] for row in rows if row["first"] and row["status"] == "ok"],
        "best of the page": [
            name
            for body in (best.all("tbody") if best else ())
            for row in body.all("tr")
            for cell in row.all("td")
            if cell.attributes["data-column"] == "fastest"
            for name in _names(cell.text)
        ],
        "cards": [next(item.all("span")).text for part in root.all("ol", "wins") for item in part.all("li")],
        "heat map": [
            button.attributes["data-backend"]
            for cell in root.all("td", "up")
            for button in cell.all("button")
            if button.attributes["data-backend"] != "sequential"
        ],
        # the script lists lines in the order of their standing, then of their first value
        "charts": [
            min(group, key=lambda line: (STANDINGS.index(line["standing"]), line["y"]))
            ["series"]
            for group in groups
        ],
    }  # fmt: skip


def data_of(root: Element) -> dict[str, Any]:
    """Give the data of the page's scripts, by id."""
    return {
        script.attributes["id"]: json.loads(unpack(script.text))
        for script in root.all("script")
        if script.attributes.get("type") == "application/json+gzip"
    }


def _best_lines(text: str) -> Iterator[tuple[list[str], str]]:
    """Give the winners and the whole line of each comparison in the output of `best`."""
    head, *lines = text.splitlines()
    start = head.index("fastest")
    for line in lines:
        if len(line) > start and line[start - 1] == " " and "does not compete" not in line:
            yield _names(re.split(r"\s{2,}", line[start:])[0]), line


def _names(text: str) -> list[str]:
    return [name for name in text.replace(" (tied)", "").split("\n") if name and name != "none competes"]
