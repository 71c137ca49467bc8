"""The nonce of a run: a secret on which all values depend, so that no answer can be kept from an earlier run.

It is added to the number of every draw of operands, states and incoming gradients, and is no part of a case.
A resumed run goes on with its own, and the command that repeats a case carries it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from ssmperf.errors import UsageError

META = "nonce"  # key in run.json
BITS, SPACING = 36, 1 << 12  # the draws of a run have numbers below the spacing
DIGITS = BITS // 4


def fresh() -> int:
    """Draw a nonce."""
    return secrets.randbits(BITS) * SPACING


def as_text(nonce: int) -> str:
    """Write a nonce as the option `--nonce` takes it."""
    return f"{nonce // SPACING:0{DIGITS}x}"


def parse(text: str) -> int:
    """Read a nonce.

    Raises:
        UsageError: it is none.
    """
    try:
        number = int(text, 16) if isinstance(text, str) and 0 < len(text) <= DIGITS else -1
    except ValueError:
        number = -1
    if number < 0:
        raise UsageError(f"the nonce must have up to {DIGITS} hexadecimal digits, got {text!r}")
    return number * SPACING


def resumed(wanted: int | None, meta: Mapping[str, Any], where: str) -> int:
    """Get the nonce with which a run goes on: its own, or a fresh one if it has none.

    Raises:
        UsageError: another one is wanted.
    """
    own = meta.get(META)
    if own is None:
        return fresh() if wanted is None else wanted
    nonce = parse(own)
    if wanted is not None and wanted != nonce:
        raise UsageError(f"the run in {where} was begun with --nonce {own}: pass the same, or leave it out")
    return nonce
