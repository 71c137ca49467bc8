"""Run cheats through the command line and show what the harness says of each.

python tests/cheats/run.py                       every cheat that this machine can run, each alone
python tests/cheats/run.py part_by_stack ...     these
python tests/cheats/run.py --together            as the test runs them: few runs for all
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import ssmperf

HERE = Path(__file__).parent
if str(HERE.parent) not in sys.path:
    sys.path.append(str(HERE.parent))  # for the package `cheats`

from cheats import NEIGHBOUR, TABLE, WRONG, Cheat  # noqa: E402

FASTEST = 0.7  # an honest time is at least this share of the twin's
SLOWEST = 3.0  # a neighbour's time is at most this multiple of its time alone, and at least the inverse
NOISE = 3.0  # by which a busy machine may change a ratio of times
MOST_TIED = 1.25  # by which a value may be above the least one, and share the first place
ATTEMPTS = 4


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The harness's answer to a cheat, its twin and its neighbour: records as JSON, None where missing."""

    cheat: Cheat
    record: dict[str, Any] | None
    twin: dict[str, Any] | None
    neighbour: dict[str, Any] | None
    log: str = ""
    calibrated: bool = False  # whether an environment of the run has a calibration that no file has

    @property
    def status(self) -> str:
        return "no record" if self.record is None else str(self.record["status"])

    @property
    def ratio(self) -> float | None:
        """The cheat's time relative to its twin's; None unless both have one."""
        if self.cheat.value != "latency_s":
            mine, other = ((each or {}).get(self.cheat.value) for each in (self.record, self.twin))
            return mine / other if mine and other else None
        return _ratio(self.record, self.twin)

    @property
    def neighbour_ratio(self) -> float | None:
        """The neighbour's time relative to that of the honest loop in an untouched process.

        On a GPU it is that of a replayed graph, since a neighbour also looks at its process in every call.
        """
        graphs = [each and each.get("graph_latency_s") for each in (self.neighbour, self.twin)]
        return graphs[0] / graphs[1] if all(graphs) else _ratio(self.neighbour, self.twin)

    @property
    def shares_first_place(self) -> bool:
        """Whether it would share the first place with its twin although it takes much longer."""
        ends = [
            tuple((each or {}).get(name) for name in ("latency_s", "latency_low_s", "latency_high_s"))
            for each in (self.twin, self.record)
        ]
        known = all(each[0] for each in ends)
        return known and ends[1][0] > MOST_TIED * ends[0][0] and ssmperf.first_places(ends)[1]

    @property
    def may_be_chance(self) -> bool:
        """Whether the noise of a busy machine may explain all problems: times that are not far off."""
        untimed = dataclasses.replace(self.cheat, must=NEIGHBOUR, neighbour=False)
        others = dataclasses.replace(self, cheat=untimed)
        near = self.ratio is None or self.ratio >= FASTEST / NOISE
        far = self.neighbour_ratio or 1.0
        honest = self.neighbour is None or self.neighbour["status"] == "ok"
        missed = self.status == "ok" and self.cheat.must == WRONG
        return not (others.problems() or missed) and near and honest and 1 / NOISE <= far / SLOWEST <= NOISE

    def problems(self) -> list[str]:
        """Say in which ways the harness was deceived."""
        found = []
        if self.twin is None or self.twin["status"] != "ok":
            found.append(f"its honest twin is {_told(self.twin)}")
        if self.record is None:
            found.append(f"it has no record: {self.log[-300:]}")
        elif self.status == "ok" and self.cheat.must == WRONG:
            found.append("it is ok")
        elif self.status == "ok" and self.cheat.must != NEIGHBOUR and (self.ratio or 1.0) < FASTEST:
            found.append(f"it is ok with {self.ratio:.2f} of its twin's time")
        elif self.status == "ok" and self.shares_first_place:
            found.append(f"it is first, with {self.ratio:.2f} of its twin's time")
        if self.status == "ok" and self.twin and self.record.get("env_id") != self.twin.get("env_id"):
            found.append("it has an environment of its own")
        if self.calibrated:
            found.append("the environment has a calibration that nobody has made")
        if self.cheat.neighbour:
            ratio = self.neighbour_ratio
            if self.neighbour is None or self.neighbour["status"] != "ok":
                found.append(f"its neighbour is {_told(self.neighbour)}")
            elif ratio is not None and not 1 / SLOWEST <= ratio <= SLOWEST:
                found.append(f"its neighbour takes {ratio:.2f} of its time alone")
        return found


def run_cheats(cheats: Sequence[Cheat], *, timeout: float = 30.0) -> list[Outcome]:
    """Run these cheats with their twins and neighbours, in as few runs as their options allow."""
    outcomes = []
    for _, members in groupby(sorted(cheats, key=_run_key), key=_run_key):
        outcomes += _run_together(list(members), timeout)
    order = {cheat.name: place for place, cheat in enumerate(cheats)}
    return sorted(outcomes, key=lambda outcome: order[outcome.cheat.name])


def confirmed(outcome: Outcome, *, timeout: float) -> list[str]:
    """Give the problems of a cheat that are no chance: where they may be, it is run again, alone."""
    for _ in range(ATTEMPTS - 1):
        if not outcome.problems() or not outcome.may_be_chance:
            break
        (outcome,) = run_cheats([outcome.cheat], timeout=timeout)
    return outcome.problems()


