"""The driver's end of one side: its process, requests for rounds, and its messages."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmperf.comparison.versions.sides import Side
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.execute.run import Progress
from ssmperf.engine.machine.activity import SIDE
from ssmperf.engine.plan.selection import NAMED
from ssmperf.errors import VersionEnded, VersionFailed

TAIL_BYTES = 4096
CLOSE_S = 30.0

Heard = Callable[[Mapping[str, Any]], None]


def pass_on(progress: Progress, message: Mapping[str, Any]) -> None:
    """Tell a progress what a message says about a case."""
    if "start" in message:
        case = Case.from_json(message["start"])
        progress.start(case, case.device)
    elif "record" in message:
        case, status = Case.from_json(message["record"]), Status(message["status"])
        progress.finish(Record(case, status, message["reason"]))


@dataclass(frozen=True, slots=True)
class Turn:
    """A case that waits for its turn. left: how many cases of the round are to be measured, with this one."""

    case_id: str
    left: int


class SideProcess:
    """One side's process.

    name: "base" or "new". run_folder: folder of its run; its log lies beside it.
    arguments: those of `Request.of`, without folder and tag.
    on_message: called with each message about a case, and before with `{"judged_at"}`, where the side judges.
    partner: the descriptor of its end of a socket to the other side's process; None if there is no other one.
    cases: those that it can run, by id. refusal: why it does not run another one, None if it runs all.
    takes_turns: whether a round may stop before each case; older versions cannot.
    alternates: whether it can take samples of a case in turns with the other side; older versions cannot.
    measured: cases of the last round that had no record before.

    Raises:
        VersionFailed: the side refuses the request, for example since its version does not know an option.
        VersionEnded: it ended.
    """

    def __init__(
        self,
        name: str,
        side: Side,
        run_folder: Path,
        arguments: Mapping[str, Any],
        on_message: Heard,
        partner: int | None,
    ) -> None:
        self.name, self.side, self.run_folder, self.on_message = name, side, run_folder, on_message
        self.log = run_folder.with_suffix(".log")
        judged_at = arguments.get("judged_at", NAMED)
        request = {
            **{keyword: value for keyword, value in arguments.items() if keyword != "judged_at"},
            "out": str(run_folder.resolve()),
            "tag": f"{name}: {side.label}",
            "resume": True,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [side.python, "-m", SIDE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=side.environment,
                text=True,
                pass_fds=() if partner is None else (partner,),
            )
        try:
            common = {} if partner is None else {"partner": partner}
            asked = {"plugins": list(side.plugins), "request": request, **common}
            self._send({**asked, "judged_at": judged_at})
            answer = self._until("cases")
            judges_at = answer.get("judged_at", NAMED)  # older versions: at the T that is named
            if name == "new" and partner is not None and judges_at != judged_at:
                raise VersionFailed(
                    f"{name} ({side.label}): its ssmperf is older than base's and judges at the T that is "
                    "named alone: leave out the axis T, or compare throughput alone",
                    name,
                )
            on_message({"judged_at": judges_at})
        except BaseException:
            self.kill()
            self.close()
            raise
        self.cases: dict[str, Case] = {case.id: case for case in map(Case.from_json, answer["cases"])}
        self.refusal: str | None = answer["refusal"]
        self._prepares = bool(answer.get("prepares"))  # older versions do not
        self.takes_turns = bool(answer.get("turns"))
        self.alternates = bool(answer.get("alternates"))
        self.measured = 0

    def prepare(self, number: int, ids: Sequence[str]) -> None:
        """Begin to start the processes for a round of these cases; `wait_until_prepared` waits for them."""
        if self._prepares:
            self._send({"prepare": number, "cases": list(ids)})

    def wait_until_prepared(self) -> None:
        """Wait until the processes for the next round have started."""
        if self._prepares:
            self._until("prepared")

    def run_round(self, number: int, ids: Sequence[str]) -> int:
        """Measure a round of these cases; return how many had no record before."""
        self._send({"round": number, "cases": list(ids)})
        return int(self._until("round")["measured"])

    def begin_round(self, number: int, ids: Sequence[str]) -> Turn | None:
        """Begin a round of these cases in turns; return its first one, None if there is none to measure."""
        self._send({"round": number, "cases": list(ids), "turns": True})
        return self.end_turn()

    def take_turn(self) -> Turn | None:
        """Measure the case that waits; return the next one, None at the end of the round."""
        self._send({"go": True})
        return self.end_turn()

    def begin_turn(self, pair: int, *, first: bool) -> None:
        """Begin to measure the case that waits, in turns with the other side, which begins it as well.

        pair: a number that no other pair of cases has had. first: whether this side begins.
        """
        self._send({"go": True, "pair": pair, "first": first})

    def end_turn(self) -> Turn | None:
        """Wait for the next case after the one under way; return it, or None at the end of the round."""
        message = self._until("left", "round")
        if "round" in message:
            self.measured = int(message["measured"])
            return None
        self.on_message(message)
        return Turn(Case.from_json(message["start"]).id, int(message["left"]))

    def close(self) -> None:
        """Let the process end its run, or end it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(CLOSE_S)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def kill(self) -> None:
        """End the process at once; its workers end with it."""
        self.process.kill()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise VersionEnded(self._ending(), self.name) from None

    def _until(self, *names: str) -> Mapping[str, Any]:
        """Handle messages until one with such a key comes; return it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if "failed" in message:
                raise VersionFailed(f"{self.name} ({self.side.label}): {message['failed']}", self.name)
            if any(name in message for name in names):
                return dict(message)
            self.on_message(message)
        raise VersionEnded(self._ending(), self.name)

    def _ending(self) -> str:
        self.process.kill()
        code = self.process.wait()
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
        last = next((line for line in reversed(lines) if line), "it printed nothing")
        if f"No module named {SIDE}" in last or "No module named 'ssmperf" in last:
            last = f"its ssmperf is missing or too old for ab ({last})"
        return f"{self.name} ({self.side.label}) exited with {code}: {last} (its log: {self.log})"
