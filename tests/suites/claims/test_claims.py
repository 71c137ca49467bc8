"""The claims themselves: those of two cores run, planted faults disagree, times are judged by the rule."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ssmperf.suites.claims import (
    _timing,
    gateloop_surrogate,
    linearization_scan,
    longhorn_stability,
    longhorn_table1,
)

import ssmperf
from ssmperf import ClaimResult
from ssmperf.papers.reproduction.reproduce import judge
from ssmperf.suitekit import Agreement, ClaimSetting, Estimate, Finding, registry

YES, NO, UNSURE = Agreement.AGREES, Agreement.DISAGREES, Agreement.CANNOT_TELL
COUNTED = ("hgrn2:parameters", "lcsm:parameters", "longhorn:parameters")
RESULTS = Path(__file__).parents[3] / "docs" / "results"
KEPT = tuple(RESULTS / name for name in ("cpu-claims", "h200-claims", "h200-trainings"))
TIMED = ("hgrn2:cost", "longhorn:speed", "mamba:scan", "mamba2:ssd", "mingru:training")


def measured(name: str, **setting: Any) -> dict[str, Mapping[str, Any]]:
    """Measure all pieces of a claim but its times."""
    given = ClaimSetting(**setting)
    work = registry.claim(name).work
    return {piece: work.measure(piece, given) for piece in work.pieces(given) if piece != "times"}


@functools.cache
def counted(name: str) -> Mapping[str, Any]:
    """Count once what several tests look at."""
    return measured(name)["counts"]


def concluded(name: str, found: Mapping[str, Mapping[str, Any]]) -> ClaimResult:
    return judge(registry.claim(name), found)


def verdicts(result: ClaimResult) -> dict[str, Agreement]:
    return {each.what: each.agreement for each in result.findings}


def test_every_claim_says_all_that_a_reader_needs() -> None:
    for name, claim in registry.claims().items():
        texts = (
            claim.paper,
            claim.place,
            claim.statement,
            claim.printed,
            claim.runs,
            claim.scaled,
            claim.rule,
        )
        assert all(texts) and claim.budget_s > 0, name
        assert list(claim.work.pieces(ClaimSetting())), name
        nothing = judge(claim, {})
        assert nothing.agreement is UNSURE, name


def test_the_document_is_drawn_from_the_kept_results() -> None:
    """By `ssmperf report docs/results/{cpu-claims,h200-claims,h200-trainings} --format markdown`."""
    text = registry.report("markdown", of="claims")(ssmperf.load_reproduction(*KEPT), None)
    assert text == (RESULTS.parent / "claims.md").read_text(), "draw docs/claims.md again"
    for file in (Path(__file__).parents[3] / "suites" / "claims").glob("[!_]*.py"):
        name = file.stem.replace("_", ":", 1)
        assert f"`{name}`" in text and registry.claim(name).doubts, name


@pytest.mark.slow(but=("hgrn2:cost", "mingru:training"))
@pytest.mark.parametrize("name", ["mingru:training", "hgrn2:cost", "gateloop:surrogate"])
def test_no_claim_agrees_without_a_piece_that_decides(name: str) -> None:
    found = measured(name) if name not in TIMED else kept_numbers(name)
    beside = {"n8", "n16"}  # of `hgrn2:cost`: they decide nothing
    assert concluded(name, found).agreement is YES and len(found) > 2
    for missing in sorted(set(found) - beside):
        rest = {piece: numbers for piece, numbers in found.items() if piece != missing}
        assert concluded(name, rest).agreement is UNSURE, missing


def kept_numbers(name: str) -> dict[str, Mapping[str, Any]]:
    """Read what an H200 has measured."""
    kept = KEPT[1] / name.replace(":", "-")
    files = {file.parent.name: json.loads(file.read_text()) for file in kept.glob("*/result.json")}
    return {piece: file["numbers"] for piece, file in files.items()}


@pytest.mark.slow
def test_claims_that_need_no_gpu_run_and_say_what_the_document_says(tmp_path: Path) -> None:
    named = [name for name, claim in registry.claims().items() if claim.device == "cpu"]
    found = ssmperf.reproduce(named, out=tmp_path / "out", device="cpu")
    kept = {each.claim.name: each.agreement for each in ssmperf.load_reproduction(*KEPT).results}
    assert len(named) >= 6
    assert {each.claim.name: each.agreement for each in found.results} == {name: kept[name] for name in named}


@pytest.mark.slow
def test_counts_of_parameters_are_judged_as_they_are() -> None:
    found = {name: concluded(name, {"counts": counted(name)}) for name in COUNTED}
    assert {name: result.agreement for name, result in found.items()} == {
        "hgrn2:parameters": YES,
        "lcsm:parameters": YES,
        "longhorn:parameters": NO,  # 369.97 M instead of 369.8 M, which nobody bends
    }
    longhorn = verdicts(found["longhorn:parameters"])
    against = {"Longhorn, 350M", "GLA, 350M", "LLaMA, 120M", "LLaMA, 350M"}
    assert {what for what, each in longhorn.items() if each is NO} == against
    assert sum(each is YES for each in longhorn.values()) == len(longhorn) - len(against) == 8
    fitted = [each for each in found["lcsm:parameters"].findings if not each.decides]
    assert len(fitted) == 10 and {each.agreement for each in fitted} == {UNSURE}


@pytest.mark.parametrize("name", COUNTED)
def test_a_planted_count_disagrees(name: str) -> None:
    counts = counted(name)
    found = concluded(name, {"counts": {row: round(value * 1.01) for row, value in counts.items()}})
    assert found.agreement is NO
    missing = concluded(name, {"counts": dict.fromkeys(counts)})
    assert missing.agreement is UNSURE and not any(each.agreement is NO for each in missing.findings)


def test_longhorn_is_stable_and_an_unstable_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert concluded("longhorn:stability", measured("longhorn:stability", seeds=3)).agreement is YES
    broken = longhorn_stability.delta_states
    monkeypatch.setattr(longhorn_stability, "diagonal_states", lambda k, v, step: broken(k, v, 9 * step + 1))
    found = verdicts(concluded("longhorn:stability", measured("longhorn:stability", seeds=3)))
    assert NO in found.values()
    lonely = concluded("longhorn:stability", measured("longhorn:stability", seeds=1))
    assert lonely.agreement is UNSURE and "seeds" in lonely.findings[0].reason


@pytest.mark.parametrize("row", longhorn_table1.ROWS)
def test_a_step_that_minimises_something_else_disagrees(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step from a state that is a little off; the kernel's update, which is no minimum, stands beside."""
    right = longhorn_table1.ROWS[row]
    off = replace(right, step=lambda before, of: right.step(before + 1e-9, of))
    planted = {**longhorn_table1.ROWS, row: off}
    monkeypatch.setattr(longhorn_table1, "ROWS", planted)
    found = concluded("longhorn:table1", measured("longhorn:table1"))
    assert found.agreement is (NO if right.decides else YES)
    assert [each.agreement for each in found.findings if row == each.what.partition(", ")[2]] == [NO]


