"""docs/diagnosis.md: each of its kernels gives the message that stands below it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.processes.in_process import records_of

DOCUMENT = Path(__file__).parents[4] / "docs" / "diagnosis.md"
BLOCKS = re.compile(r"```(?P<language>python|text)\n(?P<text>.*?)```", re.DOTALL)
# what may differ from machine to machine: errors, lines of the file, where numbers overflow
NUMBERS = (
    (re.compile(r"\d\.\d+e[+-]\d+"), "#"),
    (re.compile(r"kernel\.py:\d+"), "kernel.py:#"),
    (re.compile(r"\d{2,} of (\d+) values are not finite, first at \([\d, ]+\)"), r"# of \1 values"),
    (re.compile(r"they are from step \d+ on"), "they are from step # on"),
)


def examples() -> tuple[str, dict[str, tuple[str, str]]]:
    """Get the lines that all kernels share; and by name each kernel's code and its message."""
    blocks = [(match["language"], match["text"]) for match in BLOCKS.finditer(DOCUMENT.read_text())]
    (_, shared), *rest = blocks
    assert [language for language, _ in rest] == ["python", "text"] * (len(rest) // 2)
    found = {}
    for (_, code), (_, message) in zip(rest[::2], rest[1::2], strict=True):
        (name,) = re.findall(r'^@broken\("(\w+)"\)', code, re.MULTILINE)
        found[name] = code, message.strip()
    return shared, found


SHARED, KERNELS = examples()


def without_numbers(text: str) -> str:
    for pattern, instead in NUMBERS:
        text = pattern.sub(instead, text)
    return text


def test_there_are_fifteen() -> None:
    assert len(KERNELS) == 15


@pytest.mark.parametrize("name", KERNELS)
def test_the_message_is_that_of_the_document(
    own_registrations: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    code, message = KERNELS[name]
    if "import triton" in code:
        pytest.importorskip("triton")
    monkeypatch.chdir(tmp_path)
    file = Path("kernel.py")
    file.write_text(f"{SHARED}\n\n{code}")
    (record,) = records_of("correctness", file, models="hgrn", backends=name, axis=["T=200", "B=2", "C=8"])
    assert without_numbers(f"{record.status}: {record.reason}") == without_numbers(message)
    wrong_numbers = "relative error" in message or "not finite" in message
    assert bool(record.numbers.get("diagnosis")) == wrong_numbers
