"""Counts and bounds of the blocks that tests/proofs/verdict_rates.py measured."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scipy.stats import beta, binom

LEVEL = 0.05  # of alarms per comparison: docs/measurement.md
LUCK = 1e-3  # probability of so many alarms at that level, below which the promise is broken


def summarise(out: Path) -> int:
    """Print counts per block and over all blocks, with bounds, and write them to `summary.json`.

    Returns: the exit code.
    """
    blocks = []
    for file in sorted(out.glob("block-*.json.gz")):
        with gzip.open(file, "rt") as text:
            blocks.append(json.load(text))
    rows = [counts(block) for block in blocks]
    for row in rows:
        print(
            f"block {row['block']:2d}: {row['alarms']} alarms in {row['same']} unchanged cases, "
            f"{row['found']} of {row['planted']} planted found; single rounds: {row['single alarms']} alarms "
            f"in {row['single same']}, {row['single found']} of {row['single planted']} found"
        )
    total = {name: sum(row[name] for row in rows) for name in rows[0] if name != "block"} if rows else {}
    total["blocks"], total["blocks with alarms"] = len(rows), sum(row["alarms"] > 0 for row in rows)
    for prefix in ("", "single ") if rows else ():
        alarms, same = total[f"{prefix}alarms"], total[f"{prefix}same"]
        found, planted = total[f"{prefix}found"], total[f"{prefix}planted"]
        total[f"{prefix}alarms at most"] = bound(alarms, same)
        total[f"{prefix}missed at most"] = bound(planted - found, planted)
        print(
            f"{prefix or 'ab '}verdicts: {alarms} alarms in {same} unchanged cases (with 95 % confidence at "
            f"most {bound(alarms, same):.2%}, were they independent), {found} of {planted} planted found "
            f"(at most {bound(planted - found, planted):.2%} missed)"
        )
    print(f"{total['blocks with alarms']} of {len(rows)} blocks with an alarm")
    (out / "summary.json").write_text(json.dumps({"total": total, "blocks": rows}, indent=1) + "\n")
    return code_of(len(rows), total["blocks with alarms"])


def code_of(blocks: int, alarmed: int) -> int:
    """Judge the number of blocks with an alarm: 0 as promised, 3 too many, 4 nothing to judge."""
    if not blocks:
        return 4
    return 3 if binom.sf(alarmed - 1, blocks, LEVEL) < LUCK else 0


def counts(block: Mapping[str, Any]) -> dict[str, int]:
    """Count the alarms and the planted cases that were found, in one block."""
    timed = [each for each in block["cases"] if each["ratio"] is not None]
    row = {"block": block["block"]}
    for planted, all_, hit in ((False, "same", "alarms"), (True, "planted", "found")):
        chosen = [each for each in timed if each["planted"] is planted]
        row[all_] = len(chosen)
        row[hit] = sum(each["verdict"] == "slower" for each in chosen)
        row[f"single {all_}"] = sum(len(each["single"]) for each in chosen)
        row[f"single {hit}"] = sum(each["single"].count("slower") for each in chosen)
    return row


def bound(count: int, trials: int) -> float:
    """Give the upper 95 % bound of a share, after Clopper and Pearson."""
    return 1.0 if count >= trials else float(beta.ppf(0.95, count + 1, trials - count))
