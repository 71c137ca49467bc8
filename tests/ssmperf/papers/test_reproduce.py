"""`ssmperf reproduce`: claims run in pieces that are kept, and are listed, judged and shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.results.claimed import register
from support.results.pages import Page

import ssmperf
from ssmperf import DuplicateName, ExitCode, Reproduction, UnknownName, UnreadableRun, UsageError
from ssmperf.papers.reproduction import keeping
from ssmperf.papers.reproduction.keeping import Folder
from ssmperf.shell import cli
from ssmperf.suitekit import Agreement, registry

YES, NO, UNSURE = Agreement.AGREES, Agreement.DISAGREES, Agreement.CANNOT_TELL
HOSTILE = "</script><img src=x onerror=alert(1)>{{ 7*7 }}<b>\x1b[31m"

pytestmark = pytest.mark.usefixtures("own_registrations")


def reproduced(out: Path, **options: Any) -> Reproduction:
    return ssmperf.reproduce("paper:order", **{"out": out, "device": "cpu", **options})


def verb(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *words: str,
    name: str = "reproduce",
) -> tuple[int, str, str]:
    """Call the command line in this process; give its exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["ssmperf", name, *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, *capsys.readouterr()


@pytest.mark.parametrize(("one", "verdict"), [(2.0, YES), (0.5, NO), (1.0, UNSURE)])
def test_a_verdict_follows_from_the_pieces(one: float, verdict: Agreement, tmp_path: Path) -> None:
    work = register(values={"one": one, "two": 1.0})
    lines: list[str] = []
    found = reproduced(tmp_path / "out", progress=lines.append)
    (result,) = found.results
    assert result.agreement is verdict and (result.done, result.planned) == (2, 2)
    assert work.ran == ["one", "two"] and "paper:order: two: half way" in lines
    assert found.exit_code is ExitCode.OK and str(verdict) in json.dumps(found.to_json())
    kept = json.loads((tmp_path / "out" / "paper-order" / "one" / "result.json").read_text())
    assert kept["numbers"] == {"value": one, "folder": str(tmp_path / "out/paper-order/one"), "budget_s": 5.0}


def test_what_has_ended_is_not_run_again_and_what_failed_is(tmp_path: Path) -> None:
    work = register(values={"one": 2.0, "two": ValueError("no luck")})
    counts: list[tuple[int, int]] = []
    found = reproduced(tmp_path, on_piece=lambda *each: counts.append(each))
    (result,) = found.results
    assert (result.agreement, result.done) == (UNSURE, 1) and "no luck" in result.reason
    assert counts == [(0, 2), (1, 2), (2, 2)], "one that failed has ended, too"
    assert found.exit_code is ExitCode.BAD_CASE
    work.values["one"] = 0.0  # which nobody asks for again
    work.values["two"] = 1.0
    counts.clear()
    again = reproduced(tmp_path, resume=True, on_piece=lambda *each: counts.append(each))
    assert counts == [(0, 1), (1, 1)]
    assert again.results[0].agreement is YES and work.ran == ["one", "two", "two"]
    assert reproduced(tmp_path, resume=True).to_json()["claims"] == again.to_json()["claims"]
    assert work.ran == ["one", "two", "two"]
    assert again.meta["created"] == found.meta["created"]


def test_a_kept_piece_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    register()
    reproduced(tmp_path)
    read: list[Path] = []
    original = keeping._read
    monkeypatch.setattr(keeping, "_read", lambda file: read.append(file) or original(file))
    for again in (lambda: reproduced(tmp_path, resume=True), lambda: ssmperf.load_reproduction(tmp_path)):
        read.clear()
        assert again().results[0].done == 2
        assert len(read) == len({*read}) == 3  # two pieces and the facts about the folder


def test_pieces_can_be_run_one_after_another(tmp_path: Path) -> None:
    work = register()
    first = reproduced(tmp_path, pieces="two").results[0]
    assert work.ran == ["two"] and first.agreement is UNSURE and (first.done, first.planned) == (1, 2)
    assert reproduced(tmp_path, pieces="one", resume=True).results[0].agreement is YES
    with pytest.raises(UnknownName, match="three"):
        reproduced(tmp_path, pieces="three", resume=True)


def test_results_of_another_version_or_setting_are_not_used(tmp_path: Path) -> None:
    register()
    reproduced(tmp_path)
    text = tmp_path.with_suffix(".txt")
    text.write_text("text")
    for other in ({"preset": "smoke"}, {"seeds": 3}, {"corpus": text}):
        with pytest.raises(UsageError, match="was made with"):
            reproduced(tmp_path, resume=True, **other)
    with pytest.raises(UsageError, match="--resume"):
        reproduced(tmp_path)
    file = tmp_path / "paper-order" / "one" / "result.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "version": 0, "numbers": {"value": -1.0}}))
    runs = file.with_name("times")
    runs.mkdir()
    assert reproduced(tmp_path, resume=True).results[0].agreement is YES  # measured again
    assert not runs.exists(), "what another version has measured would be resumed"
    for text, reason in (
        ("[", "cannot read"),
        ("{}", "schema_version"),
        ('{"schema_version": 99}', "upgrade"),
    ):
        file.write_text(text)
        with pytest.raises(UnreadableRun, match=reason):
            reproduced(tmp_path, resume=True)


@pytest.mark.parametrize("name", ["../up", "a/b", "", "-x", "a" * 101])
def test_a_piece_is_named_like_a_folder(name: str, tmp_path: Path) -> None:
    register(values={name: 1.0})
    with pytest.raises(UsageError, match="a piece has a name"):
        reproduced(tmp_path)


def test_a_claim_that_needs_a_gpu_says_so_and_is_not_run(tmp_path: Path) -> None:
    work = register(device="cuda", has_smoke=True)
    (result,) = reproduced(tmp_path / "a").results
    assert result.agreement is UNSURE and "CUDA" in result.reason and work.ran == []
    (tried,) = reproduced(tmp_path / "b", preset="smoke").results
    assert work.ran == ["one", "two"] and tried.agreement is UNSURE and "tiny" in tried.reason
    assert {each.agreement for each in tried.findings} == {UNSURE}


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    register()
    with pytest.raises(UnknownName, match="paper:order"):
        ssmperf.reproduce("paper:odrer", out=tmp_path, device="cpu")
    for wrong, reason in (({"preset": "long"}, "smoke"), ({"seeds": 0}, "seeds"), ({"device": "tpu"}, "tpu")):
        with pytest.raises(UsageError, match=reason):
            reproduced(tmp_path / "new", **wrong)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UnreadableRun, match="no folder of"):
        reproduced(tmp_path, resume=True)
    with pytest.raises(DuplicateName):
        register()
    with pytest.raises(UsageError, match="snake"):
        register("no_colon")
    with pytest.raises(UsageError, match="device"):
        register("paper:other", device="tpu")


