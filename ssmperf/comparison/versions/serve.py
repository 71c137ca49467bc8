"""One side of a comparison: a process that measures rounds of its version's cases on request.

The side's interpreter starts it as `python -m ssmperf.versions.serve`. Requests and answers are JSON, one
object per line. The first request has the arguments of `Request.of`, the plug-in files, and as `partner` an
inherited descriptor, one end of a socket to the other side. Beside these is `judged_at`, an argument that
older versions do not know. Its answer is `{"cases": [...], "refusal", "judged_at", "prepares", "turns",
"alternates"}`: the cases to run, why another one is not run, where it judges, and that it knows the request
`{"prepare": round, "cases"}`, turns, and turns within a case. `{"prepare"}` starts the processes of a
round, and is answered with `{"prepared": round}` when they wait for cases. `{"round", "cases"}` measures a
round of the cases with these ids. While it runs, `{"start": case}` and `{"record": case, "status", "reason"}`
are sent; `{"round", "measured"}` ends it, with the number of cases that had no record before. With `"turns":
true` each start has the number of cases `left`, and the case waits for `{"go": true}`. If that has `"pair":
number` and `"first": bool`, the other side goes with the same pair, and they take turns within the case, over
the socket. Failures are answered with `{"failed": text}`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from functools import partial
from typing import Any, TextIO

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.execute.request import Request
from ssmperf.engine.execute.run import OpenRun, Silent, open_run
from ssmperf.engine.plan.parts.apart import planned_apart
from ssmperf.engine.plan.selection import NAMED
from ssmperf.engine.processes.partner import Partner
from ssmperf.errors import SsmperfError

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until the requests end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of plug-ins goes to the log
    try:
        arguments = json.loads(sys.stdin.readline() or "{}")
        ask = partial(Request.of, **arguments["request"], judged_at=arguments.get("judged_at", NAMED))
        request, plan = planned_apart(arguments["plugins"], ask)
        partner = Partner(arguments["partner"]) if "partner" in arguments else None
        progress = Telling(answers, partner)
        with open_run(request, progress, partner=partner, planned=plan) as opened:
            serve(opened, progress)
    except SsmperfError as error:
        _send(answers, {"failed": str(error)})
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        sys.exit(1)


def serve(opened: OpenRun, progress: Telling) -> None:
    """Answer requests for rounds until there are no more."""
    cases = {case.id: case for case in opened.to_run}
    opened.record_refusals()
    refusal = next((item.refusal for item in opened.plan.refused), None)
    progress.answer(
        {
            "cases": [case.to_json() for case in cases.values()],
            "refusal": refusal,
            "judged_at": opened.request.judged_at,
            "prepares": True,
            "turns": True,
            "alternates": progress.partner is not None,
        }
    )
    for line in sys.stdin:
        request = json.loads(line)
        chosen = [cases[id_] for id_ in request["cases"]]
        if "prepare" in request:
            opened.prepare(request["prepare"], chosen)
            progress.answer({"prepared": request["prepare"]})
            continue
        progress.told = 0
        progress.left = len(opened.to_do(request["round"], chosen)) if request.get("turns") else None
        opened.run_round(request["round"], chosen)
        progress.answer({"round": request["round"], "measured": progress.told})


class Telling(Silent):
    """Tells the driver of each case."""

    def __init__(self, answers: TextIO, partner: Partner | None) -> None:
        self.answers, self.partner = answers, partner
        self.told = 0  # cases
        self.left: int | None = None  # cases that wait for their turn, if they do

    def answer(self, message: dict[str, Any]) -> None:
        _send(self.answers, message)

    def start(self, case: Case, device: str) -> None:
        if self.left is None:
            self.answer({"start": case.to_json()})
            return
        self.answer({"start": case.to_json(), "left": self.left})
        self.left -= 1
        line = sys.stdin.readline()
        if not line:
            raise KeyboardInterrupt  # the driver has ended
        go = json.loads(line)
        if self.partner is not None and "pair" in go:
            self.partner.begin(go["pair"], first=go["first"])

    def finish(self, record: Record) -> None:
        if self.partner is not None:
            self.partner.end()
        if record.status is not Status.UNSUPPORTED:
            self.told += 1
            case, status = record.case.to_json(), str(record.status)
            self.answer({"record": case, "status": status, "reason": record.reason})


def _send(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