def test_products_of_gates_leave_the_range_where_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gateloop_surrogate.turning_point(gateloop_surrogate.printed_form, 64, "cpu")
    assert found == {"right": 88.7, "wrong": 89.0}
    assert gateloop_surrogate.turning_point(gateloop_surrogate.backend("surrogate_raw"), 64, "cpu") == found
    assert (
        gateloop_surrogate.turning_point(gateloop_surrogate.backend("surrogate"), 64, "cpu")["wrong"] is None
    )

    def concluded_with(form: Callable[..., torch.Tensor]) -> Agreement:
        forms = {"eqs. 14-21 as printed": form, "surrogate_raw": form}
        forms |= {name: gateloop_surrogate.backend(name) for name in ("surrogate", "sequential")}
        numbers = {name: gateloop_surrogate.turning_point(each, 64, "cpu") for name, each in forms.items()}
        return concluded("gateloop:surrogate", dict.fromkeys(("T64", "T256", "T1024"), numbers)).agreement

    assert concluded_with(gateloop_surrogate.printed_form) is YES
    assert concluded_with(gateloop_surrogate.backend("sequential")) is not YES
    monkeypatch.setattr(gateloop_surrogate, "SPANS", (10.0, 40.0))
    assert concluded_with(gateloop_surrogate.printed_form) is not YES  # nothing was wrong anywhere


def test_scans_are_counted_and_a_quadratic_one_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearization_scan, "COUNTED", (256, 512, 1024))
    found = measured("linearization:scan", seeds=3)
    assert concluded("linearization:scan", found).agreement is YES
    assert found["counts"]["blelloch"]["256"] == [17, 2 * 255 + 256]
    quadratic = {**found["counts"], "blelloch": {str(T): [T, T * T] for T in (256, 512, 1024)}}
    assert concluded("linearization:scan", {**found, "counts": quadratic}).agreement is NO
    swapped = {"zoh": found["identity"]["euler"], "euler": found["identity"]["zoh"]}
    assert concluded("linearization:scan", {**found, "identity": swapped}).agreement is NO


def timing(latency: float, **case: Any) -> dict[str, Any]:
    """Make a case of a piece, timed within ± 1 %."""
    time = Estimate(latency, 0.99 * latency, 1.01 * latency, "s", 5).to_json()
    peak = Estimate.exact(1e6 * latency, "B").to_json()
    return {
        "T": 512,
        "pass": "forward",
        "status": "ok",
        "reason": None,
        "latency_s": time,
        "peak_bytes": peak,
        **case,
    }