def test_every_claim_is_listed_with_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register(statement=HOSTILE)
    code, table, _ = verb(monkeypatch, capsys)
    assert code == 0 and all(name in table for name in registry.claims()) and "\x1b" not in table
    code, text, _ = verb(monkeypatch, capsys, "--json")
    listed = {each["id"]: each for each in json.loads(text)}
    assert listed.keys() == registry.claims().keys() and listed["paper:order"]["statement"] == HOSTILE
    assert all(each["budget_s"] > 0 and each["rule"] and each["scaled"] for each in listed.values())


def test_the_verb_prints_keeps_and_draws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    register(values={"one": 0.5, "two": 1.0}, scaled="half of it")
    out, page = str(tmp_path / "out"), str(tmp_path / "page.html")
    words = ("paper:order", "--device", "cpu", "--out", out)
    code, text, err = verb(monkeypatch, capsys, *words, "--html", page)
    assert code == 0 and all(part in text for part in ("disagrees", "half of it", "one: 0.5", out))
    assert "paper:order: one" in err and "disagrees" in Path(page).read_text()
    code, text, _ = verb(monkeypatch, capsys, *words, "--resume", "--json", "--html", page)
    assert code == 0 and json.loads(text)["claims"][0]["agreement"] == "disagrees"
    for wrong in (["--all", "paper:order"], ["--html", page], ["paper:odrer"]):
        code, _, err = verb(monkeypatch, capsys, *wrong)
        assert code == 2 and len(err.strip().splitlines()) == 1


def test_what_is_kept_is_judged_anywhere_without_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also what another machine's GPU has measured, and what is there of a claim that is not done."""
    work = register(values={"one": 2.0, "two": 1.0}, device="cuda")
    register("paper:unmeasured")
    out, page = tmp_path / "out", tmp_path / "page.html"
    kept = Folder.open(out, {"device": "cuda", "preset": "standard", "seeds": None}, resume=False)
    kept.write("paper:order", 1, "two", {"value": 1.0}, 1.0)
    (half,) = ssmperf.load_reproduction(out).results
    assert half.agreement is UNSURE and (half.done, half.planned) == (1, 2)
    kept.write("paper:order", 1, "one", {"value": 2.0}, 1.0)
    (done,) = ssmperf.load_reproduction(out).results
    assert done.agreement is YES and not work.ran
    code, text, _ = verb(monkeypatch, capsys, str(out), "--html", str(page), name="report")
    assert code == 0 and "agrees" in page.read_text()
    code, text, _ = verb(monkeypatch, capsys, str(out), name="report")
    assert code == 0 and "one: 2" in text and "unmeasured" not in text
    code, text, _ = verb(monkeypatch, capsys, str(out), "--format", "json", name="report")
    assert code == 0 and json.loads(text)["claims"][0]["agreement"] == "agrees"
    for wrong in ([out, "--format", "csv"], [out, tmp_path], [tmp_path, out]):
        code, _, err = verb(monkeypatch, capsys, *map(str, wrong), name="report")
        assert code == 2 and len(err.strip().splitlines()) == 1
    files = [out / "paper-order" / piece / "result.json" for piece in ("one", "two")]
    for file in files:
        file.write_text(file.read_text().replace('"version": 1', '"version": 0'))
    (stale,) = ssmperf.load_reproduction(out).results
    assert stale.agreement is Agreement.WITHDRAWN and "another version" in stale.reason
    for file in files:
        file.unlink()
    with pytest.raises(UsageError, match="no result"):
        ssmperf.load_reproduction(out)
    with pytest.raises(UnreadableRun):
        ssmperf.load_reproduction(tmp_path)


