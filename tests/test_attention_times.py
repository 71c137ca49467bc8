"""The script that times linear attention beside its peers: its rows, calls and table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ci import attention_rows, attention_times
from ci.attention_rows import PASSES, ROWS, STRONG, Row, call_of, operands, tensors
from ssmperf import registry

TINY = {"B": 2, "T": 32, "H": 4, "K": 8, "V": 8}


def tiny(gate: str, **changes: int) -> Row:
    return Row("tiny", gate, **{**TINY, **changes}, subjects=("chunkwise",))


def test_a_row_is_known_by_its_name_shape_and_pass() -> None:
    keys = [(row.name, row.shape, pass_) for row in ROWS for pass_ in row.passes]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("gate", sorted({row.gate for row in ROWS}))
def test_both_passes_give_what_the_definition_gives(gate: str) -> None:
    given = operands(tiny(gate), "cpu")
    output, state = tensors(call_of("chunkwise", given, "inference")())
    definition = registry.recurrence("linear_attention").definition
    wide = {name: x.double() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    for found, expected in zip((output, state), definition(**wide), strict=True):
        torch.testing.assert_close(found.to(expected.dtype), expected, rtol=0.02, atol=0.02)
    differentiated = [x for x in given.values() if isinstance(x, torch.Tensor) and x.dim() > 1]
    gradients = tensors(call_of("chunkwise", given, "training")())
    assert [x.shape for x in gradients] == [x.shape for x in differentiated]


def test_an_odd_width_has_a_column_of_ones() -> None:
    assert (operands(tiny("scalar", V=9), "cpu")["v"][..., -1] == 1).all()


def line(subject: str, us: float | None, row: str = "key", **more: object) -> dict[str, object]:
    found = {"us": us} if us else {"failed": "refused"}
    return {"row": row, "shape": "B1", "pass": "inference", "subject": subject, **found, **more}


def test_the_table_says_which_peers_are_ahead() -> None:
    text = attention_times.table(
        [
            line("triton", 10.0),
            line("fla_triton", 25.0),
            line("triton", 30.0, row="scalar"),
            line("fla_triton", 15.0, row="scalar"),
            line("mamba_ssd", None, row="scalar"),
            line("triton", 9000.0, **{"empty caches": True}),
        ]
    )
    assert "fla_triton 25.0 (2.50)" in text and "mamba_ssd refused" in text and "9000" not in text
    assert text.splitlines()[-2:] == ["1 of 2 behind a peer", "  0.50 scalar B1 inference fla_triton"]


class Clock:
    """Stands in for the clock of a GPU."""

    def __init__(self, *_: object) -> None:
        pass


def test_rows_of_a_file_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def attempted(row: Row, subject: str, pass_: str, clock: object) -> dict[str, object]:
        asked.append((subject, pass_))
        return {"us": 1.0}

    monkeypatch.setattr(attention_times, "attempted", attempted)
    monkeypatch.setattr(attention_times, "GraphClock", Clock)
    monkeypatch.setattr(attention_times, "environment", dict)
    monkeypatch.setattr(attention_times, "flusher", lambda *_: type("Flusher", (), {"flush": None}))
    monkeypatch.setattr(torch.cuda, "Stream", object)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: torch.no_grad())
    row = replace(tiny("key"), subjects=("triton", "fla_triton"))
    file = tmp_path / "out.jsonl"
    first = attention_times.head(row, "triton", "training") | {"empty caches": True}
    file.write_text(json.dumps(first) + "\n")
    attention_times.run([row], file, ["triton"], minutes=1)
    assert asked == [("triton", pass_) for pass_ in PASSES]
    attention_times.run([row], file, [], minutes=1)
    assert asked[2:] == [("fla_triton", pass_) for pass_ in PASSES]
    attention_times.run([row], file, [], minutes=1)
    assert len(asked) == 4


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert attention_times.main([str(tmp_path / "out.jsonl")]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_unknown_rows_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        attention_times.main([str(tmp_path / "out.jsonl"), "--rows", "nothing"])
    assert "key-long" in capsys.readouterr().err


def test_our_backend_is_in_every_row() -> None:
    assert all(attention_rows.OURS in row.subjects for row in ROWS)


@pytest.mark.parametrize(
    ("wide", "strong"), [("none", 0), ("one", 64), ("few", 2 * 2 * 128), ("all", 2 * 3 * 128)]
)
def test_gates_are_strong_where_a_row_says_so(wide: str, strong: int) -> None:
    """B = 2, T = 128 and three heads: in one chunk of one head, in two heads of each sequence, everywhere."""
    log_a = operands(Row("tiny", "scalar", 2, 128, 3, 16, 16, wide=wide), "cpu")["log_a"]
    assert int((log_a == STRONG).sum()) == strong and bool((log_a <= 0).all())
