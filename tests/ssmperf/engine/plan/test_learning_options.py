"""The options about trainings: they replace the preset's, repeat a case, and a resumed run must agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssmperf import UnknownName, UsageError
from ssmperf.engine.execute.request import Request
from ssmperf.engine.plan import learning
from ssmperf.engine.plan.learning import Learning
from ssmperf.engine.registry.presets import PRESETS, Training


def text(folder: Path, content: str = "some text") -> Path:
    file = folder / "text.txt"
    file.write_text(content)
    return file


def test_options_replace_the_presets_and_stand_in_the_command(tmp_path: Path) -> None:
    file = text(tmp_path)
    request = Request.of(
        "extrapolation",
        device="cpu",
        out=tmp_path / "run",
        updates=7,
        seeds=4,
        rates="0.01,0.001",
        layers=3,
        corpus=file,
        test_backend="sequential",
        side_by_side=2,
    )
    found, smoke = request.scale.training, PRESETS["smoke"].training
    assert (found.updates, found.seeds, found.rates, found.layers) == (7, 4, (0.001, 0.01), 3)
    assert (found.corpus, found.test_backend, found.side_by_side) == (str(file), "sequential", 2)
    assert (found.length, found.models) == (smoke.length, smoke.models)
    assert Training.from_json(found.to_json()) == found
    assert " ".join(request.words) == (
        f"--updates 7 --seeds 4 --rates 0.001,0.01 --layers 3 --corpus {file} --test-backend sequential "
        "--side-by-side 2"
    )
    assert Request.of("extrapolation", device="cpu", out=tmp_path / "run").scale.training == smoke


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"updates": 0}, "--updates must lie between 1"),
        ({"seeds": 0}, "--seeds"),
        ({"side_by_side": 65}, "--side-by-side"),
        ({"rates": "fast"}, "--rates takes numbers"),
        ({"rates": "0.1,-1"}, "above 0"),
        ({"rates": "inf"}, "finite"),
        ({"corpus": "no/such/file"}, "cannot read"),
    ],
)
def test_illegal_options_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Learning(**options)
    with pytest.raises(UnknownName):
        Learning(test_backend="nobody")


def test_a_resumed_run_goes_on_with_its_own_options(tmp_path: Path) -> None:
    own = Learning(updates=7, rates=0.01, corpus=text(tmp_path))
    meta = {learning.META: own.to_json()}
    assert learning.resumed(Learning(), meta, "here") == own
    assert learning.resumed(Learning(side_by_side=3), meta, "here").side_by_side == 3
    assert learning.resumed(own, meta, "here") == own
    assert learning.resumed(own, {}, "a new folder") == own
    for other in (Learning(updates=8), Learning(updates=7), Learning(seeds=2)):
        with pytest.raises(UsageError, match=r"begun with --updates 7 --rates 0\.01 --corpus"):
            learning.resumed(other, meta, "here")
    with pytest.raises(UsageError, match="no option about trainings"):
        learning.resumed(own, {"learning": {}}, "here")
    with pytest.raises(UsageError, match="damaged"):
        learning.resumed(Learning(), {"learning": {"rates": "fast"}}, "here")
    text(tmp_path, "another text")
    with pytest.raises(UsageError, match="has changed"):
        learning.resumed(Learning(), meta, "here")


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no text"):
        Learning(corpus=tmp_path)
