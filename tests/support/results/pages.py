"""HTML pages as a test sees them: parsed, with the data of their scripts."""

from __future__ import annotations

import base64
import functools
import gzip
import json
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "img", "br", "hr", "input"}


def unpack(text: str) -> str:
    """Give a page's compressed data."""
    return gzip.decompress(base64.b64decode(text, validate=True)).decode()


def case_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give the rows of a page's tables of cases, from its data: the text of each column by name, and more.

    first: whether a comparison begins. best: the badge of the first place. shown: the columns on the screen.
    """
    return [
        _case_row(table, place)
        for name, table in data.items()
        if name.startswith("cases-")
        for place in range(len(table["columns"][0]["cells"]))
    ]


def _case_row(table: Mapping[str, Any], place: int) -> dict[str, Any]:
    cells = {column["name"]: column["cells"][place] for column in table["columns"]}
    numbers = {column["name"]: cells[column["name"]] for column in table["columns"] if column["number"]}
    tied = table["best"].get(str(place))
    return {
        **{name: cell for name, cell in cells.items() if name not in numbers},
        **{name: cell and cell[0] for name, cell in numbers.items()},
        "values": {name: cell[1] if cell and len(cell) > 1 else None for name, cell in numbers.items()},
        "notes": {name: cell[2] for name, cell in numbers.items() if cell and len(cell) > 2},
        "first": place in table["groups"],
        "best": "" if tied is None else table["word"] + (", tied" if tied else ""),
        "mark": table["marks"].get(str(place), ""),
        "reason": table["reasons"].get(str(place), ""),
        "shown": [column["name"] for column in table["columns"] if column["shown"]],
    }


def case_details(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give the details of each row of a page, from its data. fields: name, text and exact number of each."""
    return [
        {**row, "fields": [field for column in table["fields"] for field in _field(column, place)]}
        for name, table in data.items()
        if name.startswith("details-")
        for place, row in enumerate(table["rows"])
    ]


def _field(column: Mapping[str, Any], place: int) -> list[list[str]]:
    found = column["same"] if "same" in column else column["rows"][place]
    if found is None:
        return []
    return [[column["name"], *(found if isinstance(found, list) else (found, ""))]]


class Page(HTMLParser):
    """Elements with their attributes, texts, and what the page's scripts read, by id, rows and details."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._packed: dict[str, str] = {}
        self.open: list[str] = []
        self._id = ""
        self.feed(text)

    @functools.cached_property
    def data(self) -> dict[str, Any]:
        return {name: json.loads(unpack(text)) for name, text in self._packed.items()}

    @property
    def rows(self) -> list[dict[str, Any]]:
        return case_rows(self.data)

    @property
    def details(self) -> list[dict[str, Any]]:
        return case_details(self.data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.elements.append((tag, found))
        if tag not in VOID:
            self.open.append(tag)
        self._id = found["id"] if found.get("type") == "application/json+gzip" else ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._id = ""

    def handle_data(self, data: str) -> None:
        if self._id:
            self._packed[self._id] = data
        elif self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    def having(self, **wanted: str) -> list[dict[str, str]]:
        return [found for _, found in self.elements if wanted.items() <= found.items()]
