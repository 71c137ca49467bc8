"""Numbers with their units, and text from outside without its tricks."""

from __future__ import annotations

import math

import pytest
from ssmperf.reports.rows import units


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("latency_s", 1.2345e-3, "1.23 ms"),
        ("latency_s", 61.7e-6, "61.7 µs"),
        ("latency_s", 2.0, "2.00 s"),
        ("latency_s", 0.99999e-3, "1.00 ms"),
        ("tokens_per_s", 133e6, "133M"),
        ("bandwidth_bytes_per_s", 3.9e12, "3.90 TB/s"),
        ("peak_bytes", 48 * 2**20, "48.0 MiB"),
        ("peak_bytes", 0, "0.00 B"),
        ("copy_fraction", 0.32, "32 %"),
        ("limit_fraction", 0.084, "8.4 %"),
        ("limit_fraction", 0.000123, "0.012 %"),
        ("energy_j", 0.5, "500 mJ"),
        ("error_output", 3.14e-6, "3.1e-06"),
        ("speedup", 12.34, "12.3×"),
        ("speedup", 0.123, "0.12×"),
        ("speedup", 0.0049, "0.005×"),
        ("samples", 1200, "1,200"),
        ("converged", False, "no"),
        ("limit", "bytes", "bytes"),
        ("latency_s", None, "–"),
        ("latency_s", math.nan, "–"),
    ],
)
def test_a_number_has_its_unit(name: str, value: object, text: str) -> None:
    assert units.number(name, value) == text


def test_the_spread_is_the_wider_half_of_the_interval() -> None:
    assert units.spread(1.0, 0.99, 1.03) == "±3.0 %"
    assert units.spread(1.0, None, 1.03) == ""


def test_interval_fields_keep_the_unit_last() -> None:
    assert units.interval_names("latency_s") == ("latency_low_s", "latency_high_s")
    assert units.interval_names("loss") == ("loss_low", "loss_high")


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert units.plain("a\x1b[31mb\nc\u2028d\x9b") == "a [31mb c d"


@pytest.mark.parametrize("turn", ["\u061c", "\u200f", "\u202a", "\u202e", "\u2066", "\u2069"])
def test_no_name_turns_the_direction_of_what_stands_behind_it(turn: str) -> None:
    assert units.plain(f"scan{turn}wrong") == "scan wrong"
    assert units.plain_lines(f"scan{turn}wrong\nok") == "scan wrong\nok"
