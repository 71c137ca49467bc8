"""Claims about what networks learn: tiny trainings, made-up ones that agree and disagree, and their sizes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit
from ssmperf.suites.claims import (
    _learning,
    longhorn_sample_efficiency,
)
from ssmperf.suites.claims._seeds import Trainings
from support.results.trainings import MADE_UP, Numbers, made_up, of_efficiency, of_fig4, of_gateloop, of_lcsm

import ssmperf
from ssmperf import ClaimResult, Reproduction
from ssmperf.engine.plan.selection import Device
from ssmperf.papers.reproduction.reproduce import judge
from ssmperf.suitekit import Agreement, ClaimSetting, Job, count_parameters, registry

YES, NO, UNSURE = Agreement.AGREES, Agreement.DISAGREES, Agreement.CANNOT_TELL
LEARNED = {  # with the number of networks that are compared
    "gateloop:fig6": 2,
    "hgrn2:fig3": 2,
    "hgrn2:needle": 3,
    "lcsm:fig4": 25,
    "linearization:copying": 5,
    "longhorn:deltanet_length": 1,
    "longhorn:fig1": 2,
    "longhorn:fig4": 6,
    "longhorn:sample_efficiency": 2,
}


def rows_of(path: Path, claim: str) -> list[dict[str, Any]]:
    files = sorted((path / claim.replace(":", "-")).glob("*/result.json"))
    return [row for file in files for row in json.loads(file.read_text())["numbers"]["trainings"]]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    """All of these claims at tiny sizes."""
    path = tmp_path_factory.mktemp("claims") / "tried"
    return ssmperf.reproduce(list(LEARNED), out=path, device="cpu", preset="smoke")


@pytest.mark.slow
def test_every_variant_is_trained_with_every_seed_and_tells_nothing_at_tiny_sizes(
    tried: Reproduction,
) -> None:
    for result in tried.results:
        name = result.claim.name
        assert result.agreement is UNSURE and not result.failures and result.done == result.planned, name
        rows = rows_of(tried.path, name)
        assert len({row["variant"] for row in rows}) == LEARNED[name], name
        assert sorted((row["variant"], row["seed"]) for row in rows) == sorted(
            (variant, seed) for variant in {row["variant"] for row in rows} for seed in (0, 1)
        )
        for row in rows:
            assert row["status"] == "ok" and row["updates"] == 2 and row["smoke"]
            assert all(0 <= each <= 1 for each in row["accuracies"].values())
            assert len(row["loss_curve"]) == 2 and len(row["losses"]) == len(row["accuracies"])
        shown = [each for each in result.findings if "no model here" not in each.reason]
        assert shown and all(each.ours for each in shown), name
    assert not list(tried.path.rglob("unfinished"))


def test_what_has_ended_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in the third of four trainings; then resumed; then resumed without anything to do."""
    train, began = ssmperf.papers.learn.trials.train, list[Job]()  # type: ignore[attr-defined]
    most = [2]

    def counted(job: Job, **options: Any) -> Any:
        def on_step(text: str) -> None:
            if job not in began:
                began.append(job)

        if len(began) == most[0]:
            raise MemoryError("planted")
        return train(job, **{**options, "on_step": on_step})

    monkeypatch.setattr("ssmperf.papers.learn.trials.train", counted)

    def again(resume: bool) -> ClaimResult:
        options: dict[str, Any] = {"out": tmp_path / "out", "device": "cpu", "preset": "smoke"}
        return ssmperf.reproduce("hgrn2:fig3", resume=resume, **options).results[0]

    failed = again(resume=False)
    assert failed.done == 0 and "planted" in failed.reason
    most[0] = 99
    assert [(job.model, job.seed) for job in began] == [("hgrn2", 0), ("hgrn2", 1)]
    began.clear()
    assert again(resume=True).done == 1
    assert [(job.model, job.seed) for job in began] == [("hgrn", 0), ("hgrn", 1)]
    began.clear()
    assert again(resume=True).done == 1 and not began