def refused(reason: str, **case: Any) -> dict[str, Any]:
    return {"T": 512, "pass": "forward", "status": "unsupported", "reason": reason, **case}


def all_cases(fast: float, slow: float) -> dict[str, dict[str, Any]]:
    """Make the pieces of every timing claim: what is said to be fast takes `fast`, the other `slow`."""
    pairs = (("mingru", "gru"), ("minlstm", "lstm"))
    naive = ("torch_scan", "blelloch", "sequential")
    speeds = {"longhorn": fast, "mamba": slow}
    return {
        "mamba:scan": {
            "times": [
                *(timing(fast, model="mamba", backend=name) for name in ("mamba_ssm", "triton")),
                *(timing(slow, model="mamba", backend=name) for name in naive),
            ]
        },
        "mamba2:ssd": {
            f"N{N}": [
                *(timing(fast, model="mamba2", backend=name) for name in ("mamba_ssd", "triton")),
                *(timing(slow, model="mamba", backend=name) for name in ("mamba_ssm", "triton")),
            ]
            for N in (64, 128, 256)
        },
        "longhorn:speed": {
            level: [
                timing(speed, model=model, backend="triton", **{"pass": pass_})
                for model, speed in speeds.items()
                for pass_ in ("forward", "backward")
            ]
            for level in ("op", "block")
        },
        "mingru:training": {
            f"{minimal}-T{T}": [
                timing(fast, model=minimal, backend="triton"),
                *(timing(slow, model=full, backend=name) for name in ("sequential", "torch_rnn")),
            ]
            for T in (512, 4096)
            for minimal, full in pairs
        },
        "hgrn2:cost": {
            "n4": [timing(fast, model="pese_lr:n=4", backend="triton")],
            "n32": [timing(slow, model="pese_lr:n=32", backend="triton")],
            "hgrn2": [timing(fast, model="hgrn2", backend="triton")],
        },
    }  # fmt: skip


def of_times(name: str, fast: float, slow: float) -> ClaimResult:
    return concluded(name, {piece: {"cases": cases} for piece, cases in all_cases(fast, slow)[name].items()})


@pytest.mark.parametrize("name", TIMED)
def test_times_agree_disagree_or_leave_it_open(name: str) -> None:
    near, far = of_times(name, 1.0, 1.005), of_times(name, 1.0, 30.0)
    if name == "longhorn:speed":  # whose kernel is no backend; faster than Mamba counts as at least as fast
        slow = of_times(name, 30.0, 1.0)
        assert {each.agreement for each in (near, far, slow)} == {UNSURE}
        shown = [{each.agreement for each in result.findings[1:]} for result in (near, far, slow)]
        assert shown == [{YES}, {YES}, {NO}]
    else:
        assert (near.agreement, far.agreement) == (UNSURE, YES)
        assert of_times(name, 30.0, 1.0).agreement is NO
    factors = [each for each in far.findings if each.what.startswith("factor of")]
    assert not any(each.decides or each.agreement is not UNSURE for each in factors)


def test_a_missing_kernel_is_named_and_nothing_is_told() -> None:
    cases = [each for each in all_cases(1.0, 30.0)["mamba:scan"]["times"] if each["backend"] != "mamba_ssm"]
    cases.append(
        refused("needs selective_scan_cuda, which cannot be imported", model="mamba", backend="mamba_ssm")
    )
    found = concluded("mamba:scan", {"times": {"cases": cases}})
    assert found.agreement is UNSURE
    deciding = [each for each in found.findings if each.decides]
    assert deciding and all("selective_scan_cuda" in each.reason for each in deciding)
    beside = [each for each in found.findings if each.what == "triton against torch_scan"]
    assert [each.agreement for each in beside] == [YES]


@pytest.mark.slow
def test_a_kernel_is_timed_by_the_throughput_suite(tmp_path: Path) -> None:
    setting = ClaimSetting(preset="smoke", folder=tmp_path)
    choices: dict[str, Any] = {"models": "mingru", "axis": ["B=1", "T=8", "C=2"], "pass_": "forward"}
    found = _timing.timed(setting, "times", backends=["blelloch", "mamba_ssm"], **choices)
    (case,) = [each for each in found["cases"] if each["backend"] == "blelloch"]
    assert case["status"] == "ok", case
    assert (case["model"], case["T"], case["pass"]) == ("mingru", 8, "forward")
    time = _timing.latency(found, backend="blelloch", T=8)
    assert time is not None and 0 < time.value < 1
    assert _timing.latency(found, backend="triton") is None
    assert "not measured" in _timing.why(found, backend="triton")
    assert len((tmp_path / "times" / "records.jsonl").read_text().splitlines()) >= 1
    assert isinstance(_timing.faster("w", "p", found, {"backend": "blelloch"}, {"backend": "x"})[0], Finding)
