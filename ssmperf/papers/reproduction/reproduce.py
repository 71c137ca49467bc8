"""Run claims of papers piece by piece, keep the numbers, and judge them.

A claim states its pieces and its rule before they run: whoever likes a result should not choose the rule. The
numbers of a piece are kept, so that a verdict can be drawn again on a machine that has measured nothing.
"""

from __future__ import annotations

import itertools
import platform
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.failure import failure_of
from ssmperf.engine.execute.request import File, run_folder
from ssmperf.engine.machine import devices as devices_
from ssmperf.engine.machine import environment
from ssmperf.engine.plan.learning import fingerprint
from ssmperf.engine.plan.run_options import Names, names
from ssmperf.engine.registry.checks import Claim
from ssmperf.errors import ExitCode, UnknownName, UsageError
from ssmperf.papers.reproduction.agreement import Agreement, Finding, taken_together
from ssmperf.papers.reproduction.keeping import Folder
from ssmperf.papers.reproduction.setting import ClaimSetting

OTHER_VERSION = "measured under another version of the claim; measure it again"
ONLY_TRIED = "tried at tiny sizes only (--preset smoke)"

OnProgress = Callable[[str], None]
OnPiece = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The result for a claim.

    findings: line by line. agreement, reason: of all together.
    done, planned: number of pieces that have a result, and of all.
    failures: why pieces have none, by piece. spent_s: time of the kept pieces.
    where: the device and the date, if they are known.
    """

    claim: Claim
    findings: tuple[Finding, ...]
    agreement: Agreement
    reason: str
    done: int = 0
    planned: int = 0
    failures: Mapping[str, str] | None = None
    spent_s: float = 0.0
    where: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            **self.claim.to_json(),
            "agreement": str(self.agreement),
            "reason": self.reason,
            "findings": [each.to_json() for each in self.findings],
            "pieces_done": self.done,
            "pieces_planned": self.planned,
            "failures": dict(self.failures or {}),
            "spent_s": self.spent_s,
            "where": self.where,
        }


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Claims with their results, and the folder on which they rest.

    meta: when, where and how, as `reproduce.json` holds it.
    others: what further folders keep, where the results are of several.
    """

    path: Path
    meta: Mapping[str, Any]
    results: tuple[ClaimResult, ...]
    others: tuple[Reproduction, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """OK whatever the verdicts are; BAD_CASE if a piece failed."""
        return ExitCode.BAD_CASE if any(each.failures for each in self.results) else ExitCode.OK

    @property
    def conclusion(self) -> str:
        """Count the verdicts, as in "6 claims: 4 agree, 1 disagrees, 1 cannot be told"."""
        counts = {each: sum(found.agreement is each for found in self.results) for each in Agreement}
        words = {
            Agreement.AGREES: ("agrees", "agree"),
            Agreement.DISAGREES: ("disagrees", "disagree"),
            Agreement.CANNOT_TELL: ("cannot be told", "cannot be told"),
            Agreement.WITHDRAWN: ("is withdrawn", "are withdrawn"),
        }
        parts = [f"{count} {words[each][count > 1]}" for each, count in counts.items() if count]
        noun = "claim" if len(self.results) == 1 else "claims"
        return f"{len(self.results)} {noun}: {', '.join(parts)}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "path": str(self.path),
            **self.meta,
            "conclusion": self.conclusion,
            "claims": [each.to_json() for each in self.results],
        }


