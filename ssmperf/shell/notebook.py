"""The progress of a run in a cell of a notebook."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record
from ssmperf.engine.execute.run import Progress
from ssmperf.shell.terminal.display import FINE, brief

LONGEST = 70  # letters beside the bar


def cell_progress() -> Progress | None:
    """Make a progress bar if this process is the kernel of a notebook; None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return None if getattr(shell, "kernel", None) is None else CellProgress()


class CellProgress:
    """Shows a progress bar as text, and prints cases that are neither ok nor unsupported above it."""

    def begin(self, total: int, done: int) -> None:
        self.bar: tqdm[Any] = tqdm(
            desc="starting a worker", total=total, initial=done, unit="case", file=sys.stderr
        )

    def start(self, case: Case, device: str) -> None:
        self.bar.set_description_str(str(case)[:LONGEST])

    def progress(self, case: Case, text: str) -> None:
        self.bar.set_description_str(f"{case.backend}: {brief(text)}"[:LONGEST])

    def finish(self, record: Record) -> None:
        self.bar.update()
        if record.status not in FINE:
            self.bar.write(f"{record.status}: {record.case}: {brief(record.reason)}", file=sys.stderr)

    def drop(self, count: int) -> None:
        self.bar.total -= count
        self.bar.refresh()

    def end(self) -> None:
        self.bar.close()
