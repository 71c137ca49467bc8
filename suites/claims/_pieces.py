"""The pieces of a claim that its verdict rests on, whether they were measured or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def of_pieces(
    found: Mapping[str, Mapping[str, Any]], standard: Sequence[str]
) -> dict[str, Mapping[str, Any]]:
    """Give the numbers of all standard pieces, none where one was not measured; or those of tiny pieces."""
    tiny = bool(found) and not set(found) & set(standard)
    return dict(found) if tiny else {piece: found.get(piece, {}) for piece in standard}
