"""Data for a page's scripts, compressed: gzip as base64, which cannot end a script element.

`unpack.js` reads it. The same value gives the same text.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
from typing import Any

from ..rows import units


def pack(value: Any) -> str:
    """Pack a value as JSON. Numbers that JSON does not have become null."""
    return pack_text(json.dumps(units.as_json(value), separators=(",", ":"), allow_nan=False))


def pack_text(text: str) -> str:
    """Pack a text."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@functools.cache
def plotting_library() -> str:
    """Pack plotly's script, which is most of a small page."""
    from plotly.offline import get_plotlyjs

    return pack_text(get_plotlyjs())
