"""Drawing: equal seeds give equal values, whatever is imported; a failing value is shrunk to the simplest."""

from __future__ import annotations

import sys
import types

from hypothesis import strategies as st

from ssmperf.authors.fuzzing.configurations.drawing import drawn, shrunk

PAIRS = st.tuples(st.integers(1, 5000), st.sampled_from(["float32", "bfloat16", "float16"]))


def test_equal_seeds_give_equal_values() -> None:
    assert drawn(PAIRS, 5, 30) == drawn(PAIRS, 5, 30) != drawn(PAIRS, 6, 30)


def test_values_do_not_depend_on_what_is_imported(monkeypatch, tmp_path) -> None:
    """Hypothesis by itself draws numbers that it reads in the source of modules."""
    before = drawn(PAIRS, 5, 300)
    file = tmp_path / "many_numbers.py"
    file.write_text("\n".join(f"x{number} = {number}" for number in range(3000, 3400)))
    module = types.ModuleType("many_numbers")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "many_numbers", module)
    assert drawn(PAIRS, 5, 300) == before


def test_the_first_value_is_the_simplest() -> None:
    assert drawn(PAIRS, 5, 3)[0] == (0, (1, "float32"))


def test_a_failing_value_is_shrunk() -> None:
    def fails(value: tuple[int, str]) -> bool:
        return value[0] > 128 and value[1] != "float32"

    number, value = next(each for each in drawn(PAIRS, 5, 30) if fails(each[1]))
    assert shrunk(PAIRS, 5, number, value, fails) == (129, "bfloat16")


def test_a_value_that_nothing_simpler_shares_stays() -> None:
    for number, value in drawn(PAIRS, 5, 8):
        assert shrunk(PAIRS, 5, number, value, lambda each, own=value: each == own) == value