def standard_jobs(claim: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Job]]:
    """List the jobs of each piece of a claim on a GPU that is not there."""

    def note(jobs: Sequence[Job], *rest: Any) -> Any:
        raise StopIteration(jobs)

    found = {}
    work, setting = registry.claim(claim).work, ClaimSetting(device="cuda:0", corpus="text")
    monkeypatch.setattr(_learning, "search_all", note)
    monkeypatch.setattr("ssmperf.engine.machine.devices.resolve", lambda device: ("cuda", ["cuda:0"]))
    gpu = Device("cuda", 140 << 30, (9, 0))
    monkeypatch.setattr("ssmperf.engine.machine.devices.describe", lambda kind, found: gpu)
    for piece in work.pieces(setting):
        with pytest.raises(StopIteration) as noted:
            work.measure(piece, setting)
        found[piece] = noted.value.args[0]
    return found


@pytest.mark.slow(but=("gateloop:fig6", "hgrn2:*", "longhorn:fig1"))
@pytest.mark.parametrize("claim", LEARNED)
def test_networks_of_the_papers_sizes_can_be_built_and_trained(
    claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for jobs in standard_jobs(claim, monkeypatch).values():
        widths = set()
        for job in jobs:
            task = registry.task(job.task)
            hidden = None if job.hidden is None else {"hidden": job.hidden}
            options: dict[str, Any] = {"layers": 1, "block_options": hidden}
            few, more = (count_parameters(job.model, job.sizes, vocabulary=V, **options) for V in (4, 5))
            widths.add((more - few) // 2)  # an embedding and a row of the head per token
            assert job.corpus == "text"
            assert job.backend in _learning.BACKENDS and task.least <= job.sizes["T"]
        assert len(widths) == 1, "networks of different widths are compared"


def test_the_set_up_of_memory_horizon_is_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = standard_jobs("gateloop:fig6", monkeypatch)
    assert list(pieces) == ["gateloop", "gateloop_fixed"]
    for (job,) in pieces.values():
        assert dict(job.sizes) == {"C": 64, "B": 32, "T": 1024} and (job.layers, job.hidden) == (4, 128)
        assert (job.updates, job.warm_up, job.rate, job.decay) == (18750, 10_000, 2.5e-3, 0.05)


INCOMPLETE = ("longhorn:fig4",)  # rivals of its figure are no models here


def concluded(claim: str, found: Numbers) -> ClaimResult:
    return judge(registry.claim(claim), found)


@pytest.mark.parametrize("claim", LEARNED)
def test_made_up_accuracies_agree_disagree_or_leave_it_open(claim: str) -> None:
    make, (better, worse) = MADE_UP[claim]
    assert concluded(claim, make(better, worse)).agreement is (UNSURE if claim in INCOMPLETE else YES)
    assert concluded(claim, make(worse, better)).agreement is NO
    assert concluded(claim, make(better, better)).agreement is not YES
    found = make(better, worse)
    some = {piece: {"trainings": numbers["trainings"][3:]} for piece, numbers in found.items()}
    missing = concluded(claim, some)
    assert missing.agreement is UNSURE
    assert any("was not trained" in each.reason for each in missing.findings if each.decides)
    single = {
        piece: {"trainings": [row for row in numbers["trainings"] if row["seed"] == 0]}
        for piece, numbers in found.items()
    }
    assert concluded(claim, single).agreement is UNSURE


def test_nothing_is_told_of_512_steps_unless_they_were_run() -> None:
    shorter = {name: found for T in (64, 128, 256) for name, found in of_fig4(0.98, 0.4, T).items()}
    result = concluded("longhorn:fig4", shorter)
    assert result.agreement is UNSURE
    absent = [each for each in result.findings if "no model here" in each.reason]
    assert len(absent) == 2 and all(each.decides for each in absent)
    assert all(each in absent or "at T = 512" in each.reason for each in result.findings if each.decides)
    assert sum(each.agreement is YES for each in result.findings if not each.decides) == 15
    crowded = concluded("longhorn:fig4", of_fig4(0.999, 0.985))
    assert crowded.agreement is NO and any("too" in each.reason for each in crowded.findings)


def test_a_number_whose_split_is_not_stated_refutes_nothing() -> None:
    result = concluded("gateloop:fig6", of_gateloop(0.53, 0.35))
    assert result.agreement is UNSURE
    order, *numbers, gates = (each for each in result.findings if each.decides)
    assert order.agreement is gates.agreement is YES
    assert numbers and all("does not state" in each.reason for each in numbers)


def test_what_both_know_tells_nothing_of_either() -> None:
    numbers = made_up({"hgrn2": 0.999, "hgrn": 0.992}, 64, spread=0.0005)
    for row in numbers["trainings"]:
        row["ended_early"] = True
    judged = Trainings.of({"T64": numbers}).higher("hgrn2", "hgrn", 64)
    assert judged.agreement is UNSURE and "both" in judged.reason
    numbers["trainings"][-1]["ended_early"] = False
    assert Trainings.of({"T64": numbers}).higher("hgrn2", "hgrn", 64).agreement is YES


def test_what_neither_learned_tells_nothing_of_either() -> None:
    numbers = made_up({"hgrn2": 0.03, "hgrn": 0.01}, 64, spread=0.001)
    judged = Trainings.of({"T64": numbers}).higher("hgrn2", "hgrn", 64)
    assert judged.agreement is UNSURE and "neither" in judged.reason
    for row in numbers["trainings"]:
        row["chance"] = 0.02
    assert Trainings.of({"T64": numbers}).higher("hgrn2", "hgrn", 64).agreement is YES


@pytest.mark.parametrize("worse", [True, False])
@pytest.mark.parametrize("fault", ["solves it", "the loss of a guess", ""])
def test_a_rival_at_chance_counts_only_if_it_has_begun_to_learn(fault: str, worse: bool) -> None:
    """One that solves the task with one seed, or still guesses, was trained badly: that is no capacity."""
    better = {"hgrn2": 0.97, "hgrn": 0.0} if worse else {"hgrn2": 0.0, "hgrn": 0.97}
    numbers = made_up(better, 64, spread=0.001, losses=lambda *_: {"64": 5.0}, guess_loss=lambda *_: 8.3)
    rows = [row for row in numbers["trainings"] if row["accuracies"]["64"] < 0.5]
    if fault == "solves it":
        rows[0]["accuracies"]["64"] = 0.95
        rows += [{**row, "seed": row["seed"] + 3} for row in rows[1:] for _ in range(10)]
        numbers["trainings"] += rows[3:]
    elif fault:
        rows[0]["losses"]["64"] = 8.2
    judged = Trainings.of({"T64": numbers}).higher("hgrn2", "hgrn", 64)
    expected = UNSURE if fault else YES if worse else NO
    assert judged.agreement is expected and fault in judged.reason


@pytest.mark.parametrize(
    ("claim", "planted"),
    [
        ("hgrn2:needle", (0.04, 0.03)),
        ("hgrn2:needle", (0.03, 0.04)),
        ("lcsm:fig4", (0.04, 0.01)),
        ("lcsm:fig4", (0.01, 0.04)),
        ("linearization:copying", (0.02, 0.04)),
    ],
)
def test_networks_that_guess_decide_nothing(claim: str, planted: tuple[float, float]) -> None:
    """Accuracies below chance, 0.05, whose intervals are disjoint."""
    make, _ = MADE_UP[claim]
    found = make(*planted)
    for numbers in found.values():
        for row in numbers["trainings"]:
            nearer = 0.0099 * (row["seed"] - 1)  # than made-up seeds are to each other
            row["accuracies"] = {T: value - nearer for T, value in row["accuracies"].items()}
    assert concluded(claim, found).agreement is UNSURE


def test_a_training_that_was_cut_does_not_refute_a_paper_that_trains_longer() -> None:
    """Time-invariant models learn more in so many updates, and minimal RNNs less than Mamba."""
    make, (better, worse) = MADE_UP["linearization:copying"]
    found = make(worse, better)
    (numbers,) = found.values()
    assert concluded("linearization:copying", found).agreement is NO
    for row in numbers["trainings"]:
        row["updates"] = 8_000
    against = concluded("linearization:copying", found)
    assert against.agreement is UNSURE
    assert any("3 of 3 trainings of minlstm end before" in each.reason for each in against.findings)
    for row in numbers["trainings"]:
        if row["variant"] == "mamba":
            row["accuracies"] = dict.fromkeys(row["accuracies"], better)
    assert concluded("linearization:copying", found).agreement is UNSURE


def test_held_out_losses_are_compared_seed_by_seed() -> None:
    """Seeds have texts of different difficulty, which would hide that one model is worse on each."""
    found = of_efficiency(0.9, 0.5)
    for row in found["all"]["trainings"]:
        easy = (0.6, 1.0, 0.5)[row["seed"]]
        row["losses"] = {"512": easy * (1.0 if row["variant"] == "longhorn" else 1.2 + 0.01 * row["seed"])}
    assert concluded("longhorn:sample_efficiency", found).agreement is YES


def test_the_interval_of_an_accuracy_is_cut_to_what_is_possible() -> None:
    numbers = made_up({"hgrn2": 0.5, "hgrn": 0.01}, 64, spread=0.45)
    for row in numbers["trainings"][3:]:
        row["accuracies"]["64"] = 0.01
    found = Trainings.of({"T64": numbers}).accuracy("hgrn2", 64)
    assert found is not None and found.bounds == (0.0, 1.0)


def test_a_length_that_was_not_run_takes_one_line() -> None:
    result = concluded("lcsm:fig4", {"T64": of_lcsm(0.9, 0.1)["T64"]})
    missing = [each for each in result.findings if each.agreement is UNSURE and each.decides]
    assert result.agreement is UNSURE and [each.what for each in missing] == [
        f"all of this, T = {T}" for T in (128, 256)
    ]
    longhorn = concluded("longhorn:fig4", of_fig4(0.98, 0.4, 64))
    assert {each.what.rpartition(" = ")[2] for each in longhorn.findings} == {"64", "512"}


def test_a_variant_that_diverged_is_named_with_its_reason() -> None:
    numbers = made_up({"hgrn2": 0.9}, 64)
    bad = {"variant": "hgrn", "T": 64, "smoke": False, "seed": None, "status": "diverged", "reason": "nan"}
    finding = Trainings.of({"T64": {"trainings": [*numbers["trainings"], bad]}}).higher("hgrn2", "hgrn", 64)
    assert finding.agreement is UNSURE and finding.reason == "hgrn: nan"


accuracies = st.lists(st.floats(0, 1), min_size=2, max_size=4)


@given(accuracies, accuracies)
def test_a_verdict_needs_disjoint_intervals_of_student(one: list[float], other: list[float]) -> None:
    def row(variant: str, seed: int, accuracy: float) -> dict[str, Any]:
        (found,) = made_up({variant: accuracy}, 64)["trainings"][:1]
        return {**found, "seed": seed, "chance": -1.0, "accuracies": {"64": accuracy}}

    rows = [row("one", *each) for each in enumerate(one)] + [row("other", *each) for each in enumerate(other)]
    found = Trainings(rows)
    ends = []
    for values in (one, other):
        half = float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / len(values) ** 0.5
        ends.append((statistics.fmean(values) - half, statistics.fmean(values) + half))
    (low, high), (other_low, other_high) = ends
    if min(abs(low - other_high), abs(high - other_low)) < 1e-9:
        return  # too near to say by two different sums
    expected = YES if low > other_high else NO if high < other_low else UNSURE
    assert found.higher("one", "other", 64).agreement is expected
    opposite = {YES: NO, NO: YES, UNSURE: UNSURE}[expected]
    assert found.higher("other", "one", 64).agreement is opposite


def test_tokens_for_the_same_loss_are_read_off_both_curves() -> None:
    """A loss of 4 − t that falls twice as fast is there after half of the tokens, and the other way round."""
    parts = [(place + 0.5) / 32 for place in range(32)]
    slow = {"loss_curve": [4 - part for part in parts]}
    fast = {"loss_curve": [4 - 2 * part for part in parts]}
    assert longhorn_sample_efficiency.factor_of(fast, slow) == pytest.approx(2, rel=0.02)
    assert longhorn_sample_efficiency.factor_of(slow, fast) == pytest.approx(1 / 2, rel=0.02)
    assert longhorn_sample_efficiency.factor_of(slow, slow) == pytest.approx(1)
