"""Adds up the JUnit files of the test steps: `python ci/totals.py FILE...`.

The last line is the sum. The one before it says what became of the tests that need a GPU: those of the file
gpu.xml, and those that other steps have skipped because there is none.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

NO_GPU = re.compile(r"reason needs (a|two) CUDA device")  # why tests are skipped where there is none


def outcomes(file: Path) -> Counter[str]:
    """How many tests of one step passed, failed and were skipped, and the reasons of the skips."""
    counts: Counter[str] = Counter()
    for case in ElementTree.parse(file).iter("testcase"):
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        elif skip is not None:
            counts["skipped"] += 1
            counts[f"reason {reason(skip)}"] += 1
        else:
            counts["passed"] += 1
    return counts


def reason(skip: ElementTree.Element) -> str:
    """Why a test was skipped; a whole file's reason is in the text, not in the message."""
    whole = re.search(r"Skipped: (.*)['\"]\)", skip.text or "")
    return whole[1] if whole else str(skip.get("message"))


def summary(counts: Counter[str]) -> str:
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"


def need_gpu(counts: Counter[str]) -> Counter[str]:
    """Count those of a step's tests that were skipped because there is no GPU."""
    found = Counter({key: count for key, count in counts.items() if NO_GPU.match(key)})
    return found + Counter(skipped=found.total())


def main(files: list[str]) -> None:
    steps = {Path(file).stem: outcomes(Path(file)) for file in files}
    gpu = sum((counts if name == "gpu" else need_gpu(counts) for name, counts in steps.items()), Counter())
    if "gpu" in steps or gpu:
        reasons = sorted(key.removeprefix("reason ") for key in gpu if key.startswith("reason "))
        print(f"GPU tests: {summary(gpu)}" + (f" ({'; '.join(reasons)})" if reasons else ""))
    print(f"tests: {summary(sum(steps.values(), Counter()))}")


if __name__ == "__main__":
    main(sys.argv[1:])
