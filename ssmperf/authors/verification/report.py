"""The report of `ssmperf.verify`: true or false, as text and as HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ssmperf.engine.cases.case import Case, split_source
from ssmperf.engine.cases.record import Status, one_line
from ssmperf.engine.judge.verdict import Verdict

AT_LENGTH = ", at T = "  # begins the end of the label of a verdict on another length than the case's
OTHER_CALLS = ", other calls"  # the end of the label of a verdict on further promises of the signature
FROM_STATE = ", from a state"  # the end of the label of a verdict on calls that start from a state


@dataclass(frozen=True, repr=False)
class Verification:
    """The report of `ssmperf.verify`, which is true if the function is right.

    of, name: of the operation and the function. case: the first one judged, which shows sizes and dtypes.
    verdicts: by source of the operands, such as "sigmoid/real" or "sigmoid/real, from a state".
    not_covered: why others were not judged, by the same names.
    asked: regimes and gate kinds that were asked for, of which something must have been judged.
    other_lengths: sizes of T that were judged beside that of the case.
    """

    of: str
    name: str
    case: Case
    verdicts: Mapping[str, Verdict]
    not_covered: Mapping[str, str] = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    other_lengths: tuple[int, ...] = ()

    @property
    def reason(self) -> str | None:
        """Why the report is false; None if it is true."""
        for label, verdict in self.verdicts.items():
            if verdict.status is not Status.OK:
                return one_line(f"{label}: {verdict.reason}")
        for word in self.asked or ("",):
            if not any(_belongs(label, word) for label in self.verdicts):
                why = (text for label, text in self.not_covered.items() if _belongs(label, word))
                return one_line(f"nothing was judged{f' of {word}' if word else ''}: {next(why, '')}")
        return None

    @property
    def errors(self) -> dict[str, float]:
        """The error of each object where it comes nearest to its tolerance, or exceeds it the most."""
        return {name: error for name, (error, _) in self._nearest().items()}

    @property
    def tolerances(self) -> dict[str, float]:
        """The tolerances that belong to `errors`."""
        return {name: tolerance for name, (_, tolerance) in self._nearest().items()}

    def __bool__(self) -> bool:
        return self.reason is None

    def __repr__(self) -> str:
        """Give one line that begins with the reason, for the message of an assertion."""
        return f"<{self._title()}: {self.reason or self._summary()}>"

    def __str__(self) -> str:
        lines = [f"{self._title()}: {self._summary()}"]
        width = max((len(label) for label, _, _ in self._rows()), default=0)
        lines += [f"  {status:11}  {label:{width}}  {text}".rstrip() for label, status, text in self._rows()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Give the report as HTML, for a notebook."""
        rows = "".join(
            f"<tr><td>{html.escape(status)}</td><td>{html.escape(label)}</td>"
            f'<td style="text-align: left">{html.escape(text)}</td></tr>'
            for label, status, text in self._rows()
        )
        title = f"<b>{html.escape(self._title())}</b>: {html.escape(self._summary())}"
        return f"<div><p>{title}</p><table>{rows}</table></div>"

    def _title(self) -> str:
        statuses = [verdict.status for verdict in self.verdicts.values()]
        worst = next((status for status in statuses if status is not Status.OK), Status.OK)
        shown = worst if self or worst is not Status.OK else "not covered"
        return one_line(f"{self.of}/{self.name} {shown}")

    def _summary(self) -> str:
        case, right = self.case, sum(each.status is Status.OK for each in self.verdicts.values())
        refused = f", {len(self.not_covered)} not covered" if self.not_covered else ""
        passes = "with gradients" if case.gradients else "without gradients"
        others = "".join(f" and T{length}" for length in self.other_lengths)
        where = f"{case.shape}{others} {case.dtype}, {case.device}, {passes}"
        return f"{right} of {len(self.verdicts)} right{refused} ({where})"

    def _rows(self) -> list[tuple[str, str, str]]:
        """List label, status and remark of each verdict, those that are not ok first."""
        bad = [item for item in self.verdicts.items() if item[1].status is not Status.OK]
        good = [item for item in self.verdicts.items() if item[1].status is Status.OK]
        rows = [(label, str(verdict.status), one_line(verdict.reason or "")) for label, verdict in bad]
        rows += [(label, str(verdict.status), _nearest_text(verdict)) for label, verdict in good]
        return rows + [(label, "not covered", one_line(why)) for label, why in self.not_covered.items()]

    def _nearest(self) -> dict[str, tuple[float, float]]:
        found: dict[str, tuple[float, float]] = {}
        for verdict in self.verdicts.values():
            for name, error in verdict.errors.items():
                pair = error, verdict.tolerances[name]
                found[name] = max(found.get(name, pair), pair, key=_excess)
        return found


def _belongs(label: str, word: str) -> bool:
    """Tell whether a verdict's label is of a regime or gate kind; of the empty word all are."""
    source = label.partition(AT_LENGTH)[0].removesuffix(FROM_STATE).removesuffix(OTHER_CALLS)
    return not word or word in (source, *split_source(source))


def _excess(pair: tuple[float, float]) -> float:
    """Divide an error by its tolerance; NaN counts as infinite."""
    error, tolerance = pair
    ratio = error / tolerance if tolerance else math.inf * bool(error)
    return math.inf if math.isnan(ratio) else ratio


def _nearest_text(verdict: Verdict) -> str:
    """Say which object comes nearest to its tolerance."""
    if not verdict.errors:
        return ""
    pairs = {name: (error, verdict.tolerances[name]) for name, error in verdict.errors.items()}
    name = max(pairs, key=lambda name: _excess(pairs[name]))
    return f"{name}: {pairs[name][0]:.1e} of {pairs[name][1]:.1e}"