def test_a_damaged_result_hides_no_other_claim(tmp_path: Path) -> None:
    register(values={"one": 2.0, "two": 1.0})
    register("paper:other")
    options: dict[str, Any] = {"out": tmp_path, "device": "cpu"}
    ssmperf.reproduce("paper:order,paper:other", **options)
    file = tmp_path / "paper-order" / "one" / "result.json"
    sound = file.read_text()
    file.write_text(sound.replace('"value"', '"valeu"'))
    damaged, other = ssmperf.load_reproduction(tmp_path).results
    assert damaged.agreement is UNSURE and "verdict failed: KeyError" in damaged.reason
    assert other.agreement is YES
    file.write_text(sound.replace('"spent_s": ', '"spent_s": "x", "rest": '))
    with pytest.raises(UnreadableRun, match="spent_s"):
        ssmperf.load_reproduction(tmp_path)
    file.write_text(sound)
    meta = tmp_path / "reproduce.json"
    meta.write_text(meta.read_text().replace('"seeds": null', '"seeds": "three"'))
    with pytest.raises(UnreadableRun, match="seeds"):
        ssmperf.load_reproduction(tmp_path)


@pytest.mark.parametrize("name", ["hardware", "default_text"])
def test_pieces_of_different_machines_are_not_mixed(name: str, tmp_path: Path) -> None:
    register()
    reproduced(tmp_path, pieces="one")
    meta = tmp_path / "reproduce.json"
    before = json.loads(meta.read_text())
    meta.write_text(json.dumps({**before, name: "another"}))
    with pytest.raises(UsageError, match=f"{name} another"):
        reproduced(tmp_path, pieces="two", resume=True)


def test_the_page_sets_numbers_side_by_side_and_escapes_foreign_text(tmp_path: Path) -> None:
    texts = dict.fromkeys(("paper", "place", "statement", "printed", "runs", "scaled", "rule"), HOSTILE)
    register(values={"one": 0.5, "two": 1.0}, text=HOSTILE, **texts)
    found = reproduced(tmp_path)
    drawn = str(registry.report("html", "claims")(found, None))
    page = Page(drawn)
    assert page.open == [] and not page.having(src="x") and "\x1b" not in drawn
    assert not [found for _, found in page.elements if "onerror" in found or "src" in found]
    assert sum(HOSTILE.replace("\x1b", " ") in text for text in page.texts) >= 9
    words = " ".join(page.texts)
    assert "larger" in words and "one: 0.5" in words and found.conclusion in page.texts
    assert drawn == str(registry.report("html", "claims")(found, None))
    register("paper:named", statement="`one` is larger <b>than</b> `two`")
    named = ssmperf.reproduce("paper:named", out=tmp_path / "named", device="cpu")
    assert "<code>one</code> is larger &lt;b&gt;" in str(registry.report("html", "claims")(named, None))
    assert "\x1b" not in str(registry.report("table", "claims")(found, tmp_path / "table.txt"))
    assert "\x1b" not in (tmp_path / "table.txt").read_text()


def test_a_page_of_several_folders_names_each(tmp_path: Path) -> None:
    register()
    register("paper:other")
    for name in ("paper:order", "paper:other"):
        ssmperf.reproduce(name, out=tmp_path / name.replace(":", "-"), device="cpu", argv=["reproduce", name])
    found = ssmperf.load_reproduction(tmp_path / "paper-order", tmp_path / "paper-other")
    assert [each.claim.name for each in found.results] == ["paper:order", "paper:other"]
    drawn = str(registry.report("html", "claims")(found, None))
    for name in ("paper:order", "paper:other"):
        assert f"<dd>{tmp_path / name.replace(':', '-')}</dd>" in drawn
        assert f"<code>ssmperf reproduce {name}</code>" in drawn