def reproduce(
    claims: Names | None = None,
    *,
    out: File | None = None,
    resume: bool = False,
    device: str = "auto",
    preset: str = "standard",
    seeds: int | None = None,
    corpus: File | None = None,
    pieces: Names | None = None,
    argv: Sequence[str] = (),
    progress: OnProgress | None = None,
    on_piece: OnPiece = lambda done, total: None,
) -> Reproduction:
    """Run claims of papers and judge them. Arguments are named as on the command line.

    Args:
        claims: ids; None means all. A claim that this machine cannot run is not run, and says why.
        out: folder of the results; None makes a new one under `runs/`. resume: continue in that folder;
            pieces that have ended are not run again.
        device: "auto", "cpu", "cuda" or "cuda:N".
        preset: "standard"; or "smoke", tiny sizes that only try the code.
        seeds: number of seeds of the trainings; None means the claim's own.
        corpus: file or folder of text to learn; None means the standard library's sources.
        pieces: names of the pieces to run now; the verdict rests on all that are kept. None means all.
        argv: the command line of the request. progress: takes lines about the progress.
        on_piece: takes the numbers of pieces that have ended and of all to run, first and after each piece.

    Raises:
        UsageError: there is no such claim, piece or preset, or the folder, the device or the text cannot be
            used.
    """
    ids, wanted = names(claims), names(pieces)
    chosen = [registry.claim(name) for name in (registry.claims() if ids is None else ids)]
    kind, found = devices_.resolve(device)
    text = None if corpus is None else str(Path(corpus).resolve())
    setting = ClaimSetting(found[0], preset, seeds, text)
    if progress is not None:
        setting = replace(setting, on_progress=progress)
    if wanted is not None:
        _check_pieces(chosen, wanted, setting)
    folder = run_folder(out, ("reproduce",), resume=resume)
    kept = Folder.open(folder, _meta(kind, found[0], setting, argv), resume=resume)
    before = {claim.name: _results(claim, kept, setting) for claim in chosen}
    left = {
        name: [each for each, result in own.items() if result is None and (wanted is None or each in wanted)]
        for name, own in before.items()
    }
    total, ended = sum(map(len, left.values())), itertools.count()

    def on_end() -> None:
        on_piece(next(ended), total)

    on_end()
    results = (
        _result(claim, kept, setting, before[claim.name], left[claim.name], on_end) for claim in chosen
    )
    return Reproduction(folder, kept.meta, tuple(results))


def load_reproduction(path: File, *more: File) -> Reproduction:
    """Judge the contents of a reproduction's folder. Nothing is measured, so any machine can do it.

    It has the claims of which a piece has a result. Those of a plug-in must be loaded. Of several folders,
    such as those of several machines, the first counts that has a result of a claim.

    Raises:
        UnreadableRun: a folder is none of `reproduce`, is damaged, or is of a newer version of ssmperf.
        UsageError: none keeps a result of a claim that is known here.
    """
    found = [_load(Folder.found(Path(each))) for each in (path, *more)]
    first: dict[str, ClaimResult] = {}
    for each in (result for folder in found for result in folder.results):
        before = first.get(each.claim.name)
        if before is None or before.agreement is Agreement.WITHDRAWN:
            first[each.claim.name] = each
    if not first:
        paths = ", ".join(str(each.path) for each in found)
        raise UsageError(f"{paths} keeps no result of a claim; known are {', '.join(registry.claims())}")
    results = tuple(first[name] for name in registry.claims() if name in first)
    return Reproduction(found[0].path, found[0].meta, results, tuple(found[1:]))


def _load(kept: Folder) -> Reproduction:
    """Judge the contents of one folder."""
    meta = kept.meta
    device = "cpu" if meta["device"] == "cpu" else "cuda:0"
    setting = ClaimSetting(device, meta["preset"], meta["seeds"], meta.get("corpus"))
    known = (
        _result(claim, kept, setting, _results(claim, kept, setting)) for claim in registry.claims().values()
    )
    where = ", ".join(filter(None, (str(meta.get("hardware") or ""), str(meta.get("created") or "")[:10])))
    results = (each for each in known if each.done or each.agreement is Agreement.WITHDRAWN)
    return Reproduction(kept.path, meta, tuple(replace(each, where=where) for each in results))


def withdrawn(claim: Claim) -> str:
    """Say why results of an earlier version of a claim do not count any more."""
    return f"{claim.changed}: measure it again" if claim.changed else OTHER_VERSION


def refusal(claim: Claim, setting: ClaimSetting) -> str | None:
    """Say why a claim cannot run here; None if it can."""
    if claim.device != "cuda" or setting.on_gpu or (setting.smoke and claim.has_smoke):
        return None
    tiny = "; --preset smoke tries it at tiny sizes" if claim.has_smoke else ""
    return f"it needs a CUDA device{tiny}"


def judge(claim: Claim, numbers: Mapping[str, Mapping[str, Any]], *, smoke: bool = False) -> ClaimResult:
    """Judge the numbers of a claim's pieces. At tiny sizes, nothing can be told of claims that have them."""
    findings = tuple(claim.work.conclude(numbers))
    if smoke and claim.has_smoke:
        findings = tuple(replace(each, judged=(Agreement.CANNOT_TELL, _tried(each))) for each in findings)
        return ClaimResult(claim, findings, Agreement.CANNOT_TELL, ONLY_TRIED)
    agreement, reason = taken_together(findings)
    return ClaimResult(claim, findings, agreement, reason)


def _tried(finding: Finding) -> str:
    """Say that nothing is told at tiny sizes, with the reason if nothing could be told anyway."""
    return f"{ONLY_TRIED}; {finding.reason}" if finding.agreement is Agreement.CANNOT_TELL else ONLY_TRIED


