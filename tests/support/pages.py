"""HTML pages as a test sees them: parsed, or in a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Elements with their attributes, and the text of each script by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.data: dict[str, Any] = {}
        self.open: list[str] = []
        self._id = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.elements.append((tag, found))
        if tag not in VOID:
            self.open.append(tag)
        self._id = found.get("id", "") if tag == "script" else ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._id = ""

    def handle_data(self, data: str) -> None:
        if self._id:
            self.data[self._id] = json.loads(data)
        elif self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    def having(self, **wanted: str) -> list[dict[str, str]]:
        return [found for _, found in self.elements if wanted.items() <= found.items()]


def browse(file: Path) -> Any:
    """Open a page in Chromium; return what its scripts left as JSON in `data-seen` of the body."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--disable-sync",
               f"--user-data-dir={file.parent / 'profile'}", "--window-size=1400,3000",
               "--virtual-time-budget=8000", "--dump-dom", file.as_uri()]  # fmt: skip
    dump = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    (body,) = [found for tag, found in Page(dump).elements if tag == "body"]
    return json.loads(body["data-seen"])
