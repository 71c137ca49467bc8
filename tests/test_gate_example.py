"""The example of the gate: three commits of a kernel, and what is written about each comparison."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import torch
from proofs import gate_example
from support.versions.gate import git

from ssmperf.suitekit import registry

# Stands in for ssmperf: writes the records of a run, or the JUnit of a comparison, and ends as it should.
STANDIN = """
import json, pathlib, sys
words = sys.argv[1:]
value = lambda option: words[words.index(option) + 1]
out = pathlib.Path(value("--out"))
out.mkdir(parents=True, exist_ok=True)
if words[0] == "run":
    lines = [{"dtype": "float32", "pass": name, "latency_s": seconds}
             for name, seconds in (("forward", 0.5), ("forward", 1.5), ("backward", 3.0))]
    (out / "records.jsonl").write_text("\\n".join(map(json.dumps, lines)))
    sys.exit()
code = {"right": 0, "slower": 1, "wrong": WRONG}[value("--new")]
for option in ("--summary", "--html"):
    pathlib.Path(value(option)).touch()
pathlib.Path(value("--junit")).write_text(
    "<testsuite><properties><property name='conclusion' value='a verdict'/></properties>"
    "<testcase classname='throughput.hgrn' name='my_scan'><failure message='slower: 2'/></testcase>"
    "</testsuite>")
sys.exit(code)
"""


@pytest.fixture(params=[3, 0])
def wrong(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Use the stand-in for ssmperf; return the code with which it ends for the wrong kernel."""
    file = tmp_path / "standin.py"
    file.write_text(STANDIN.replace("WRONG", str(request.param)))
    monkeypatch.setenv("SSMPERF", f"{sys.executable} {file}")
    return int(request.param)


def test_it_ends_well_if_every_comparison_ends_as_it_must(
    wrong: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert gate_example.main([str(out), "--device", "cpu"]) == (0 if wrong == 3 else 3)
    found = json.loads((out / "gate.json").read_text())
    assert [found[name]["exit_code"] for name in ("equal", "slower", "wrong")] == [0, 1, wrong]
    assert found["slower"]["cases"] == {"throughput.hgrn my_scan": "slower: 2"}
    assert f"wrong: exit code {wrong}, must be 3" in capsys.readouterr().out
    repository = out / "repository"
    codes = {
        tag: git(repository, "show", f"{tag}:{gate_example.PLUGIN}") for tag in ("right", "slower", "wrong")
    }
    assert len(set(codes.values())) == 3
    assert "{'torch.float32': {'forward': 1.0, 'backward': 3.0}}" in codes["slower"]
    assert git(repository, "status", "--porcelain") == ""
    assert gate_example.main([str(out), "--device", "cpu", "--only", "slower"]) == 0


def test_an_unknown_comparison_ends_with_2(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        gate_example.main([str(tmp_path), "--only", "faster"])
    assert ended.value.code == 2


@pytest.mark.parametrize(("gradient", "extra_s"), [(1, 0.0), (1, 0.03), (2, 0.0)])
def test_the_kernels_are_what_their_tags_say(
    gradient: int, extra_s: float, tmp_path: Path, own_registrations: None
) -> None:
    """The time of this thread counts its spin, on a busy machine too."""
    file = tmp_path / gate_example.PLUGIN
    extra = {"torch.float32": {"forward": extra_s, "backward": extra_s}}
    file.write_text(gate_example.kernel("cpu", extra=extra, gradient=gradient))
    registry.load_plugin(file)
    mine, original = (registry.backend("scan", name).function for name in ("my_scan", "blelloch"))
    log_a = torch.rand(2, 5, 3).log()
    gradients = {}
    for scan in (mine, original):
        b = torch.ones(2, 5, 3, requires_grad=True)
        began_s = time.thread_time()
        output, _ = scan(log_a, b)
        output.sum().backward()
        seconds = time.thread_time() - began_s
        assert scan is original or seconds >= extra_s
        gradients[scan] = b.grad
    torch.testing.assert_close(gradients[mine], gradient * gradients[original])
