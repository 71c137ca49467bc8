"""Runs the command line in the tests' own process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ssmperf.shell import cli

Call = Callable[..., tuple[int, str, str]]


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Make a function that runs the command and returns its exit code, stdout and stderr."""

    def run_main(*args: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ssmperf", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run_main
