"""The first line of each format names the worst case; what follows can be typed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from support.results.pages import Page

from ssmperf.comparison.comparison import PAIRED, compare_pairs, compare_runs
from ssmperf.comparison.outcome import VERDICTS, RunComparison
from ssmperf.comparison.unpaired import Change, why
from ssmperf.shell.terminal.comparison_options import show
from ssmperf.suitekit import registry

SINCE = '1a2b3c4d5e "Fuse *the* gates" (Jane)'
HOSTILE = "x\r\n::error::y</h2><script>%0A,:`|*[a](b)~\x1b[2J\u202e"
COMMANDS = ("ssmperf diagnose runs/x 0123", "ssmperf bisect --good a --bad b --case 4567")


def slower_and_wrong(fake: Any, *, wrong: bool = True) -> RunComparison:
    places: list[dict[str, Any]] = [
        {"seed": seed, "backend": "mine", "pass_": "backward"} for seed in range(4)
    ]
    base = fake.run([fake.timed(1e-3, **place) for place in places])
    new = [fake.timed(factor * 1e-3, **place) for factor, place in zip((1.4, 1.9, 1.0), places, strict=False)]
    last = fake.failed("wrong", "gradient of b: error 3.1e-02", **places[3])
    new.append(last if wrong else fake.timed(1e-3, **places[3]))
    return replace(compare_runs(base, fake.run(new)), since=SINCE, commands=COMMANDS)


def text_of(found: RunComparison, name: str) -> str:
    return str(registry.report(name, "comparison")(found, None))


def first_lines(found: RunComparison) -> dict[str, str]:
    """Give the first line of each format, as its reader sees it."""
    page = Page(text_of(found, "html"))
    suite = ElementTree.fromstring(text_of(found, "junit"))
    facts = {each.get("name"): each.get("value") for each in suite.iter("property")}
    return {
        "table": text_of(found, "table").splitlines()[0],
        "summary": re.sub(
            r"\\(\W)", r"\1", text_of(found, "summary").splitlines()[0].removeprefix("## ssmperf: ")
        ),
        "page": next(text for text in page.texts if text.startswith(("slower", "wrong"))).removesuffix(
            " · ssmperf"
        ),
        "junit": str(facts["conclusion"]),
        "annotation": text_of(found, "annotations").partition("title=ssmperf::")[2].replace("%25", "%"),
        "json": json.loads(json.dumps(found.to_json()))["conclusion"],
    }


def test_the_slowest_case_is_named_in_every_format(fake: Any) -> None:
    found = slower_and_wrong(fake, wrong=False)
    case = "slower: mine backward of mingru (B2 T1024 C64 float32): 1.900× ["
    for name, line in first_lines(found).items():
        assert line == found.conclusion, name
    assert found.conclusion.startswith(case) and f"] since {SINCE}; " in found.conclusion
    assert "4 cases, 2 slower, 2 same; threshold 5 % (exit 1)" in found.conclusion


def test_a_wrong_case_comes_before_a_slower_one_and_says_what_is_wrong(fake: Any) -> None:
    found = slower_and_wrong(fake)
    assert set(first_lines(found).values()) == {found.conclusion}
    assert found.conclusion.startswith(
        f"wrong: mine backward of mingru (B2 T1024 C64 float32) since {SINCE}: gradient of b: error 3.1e-02; "
    )
    assert "1 wrong" in found.conclusion and "(exit 3)" in found.conclusion


def test_every_failure_of_junit_names_its_own_case(fake: Any) -> None:
    found = slower_and_wrong(fake)
    suite = ElementTree.fromstring(text_of(found, "junit"))
    failures = {each.get("message"): each.text or "" for each in suite.iter("failure")}
    assert set(failures) == {found.told(pair) for pair in found.pairs if pair.verdict in ("slower", "wrong")}
    ids = {pair.case.id for pair in found.pairs if pair.verdict in ("slower", "wrong")}
    assert {text.split()[1] for text in failures.values()} == ids
    assert all(SINCE in str(message) for message in failures)


def test_a_fault_is_no_news_where_the_base_had_it_or_lacked_the_case(fake: Any) -> None:
    wrong = fake.failed("wrong", "far off")
    for before, words in (([wrong], "as in"), ([], "not in"), ([fake.timed(1e-3)], "since")):
        found = compare_runs(fake.run(before), fake.run([wrong]))
        assert f"(B2 T1024 C64 float32) {words} " in found.conclusion


def test_a_good_comparison_names_no_case(fake: Any) -> None:
    found = compare_runs(fake.run([fake.timed(1e-3)]), fake.run([fake.timed(1e-3)]))
    assert found.conclusion == "no regression: 1 case, 1 same; threshold 5 % (exit 0)"
    assert registry.report("annotations", "comparison")(found, None) is None


def test_commands_and_alarms_stand_below_the_first_line(fake: Any) -> None:
    found = replace(slower_and_wrong(fake), alarms=("one id, two times",))
    lines = text_of(found, "table").splitlines()
    assert lines[1] == "alarm: one id, two times"
    assert [line.strip() for line in lines[2:4]] == list(COMMANDS)
    summary = text_of(found, "summary")
    assert summary.splitlines()[2] == "- **alarm: one id, two times**"
    assert "\n".join(("```sh", *COMMANDS, "```")) in summary
    page = Page(text_of(found, "html"))
    assert {"alarm: one id, two times", *COMMANDS} <= set(page.texts)
    values = [each.get("value") for each in ElementTree.fromstring(text_of(found, "junit")).iter("property")]
    assert {"one id, two times", *COMMANDS} <= set(values)
    assert "::warning title=ssmperf::one id, two times" in text_of(found, "annotations")
    data = found.to_json()
    assert (data["alarms"], data["commands"]) == (["one id, two times"], list(COMMANDS))


def test_long_lines_are_not_broken(fake: Any) -> None:
    """A command that is broken into two lines cannot be pasted."""
    long = "ssmperf bisect " + " ".join(f"--axis A{number}={number}" for number in range(60))
    lines = text_of(replace(slower_and_wrong(fake), commands=(long,)), "table").splitlines()
    assert lines[1].strip() == long


def test_what_comes_from_outside_stays_text_in_every_format(fake: Any) -> None:
    place = {"model": HOSTILE, "backend": HOSTILE}
    base = fake.run([fake.timed(1e-3, **place)])
    found = compare_runs(base, fake.run([fake.failed("wrong", HOSTILE, **place)]))
    found = replace(found, since=HOSTILE, alarms=(HOSTILE,), commands=(HOSTILE,))
    texts = {name: text_of(found, name) for name in ("table", "summary", "junit", "html", "annotations")}
    for text in texts.values():
        assert "\x1b" not in text and "\u202e" not in text and "\r" not in text
    assert "<script>%" not in texts["html"] and "<script>" not in texts["junit"]
    lines = texts["annotations"].splitlines()
    assert len(lines) == 2 and all(line.startswith(("::error title=", "::warning title=")) for line in lines)
    assert "%250A" in lines[0], "a percent sign that GitHub would read as a line break"
    outside_code = re.sub(r"```sh\n.*?\n```", "", texts["summary"], flags=re.DOTALL)
    assert "<script>" not in outside_code and not re.search(r"(?<!\\)[*`|]\[a", outside_code)


def test_a_tilde_is_escaped_in_markdown_alone(fake: Any) -> None:
    found = replace(
        slower_and_wrong(fake), since="git ref HEAD~1", versions=("git ref HEAD~1", "git ref HEAD")
    )
    assert "HEAD\\~1" in text_of(found, "summary")
    for name in ("table", "junit", "html", "annotations"):
        text = text_of(found, name)
        assert "HEAD~1" in text and "\\~" not in text


def test_each_row_has_the_beginning_of_an_id_that_no_other_case_has(fake: Any) -> None:
    found = slower_and_wrong(fake)
    text = text_of(found, "table")
    for pair in found.pairs:
        short = found.short_id(pair)
        assert len(short) >= 8 and sum(each.case.id.startswith(short) for each in found.pairs) == 1
        assert short in text or pair.verdict == "same"
    rows = Page(text_of(found, "html")).rows
    assert [row["case"] for row in rows] == [found.short_id(pair) for pair in found.pairs]


def test_no_verdict_is_without_a_reason(fake: Any) -> None:
    correct = {"suite": "correctness", "numbers": {"latency_s": None}}
    base = [fake.timed(1e-3, seed=seed) for seed in range(5)]
    base += [fake.failed("oom", "too big", seed=5), fake.failed("oom", "too big", seed=6)]
    new = [fake.timed(factor * 1e-3, seed=seed) for seed, factor in enumerate((2, 0.5, 1.0, 1.06))]
    new += [fake.timed(1e-3, seed=5), fake.failed("oom", "too big", seed=6), fake.timed(1e-3, seed=7)]
    found = compare_runs(
        fake.run([*base, fake.timed(1e-3, **correct)]), fake.run([*new, fake.timed(1e-3, **correct)])
    )
    verdicts = {pair.verdict for pair in found.pairs}
    assert verdicts == set(VERDICTS) - {"wrong", "lost"}
    assert all(pair.reason for pair in found.pairs)
    compared = compare_pairs(
        fake.run([fake.timed(1e-3)]),
        fake.run([fake.timed(1e-3)]),
        {fake.case().id: PairOf("slower", 1.31, 1.27, 1.36, 0.01, 0.06, 7)},
    )
    assert compared.pairs[0].reason == "1.310 times, beyond the threshold of 5 %, from 7 fresh pairs"
    assert compared.method == PAIRED


class PairOf(Change):
    @property
    def pairs(self) -> int:
        assert self.rounds is not None
        return self.rounds


WITHIN = "a slow-down by 6.2 % would have been found, from 1 round on each side"
BEYOND = "times, beyond the threshold of 5 %"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Change("same", 1.0, 0.9, 1.1, 0.5, 0.062, 1), WITHIN),
        (Change("faster", 0.5, 0.4, 0.6, 0.0, 0.05, 3), f"0.500 {BEYOND}, from 3 rounds on each side"),
        (Change("slower", 1.1, 1.1, 1.1, least_change=0.05), f"1.100 {BEYOND}"),
        (Change("same", 1.0, 1.0, 1.0), "equal in both runs"),
        (Change("same", 1.04, 1.04, 1.04, least_change=0.05), "within the threshold of 5 %"),
        (Change("ambiguous", 1.0), "one sample does not show its noise"),
    ],
)
def test_a_reason_says_on_what_a_verdict_rests(change: Change, reason: str) -> None:
    assert why(change, 0.05, paired=False) == reason


@pytest.mark.parametrize("annotated", [True, False])
def test_a_job_of_github_gets_annotations(
    fake: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], annotated: bool
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true" if annotated else "")
    found = slower_and_wrong(fake)
    show(found, False)
    out, _ = capsys.readouterr()
    assert out.splitlines()[0] == found.conclusion
    assert ("\n::error title=ssmperf::wrong: mine backward" in out) is annotated
    show(found, True)
    out, err = capsys.readouterr()
    assert json.loads(out)["conclusion"] == found.conclusion
    assert ("::error title=ssmperf::wrong" in err) is annotated
