"""`bisect` names a commit only if a direct comparison shows it, and says what else it knows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.versions.bisections import Answering, Knowing, line, numbers, search, slow_from

from ssmperf.errors import ExitCode


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return line(monkeypatch, 16)


def test_the_answer_prints_the_ratios_of_the_parent_and_the_culprit(names: list[str], tmp_path: Path) -> None:
    """All numbers of the text are in the JSON, too."""
    found = search(Knowing(names, [1.0] * 5 + [1.01] * 2 + [1.25] * 9), tmp_path)
    shown = next(text for text in found.conclusion.splitlines() if "against 0000" in text)
    assert "its parent 1.010× [0.990, 1.030], it 1.250× [1.225, 1.275]" in shown
    assert (
        f"{names[7]} is the first slow commit: 1.238× [1.213, 1.262] against its parent 0606"
        in found.conclusion
    )
    data = json.loads(json.dumps(found.to_json()))
    kept = re.findall(r"\d+\.\d+", json.dumps({**data, "conclusion": ""}))
    printed = re.findall(r"(\d\.\d{3})(?:×|,|\])", found.conclusion)
    assert len(printed) >= 12 and set(printed) <= {f"{float(number):.3f}" for number in kept}
    assert data["named"]["name"] == names[7] and data["direct"][0]["base"] == names[6]
    assert data["direct"][0]["ratio"] == pytest.approx(1.25 / 1.01)
    assert data["midpoint"] == pytest.approx(1.25**0.5)


@pytest.mark.parametrize("wrong, ratio, truth", [(7, 1.3, 12), (7, 1.0, 4), (3, 1.3, 5), (11, 1.0, 9)])
def test_a_wrong_judgement_does_not_name_an_innocent_commit(
    wrong: int, ratio: float, truth: int, names: list[str], tmp_path: Path
) -> None:
    """The commit that would have been the culprit is not slower than its parent, so the range is wider."""
    meter = slow_from(names, truth, {wrong: ratio})
    found = search(meter, tmp_path)
    assert wrong in meter.candidates and found.exit_code == ExitCode.UNSURE
    assert found.named is None and found.widened and truth in numbers(found, names)
    assert "contradicts the judgements" in found.conclusion and "is slower than" in found.conclusion


def test_widening_goes_on_until_a_comparison_shows_the_range(names: list[str], tmp_path: Path) -> None:
    """With two wrong judgements, the next wider range holds no slow-down either."""
    meter = slow_from(names, 12, {7: 1.3, 3: 1.3})
    found = search(meter, tmp_path)
    assert found.named is None and 12 in numbers(found, names) and found.exit_code == ExitCode.UNSURE


@pytest.mark.parametrize("first, second", [(1.12, 1.25), (1.25, 1.12)])
def test_of_two_steps_the_larger_is_named_and_the_other_mentioned(
    first: float, second: float, names: list[str], tmp_path: Path
) -> None:
    times = [1.0] * 4 + [first] * 7 + [first * second] * 5
    found = search(Knowing(names, times), tmp_path)
    number, side, good, bad = (11, "before", 0, 10) if second > first else (4, "after", 4, 15)
    assert numbers(found, names) == [number] and found.exit_code == ExitCode.OK
    (text,) = (text for text in found.conclusion.splitlines() if "a further slow-down lies" in text)
    assert f"{side} it, 1.120× [1.098, 1.142]" in text
    assert f"search --good {names[good][:10]} --bad {names[bad][:10]}" in text
    (other,) = (each.to_json() for each in found.further if each.shown)
    assert other["ratio"] == pytest.approx(1.12) and other["base"] == names[good]


def test_two_steps_of_one_size_leave_a_range_that_says_so(names: list[str], tmp_path: Path) -> None:
    found = search(Knowing(names, [1.0] * 6 + [1.2] * 3 + [1.44] * 7), tmp_path)
    assert found.exit_code == ExitCode.UNSURE and numbers(found, names) == [6, 7, 8, 9]
    assert "more than one commit is slow" in found.conclusion
    assert "7 pairs do not tell it from the midpoint 1.200×" in found.conclusion


def test_one_step_says_what_another_could_be_at_most(names: list[str], tmp_path: Path) -> None:
    meter = slow_from(names, 6)
    found = search(meter, tmp_path)
    assert "no further slow-down is shown before it: 1.000× [0.980, 1.020] over 5 commits" in found.conclusion
    assert "no further slow-down is shown after it: 1.000× [0.961, 1.040] over 9 commits" in found.conclusion
    assert meter.asked == [(0, 15), (0, 7), (0, 3), (0, 5), (0, 6), (5, 6)]  # nothing suggests another one


def test_a_step_at_an_end_has_nothing_beside_it(names: list[str], tmp_path: Path) -> None:
    for number, sides in ((1, ["after"]), (15, ["before"])):
        found = search(slow_from(names, number), tmp_path / str(number))
        assert numbers(found, names) == [number]
        assert ("its parent is that commit, it 1.300×" in found.conclusion) == (number == 1)
        assert re.findall(r"shown (\w+) it", found.conclusion) == sides


def test_a_wrong_answer_is_found_by_one_judgement_per_commit(names: list[str], tmp_path: Path) -> None:
    for number in (1, 6, 12, 15):
        meter = Answering(names, [1.3 if each >= number else 1.0 for each in range(16)])
        found = search(meter, tmp_path / str(number))
        assert numbers(found, names) == [number] and found.exit_code == ExitCode.OK
        assert f"{names[number]} is the first wrong commit: wrong: by 3.0" in found.conclusion
        assert f"its parent {names[number - 1][:10]} is right" in found.conclusion
        judged = [new for base, new in meter.asked if base == new]
        assert len(judged) == len(set(judged)) and len(meter.asked) == 1 + len(judged)
