"""Workloads in files: each of suites/workloads is read and has a model; wrong files are refused in a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ssmperf import Shape, UnknownName, UsageError
from ssmperf.engine.plan.workloads import reading
from ssmperf.engine.plan.workloads.workload import TRAINED_AT, Workload
from ssmperf.suitekit import registry

ROOT = Path(__file__).parents[5]
GOOD = 'model = "gla"\n[sizes]\nH = 4\nK = 64\nV = 64\n'


def workloads() -> list[Workload]:
    return [reading.of_name(name) for name in reading.names()]


def test_every_file_is_listed_and_read() -> None:
    names = reading.names()
    assert names == sorted(file.stem for file in (ROOT / "suites" / "workloads").glob("*.toml"))
    assert [each.name for each in workloads()] == names
    assert len(names) >= 25


@pytest.mark.parametrize("name", reading.names())
def test_a_workload_says_where_it_comes_from(name: str) -> None:
    workload = reading.of_name(name)
    assert workload.source and workload.gates
    assert "?" not in workload.source + workload.gates


@pytest.mark.parametrize("name", reading.names())
def test_a_workload_names_a_model_and_all_its_dimensions(name: str) -> None:
    workload = reading.of_name(name)
    entry = registry.model(workload.model)
    assert entry.name == workload.model
    preset = next(iter(registry.shapes(entry, "smoke")))
    assert set(preset) - {"B", "T"} == set(workload.sizes) - {"G"}


def test_many_layers_are_distinct() -> None:
    layers = {(each.model, Shape(each.sizes)) for each in workloads()}
    assert len(layers) >= 16


def test_the_table_of_the_documents_is_that_of_the_files() -> None:
    text = (ROOT / "docs" / "workloads.md").read_text()
    table = text.partition("| name | model |")[2].partition("\n\n")[0].splitlines()[2:]
    assert table == [row(each) for each in workloads()]


def row(workload: Workload) -> str:
    layers = "{} of {}".format(*workload.layers) if workload.layers else ""
    context = f"{workload.context:,}" if workload.context else ""
    T, B = workload.trained_at
    cells = (
        f"`{workload.name}`",
        f"`{workload.model}`",
        Shape(workload.sizes),
        layers,
        context,
        f"T{T} B{B}",
    )
    return f"| {' | '.join(map(str, cells))} | {workload.source} |"


def test_the_documents_own_file_reads(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "workloads.md").read_text()
    file = tmp_path / "layer.toml"
    file.write_text(text.partition("```toml\n")[2].partition("```")[0])
    assert reading.read(file).sizes == reading.of_name("qwen3-next-80b").sizes


def test_lengths() -> None:
    assert reading.of_name("qwen3-next-80b").trained_at == TRAINED_AT
    assert reading.of_name("mamba2-2.7b").trained_at == (32768, 2)


def test_an_unknown_name_suggests_near_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean qwen3-next-80b"):
        reading.of_name("qwen3-next")
    with pytest.raises(UnknownName):
        reading.of_name("../workloads/qwen3-next-80b")


def test_reading_all_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from ssmperf.engine.plan.workloads import reading\n"
        "for name in reading.names(): reading.of_name(name)\n"
        "print(sorted({'torch', 'pandas', 'ssmperf.suites'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_users_own_file(tmp_path: Path) -> None:
    file = tmp_path / "my-layer.toml"
    file.write_text(
        'model = "gated_deltanet"\nlayers = [2, 3]\ncontext = 4096\ngates = "g"\nsource = "s"\n'
        "[sizes]\nV = 16\nK = 32\nG = 2\nH = 4\n[train]\nT = 128\nB = 8\n"
    )
    workload = reading.read(file)
    assert workload == Workload(
        "my-layer", "gated_deltanet", {"H": 4, "G": 2, "K": 32, "V": 16}, (128, 8), (2, 3), 4096, "g", "s"
    )
    file.write_text(GOOD)
    least = reading.read(file)
    assert (least.trained_at, least.layers, least.context, least.source) == (TRAINED_AT, None, None, "")


def test_key_heads_as_many_as_heads_are_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "equal.toml"
    file.write_text(GOOD.replace("K = 64", "G = 4\nK = 64"))
    assert "G" not in reading.read(file).sizes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD.replace("model", "modle"), "unknown key 'modle' (valid: model, layers"),
        ("[sizes]\nH = 4\n", "the key model is missing"),
        ('model = "gla"\n', "the key sizes is missing"),
        (GOOD.replace('"gla"', "3"), "model must be a text in quotes, got 3"),
        (GOOD.replace('"gla"', '""'), "model must be a text"),
        ("source = 1\n" + GOOD, "source must be a text"),
        (GOOD.replace("H = 4", "H = 0"), "H in [sizes] must be a whole number from 1 to 1,000,000, got 0"),
        (GOOD.replace("H = 4", "H = -4"), "got -4"),
        (GOOD.replace("H = 4", "H = 4.0"), "got 4.0"),
        (GOOD.replace("H = 4", "H = true"), "got True"),
        (GOOD.replace("H = 4", 'H = "4"'), "got '4'"),
        (GOOD.replace("H = 4", "H = 9223372036854775808"), "got 9223372036854775808"),
        (GOOD.replace("H = 4", "X = 4"), "unknown key 'X' in [sizes] (valid: C, H, G, K, V, D, N)"),
        (GOOD.replace("H = 4", "T = 4"), "unknown key 'T' in [sizes]"),
        (GOOD.replace("H = 4", "H = 4\nG = 3"), "G, the number of key heads, must divide H"),
        ('model = "gla"\nsizes = 3\n', "sizes must be a section [sizes], got 3"),
        ('model = "gla"\n[sizes]\n', "[sizes] has no dimension"),
        (GOOD + "[train]\nT = 4\n", "[train] needs both T and B"),
        (GOOD + "[train]\nT = 4\nB = 0\n", "B in [train] must be"),
        (GOOD + "[train]\nT = 4\nB = 1\nH = 1\n", "unknown key 'H' in [train] (valid: T, B)"),
        ("layers = 3\n" + GOOD, "layers must be [layers of this kind, all layers], got 3"),
        ("layers = [3]\n" + GOOD, "layers must be"),
        ("layers = [4, 3]\n" + GOOD, "4 of this kind are more than all 3"),
        ('layers = [1, "3"]\n' + GOOD, "layers must be a whole number"),
        ("context = 0\n" + GOOD, "context must be a whole number"),
        ("model = \n", "is not TOML"),
        ("a = " + "[" * 100_000, "nested too deeply"),
    ],
)
def test_wrong_files_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        reading.read(file)
    message = str(refused.value)
    assert reason in message
    assert str(file) in message and "\n" not in message


def test_paths_that_are_no_small_text_file_are_refused(tmp_path: Path) -> None:
    large, binary = tmp_path / "large.toml", tmp_path / "binary.toml"
    large.write_text("#" * 1_000_001)
    binary.write_bytes(b"\xff\xfe")
    for path, reason in (
        (tmp_path, "is no ordinary file"),
        (Path("/dev/zero"), "is no ordinary file"),
        (tmp_path / "missing.toml", "no such file"),
        (Path("a" * 5000), "File name too long"),
        (Path("a\0b"), "rename the file"),
        (Path("a\nb"), "rename the file"),
        (large, "more than 1,000,000 bytes"),
        (binary, "not text in UTF-8"),
    ):
        with pytest.raises(UsageError, match=reason) as refused:
            reading.read(path)
        assert "\n" not in str(refused.value)