def _results(claim: Claim, kept: Folder, setting: ClaimSetting) -> dict[str, Mapping[str, Any] | None]:
    """Read the results of a claim's pieces, None for a piece without one; {} for a claim that cannot run."""
    if refusal(claim, setting) is not None:
        return {}
    return {piece: kept.read(claim.name, claim.version, piece) for piece in claim.work.pieces(setting)}


def _result(
    claim: Claim,
    kept: Folder,
    setting: ClaimSetting,
    before: Mapping[str, Mapping[str, Any] | None],
    left: Sequence[str] = (),
    on_end: Callable[[], None] = lambda: None,
) -> ClaimResult:
    """Run the pieces of a claim that are left, and judge all that have a result.

    before: the results of all pieces, as from `_results`. on_end: called after each piece that was run, well
    or not.
    """
    reason = refusal(claim, setting)
    if reason is not None:
        return ClaimResult(claim, (), Agreement.CANNOT_TELL, f"not run: {reason}")
    numbers: dict[str, Mapping[str, Any]] = {}
    failures: dict[str, str] = {}
    spent_s = 0.0
    planned = list(before)
    for piece in planned:
        if piece in left:
            setting.on_progress(f"{claim.name}: {piece}, {planned.index(piece) + 1} of {len(planned)}")
            try:
                _run(claim, kept, setting, piece)
            except Exception as error:
                failures[piece] = failure_of(error).reason
                setting.on_progress(f"{claim.name}: {piece} failed: {failures[piece]}")
            on_end()
        result = before[piece] or kept.read(claim.name, claim.version, piece)  # also from another process
        if result is not None:
            numbers[piece] = result["numbers"]
            spent_s += float(result.get("spent_s") or 0.0)
    if not numbers and kept.has_results(claim.name, planned):
        return ClaimResult(claim, (), Agreement.WITHDRAWN, withdrawn(claim), planned=len(planned))
    try:
        judged = judge(claim, numbers, smoke=setting.smoke)
    except Exception as error:
        failures["verdict"] = failure_of(error).reason
        judged = ClaimResult(claim, (), Agreement.CANNOT_TELL, "")
    judged = replace(
        judged, done=len(numbers), planned=len(planned), failures=failures or None, spent_s=spent_s
    )
    if failures:
        return replace(judged, agreement=Agreement.CANNOT_TELL, reason=_failed(failures))
    return judged


def _run(claim: Claim, kept: Folder, setting: ClaimSetting, piece: str) -> None:
    """Measure a piece and keep its numbers."""
    folder = kept.begin(claim.name, claim.version, piece)
    begun = time.monotonic()
    own = replace(
        setting,
        folder=folder,
        budget_s=claim.budget_s,
        on_progress=lambda text: setting.on_progress(f"{claim.name}: {piece}: {text}"),
    )
    numbers = claim.work.measure(piece, own)
    kept.write(claim.name, claim.version, piece, numbers, time.monotonic() - begun)
    shutil.rmtree(own.unfinished, ignore_errors=True)


def _failed(failures: Mapping[str, str]) -> str:
    piece, reason = next(iter(failures.items()))
    others = len(failures) - 1
    return f"{piece} failed: {reason}" + (f"; {others} more failed" if others else "")


def _check_pieces(claims: Iterable[Claim], pieces: Sequence[str], setting: ClaimSetting) -> None:
    """Raise UnknownName for a piece that no claim has."""
    known = {piece for claim in claims for piece in claim.work.pieces(setting)}
    for piece in pieces:
        if piece not in known:
            raise UnknownName("piece", piece, known)


def _meta(kind: str, device: str, setting: ClaimSetting, argv: Sequence[str]) -> dict[str, Any]:
    """Describe when, where and how, without starting CUDA."""
    import torch

    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "device": kind,
        "hardware": _hardware(kind, device),
        "preset": setting.preset,
        "seeds": setting.seeds,
        "corpus": setting.corpus,
        "corpus_sha256": None if setting.corpus is None else fingerprint(Path(setting.corpus)),
        "default_text": None if setting.corpus else f"the library of Python {platform.python_version()}",
        "command": shlex.join(["ssmperf", *argv]) if argv else None,
        "versions": environment.versions(),
        "threads": torch.get_num_threads(),
        "git": environment.git_state(Path(__file__).resolve().parent),
    }


def _hardware(kind: str, device: str) -> str:
    """Name the device."""
    if kind == "cpu":
        cpu = environment.cpu()
        return f"{cpu['model'] or platform.machine()}, {cpu['cores']} cores"
    return devices_.name_of(device) or device
