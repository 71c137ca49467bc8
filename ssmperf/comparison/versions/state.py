"""The state of a comparison or a search as JSON in its folder, by which an interrupted one goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssmperf.engine.plan import nonce
from ssmperf.errors import UnreadableRun, UsageError

PLAN_FILE = "ab.json"


def start(described: Mapping[str, Any], out: Path, *, resume: bool) -> dict[str, Any]:
    """Make the first `ab.json` of a comparison, or read that of the one to resume.

    described: what `Versions.to_json` returns.
    """
    file = out / PLAN_FILE
    described = json.loads(json.dumps(described))  # as it is in the file: tuples are lists there
    if file.exists() and resume:
        state = read_state(file)
        changed = [name for name, value in described.items() if state.get(name) != value]
        if changed:
            raise UsageError(
                f"the comparison in {out} was begun with another {', '.join(changed)}: pass the same, or "
                "another --out"
            )
        return state
    try:
        if out.exists() and any(out.iterdir()):
            raise UsageError(f"{out} already exists and is not empty: pass --resume or another --out")
    except OSError as error:
        raise UsageError(f"cannot write the folder {out}: {error.strerror or error}") from error
    given = described["arguments"].get("nonce")
    return {**described, "nonce": given or nonce.as_text(nonce.fresh())}


def read_state(file: Path) -> dict[str, Any]:
    """Read the state of a comparison.

    Raises:
        UnreadableRun: it cannot be read, or is damaged.
    """
    try:
        state = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UnreadableRun(f"cannot read {file}: {error}") from error
    if not isinstance(state, dict) or not isinstance(state.get("nonce"), str):
        raise UnreadableRun(f"{file} is damaged: it is no object with a nonce")
    return state


def write_state(file: Path, state: Mapping[str, Any]) -> None:
    """Write the state of a comparison or a search as JSON; the file is always a whole one.

    Raises:
        UsageError: it cannot be written.
    """
    temporary = file.with_name(f"{file.name}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(state, indent=1) + "\n")
        temporary.replace(file)
    except OSError as error:
        raise UsageError(f"cannot write to {file.parent}: {error.strerror or error}") from error
