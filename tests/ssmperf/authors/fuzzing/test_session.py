"""The session: what follows is prepared while examples are judged; fixed cases stand beside drawn ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ssmperf import Case, Record, Status
from ssmperf.authors.fuzzing.configurations.fixed import fixed_cases
from ssmperf.authors.fuzzing.configurations.space import BUDGETS, Space
from ssmperf.authors.fuzzing.session import FIXED_AT_ONCE, FuzzSession, Goal
from ssmperf.suitekit import registry

Groups = Sequence[Sequence[Case]]


@dataclass
class Recorder:
    """Says that every case is right, and keeps what it was asked for."""

    begun: list[Groups] = field(default_factory=list)
    expected: list[Groups] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    def done(self, case: Case) -> bool:
        return False

    def begin(self, groups: Groups) -> None:
        self.begun.append(groups)
        self.order.append("begin")

    def expect(self, groups: Groups) -> None:
        self.expected.append(groups)
        self.order.append("expect")

    def records(self, ends_s: float = float("inf")) -> list[Record]:
        self.order.append("records")
        return [Record(case, Status.OK, None, None, {}) for group in self.begun[-1] for case in group]

    def trust(self, *, wrong: bool) -> None:
        """Trust everybody."""


def test_what_follows_is_expected_before_records_are_awaited() -> None:
    space = Space("scan", registry.backend("scan", "sequential"), "cpu", BUDGETS["cpu"])
    fixed, recorder = list(fixed_cases([space], 4)), Recorder()
    session = FuzzSession(recorder, [space], 1, Goal(None, 40))
    assert session.run(fixed=fixed) == []
    assert recorder.order[:6] == ["begin", "expect", "records"] * 2
    assert recorder.order[-2:] == ["begin", "records"]  # nothing follows the last
    drawn = [{case.id for group in groups for case in group} for groups in recorder.begun]
    awaited = [{case.id for group in groups for case in group} for groups in recorder.expected]
    own = {case.id for case in fixed}
    assert len(own) == 4 and len(own & drawn[0]) == FIXED_AT_ONCE
    assert own <= drawn[0] | drawn[1]
    assert drawn[1] - own <= awaited[0]
    assert session.tally.examples == session.tally.right == 40


class Failing(Recorder):
    """Says that everything is wrong."""

    def records(self, ends_s: float = float("inf")) -> list[Record]:
        return [replace(each, status=Status.WRONG, reason="off by 2") for each in super().records()]


def test_a_fault_is_told_when_it_is_found_with_its_reason() -> None:
    space = Space("scan", registry.backend("scan", "sequential"), "cpu", BUDGETS["cpu"])
    heard: list[tuple[str, int]] = []
    recorder = Failing()
    session = FuzzSession(
        recorder, [space], 1, Goal(None, 40), lambda text, tally: heard.append((text, len(recorder.begun)))
    )
    assert session.run()
    text, judged = next(each for each in heard if each[0].startswith("fault: "))
    assert "wrong: off by 2" in text and judged < len(recorder.begun)
