"""Spare nurseries: they start before torch is imported, a lane takes what it would start, the rest ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ssmperf.engine.processes import spares
from ssmperf.engine.processes.nursery import Nursery, NurseryEnded
from ssmperf.engine.processes.spares import Spares, imports_for, likely_devices

CHATTY = "tests_spare_chatty"


@pytest.fixture
def few_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / f"{CHATTY}.py").write_text("print('imported', flush=True)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(spares, "IMPORTS", (CHATTY,))
    monkeypatch.setattr(spares, "IMPORTS_CUDA", ("json",))


def test_what_no_lane_takes_ends_with_the_block(few_imports: None) -> None:
    with Spares(["cpu", "cuda:0", "cuda:1"]) as made:
        taken = made.take(imports_for("cuda:7"))
        left = [nursery for _, nursery in made._left]
        assert made.take(("something else",)) is None and len(left) == 2
    assert taken is not None and taken.alive and not any(each.alive for each in left)
    taken.close()


def test_the_output_of_a_spare_is_kept_where_its_run_wants_it(few_imports: None, tmp_path: Path) -> None:
    log = tmp_path / "nursery.log"
    log.write_text("before\n")
    with Spares(["cpu"]) as made:
        taken = made.take(imports_for("cpu"))
        assert taken is not None
        taken.wait_until_ready(60)
        taken.write_to(log)
        taken.close()
    assert log.read_text() == "before\nimported\n"
    with pytest.raises(NurseryEnded):
        taken.sweep()


def test_one_that_is_not_ready_is_ended_at_once() -> None:
    nursery = Nursery(["time:sleep_for_ever"])
    nursery.close()
    assert not nursery.alive


@pytest.mark.parametrize(
    ("device", "devices", "driver", "expected"),
    [
        ("auto", None, True, ["cuda"]),
        ("auto", None, False, ["cpu"]),
        ("cpu", None, True, ["cpu"]),
        ("cuda:3", None, False, ["cuda:3"]),
        ("auto", (0, 2), False, ["cuda:0", "cuda:2"]),
    ],
)
def test_devices_are_guessed_without_torch(
    device: str, devices: tuple[int, ...] | None, driver: bool, expected: list[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(spares, "DRIVER", tmp_path if driver else tmp_path / "absent")
    assert likely_devices(device, devices) == expected


FIRST = """
import sys
from ssmperf.engine.processes import spares

def start(self, devices):
    sys.exit(f"started for {', '.join(devices)}; torch: {'torch' in sys.modules}")

spares.Spares.__init__ = start
from ssmperf.shell.cli import main
sys.argv = ["ssmperf", "run", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("devices", [["cpu"], ["cuda:0", "cuda:1"]])
def test_a_run_starts_them_before_it_imports_torch(devices: list[str]) -> None:
    words = ["--devices", "0,1"] if len(devices) > 1 else ["--device", "cpu"]
    ran = subprocess.run(
        [sys.executable, "-c", FIRST, "--suite", "throughput", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stderr.strip() == f"started for {', '.join(devices)}; torch: False"


def test_a_run_with_plug_ins_starts_none_before_they_are_asked(tmp_path: Path) -> None:
    """Their child would inherit the nursery's socket."""
    (tmp_path / "own.py").touch()
    words = ["--suite", "throughput", "--plugin", str(tmp_path / "own.py")]
    ran = subprocess.run([sys.executable, "-c", FIRST, *words], capture_output=True, text=True, check=False)
    assert ran.stderr.strip() == "started for ; torch: False"
