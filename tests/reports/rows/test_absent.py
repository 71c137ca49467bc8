"""Backends whose package is not installed take no room in a table, and one line names them."""

from __future__ import annotations

from typing import Any

import pytest
from ssmperf.reports.formats import exports, tables
from ssmperf.reports.pages import html
from ssmperf.suites.correctness import SECTION

from ssmperf.engine.registry import declarations
from ssmperf.suitekit import registry

META = {"suites": {"correctness": SECTION.to_json()}}
PLACE = {"recurrence": "linear_attention", "model": "gla"}


@pytest.fixture
def reason(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the reason with which a backend whose package is not installed refuses a case."""
    monkeypatch.setattr(declarations, "installed", lambda package: False)
    return lambda name: registry.backend("linear_attention", name).refusal(device="cuda")


def shown(run: Any) -> list[str]:
    return [str(tables.table([run])), str(exports.markdown([run]))]


@pytest.mark.parametrize("suite", ["throughput", "correctness"])
def test_they_are_named_by_package_in_one_line(suite: str, fake: Any, reason: Any) -> None:
    place = {**PLACE, "suite": suite}
    names = ("fla", "fla_triton", "mamba_ssd")
    records = [fake.failed("unsupported", reason(name), backend=name, **place) for name in names]
    records += [fake.timed(1.0, backend="chunkwise", **place)]
    records += [fake.failed("unsupported", "no float64", backend="triton", **place)]
    run = fake.run(records, meta=META if suite == "correctness" else {})
    for text in shown(run):
        plain = text.replace("\\", "")
        assert "left out: fla, fla_triton (needs the package fla, which is not installed)" in plain
        assert "left out: mamba_ssd (needs the package mamba_ssm, which is not installed)" in plain
        assert plain.count("fla_triton") == plain.count("mamba_ssd") == 1
        assert "triton" in plain.replace("fla_triton", "") and "no float64" in plain
    page = str(html.html([run]))
    assert "left out: fla, fla_triton (needs the package fla, which is not installed)" in page
    assert 'class="none"' in page and 'data-backend="triton"' in page
    assert 'data-backend="fla"' not in page.partition('<table class="heat"')[2].partition("</table>")[0]


def test_a_backend_that_ran_elsewhere_stays_and_so_do_all_if_none_ran(fake: Any, reason: Any) -> None:
    absent = fake.failed("unsupported", reason("fla"), backend="fla", **PLACE)
    ran = fake.timed(1.0, backend="fla", **{**PLACE, "dtype": "bfloat16"})
    for records in ([absent], [absent, ran, fake.timed(1.0, backend="chunkwise", **PLACE)]):
        assert not any("left out" in text for text in shown(fake.run(records)))