def time_of(record: dict[str, Any] | None) -> float | None:
    """Read a record's time: the native call, with what is shown beside it for its preparation."""
    if record is None or record.get("latency_s") is None:
        return None
    beside = [
        value
        for name, value in record.items()
        if name.startswith(("prepare", "finish", "hidden"))
        and name.endswith("_s")
        and isinstance(value, float)
    ]
    return float(record["latency_s"]) + sum(beside)


def _run_key(cheat: Cheat) -> tuple[object, ...]:
    return (cheat.device, cheat.options, cheat.runs, cheat.neighbour, cheat.name if cheat.alone else "")


def _run_together(cheats: list[Cheat], timeout: float) -> list[Outcome]:
    names = {f"cheat_{cheat.name}" for cheat in cheats} | {cheat.twin for cheat in cheats}
    names |= {f"cheat_{cheat.name}_neighbour" for cheat in cheats if cheat.neighbour}
    names |= {name for cheat in cheats for name in cheat.also}
    files = dict.fromkeys(["twins.py", *(cheat.file for cheat in cheats)])
    first = cheats[0]
    suite, *options = first.options
    words = ["run", "--suite", suite, "--preset", "smoke", "--models", "scan", "--device", first.device]
    words += ["--backends", ",".join(sorted(names)), "--timeout", str(timeout), *options]
    if "--regime" not in options:
        words += ["--regime", ",".join(f"{regime}/data" for regime in ssmperf.REGIMES if regime != "phase")]
    for file in files:
        words += ["--plugin", str(HERE / file)]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first.runs):
            out = Path(folder) / f"run{number}"
            done = _command([*words, "--out", str(out)], Path(folder))
        records, calibrated = _records(out), _calibrated(out)
    return [
        Outcome(
            cheat,
            _worst(records, f"cheat_{cheat.name}", cheat.pass_),
            _worst(records, cheat.twin, cheat.pass_),
            _worst(records, f"cheat_{cheat.name}_neighbour", cheat.pass_),
            done.stdout + done.stderr,
            calibrated,
        )
        for cheat in cheats
    ]


def _command(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own: loading some of these plug-ins changes the process."""
    path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", "from ssmperf.shell.cli import main; main()", *words],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder), "SSMPERF_CALIBRATION": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def _records(out: Path) -> list[dict[str, Any]]:
    """Read the records of a run as the file has them."""
    file = out / "records.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _calibrated(out: Path) -> bool:
    """Tell whether a run has a calibration; the runs of cheats have an empty folder of calibrations."""
    file = out / "run.json"
    environments = json.loads(file.read_text())["environments"] if file.exists() else {}
    return any(each.get("calibration") for each in environments.values())


def _worst(records: Sequence[dict[str, Any]], backend: str, pass_: str | None) -> dict[str, Any] | None:
    """Take the record of a backend: one that is not ok, if there is any."""
    own = [record for record in records if record["backend"] == backend and pass_ in (None, record["pass"])]
    return next((record for record in own if record["status"] != "ok"), own[0] if own else None)


def _ratio(record: dict[str, Any] | None, twin: dict[str, Any] | None) -> float | None:
    mine, other = time_of(record), time_of(twin)
    return None if mine is None or not other else mine / other


def _told(record: dict[str, Any] | None) -> str:
    return "missing" if record is None else f"{record['status']} ({record['reason']})"


def table(outcomes: Iterable[Outcome]) -> str:
    """Lay the outcomes out, one line per cheat. next: the neighbour's time relative to its time alone."""
    lines = [
        f"{'cheat':30} {'status':11} {'time':>9} {'twin':>9} {'ratio':>6} {'next':>6}  deceived in · reason"
    ]
    for outcome in outcomes:
        mine, other = time_of(outcome.record), time_of(outcome.twin)
        said = "; ".join(outcome.problems()) or "nothing"
        reason = (outcome.record or {}).get("reason")
        lines.append(
            f"{outcome.cheat.name:30} {outcome.status:11} {_ms(mine):>9} {_ms(other):>9} "
            f"{_number(outcome.ratio):>6} {_number(outcome.neighbour_ratio):>6}  {said}"
            + (f" · {reason[:110]}" if reason else "")
        )
    return "\n".join(lines)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.3f} ms"


def _number(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def main() -> None:
    """Run the cheats that are named, or all that this machine can run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CHEAT")
    parser.add_argument("--together", action="store_true", help="share runs, as the test does")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    chosen = parser.parse_args()
    known = {cheat.name: cheat for cheat in TABLE}
    unknown = set(chosen.names) - set(known)
    if unknown:
        parser.error(f"no such cheat: {', '.join(sorted(unknown))} (there are {', '.join(known)})")
    cheats = [known[name] for name in chosen.names] or [c for c in TABLE if c.device == chosen.device]
    if chosen.together:
        print(table(run_cheats(cheats)))
        return
    print(table([]))
    for cheat in cheats:
        print(table(run_cheats([cheat])).splitlines()[1], flush=True)


if __name__ == "__main__":
    main()
