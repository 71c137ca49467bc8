"""Verbs of the command line that have a file of their own, since `ssmperf/cli.py` would be too long."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ssmperf.terminal.options import Debug, Json, Time


def calibrate(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    rounds: Annotated[int, typer.Option(help="Number of rounds, each in fresh processes.")] = 10,
    models: Annotated[str | None, typer.Option(help="Models, separated by commas.")] = None,
    backends: Annotated[str | None, typer.Option(help="Backends, separated by commas.")] = None,
    preset: Annotated[str | None, typer.Option(help="smoke, standard or long.")] = None,
    axis: Annotated[list[str] | None, typer.Option(help="A dimension's sizes: T=1024,4096.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Dtypes: float64, float32, bfloat16, float16.")] = None,
    time: Time = None,
    out: Annotated[Path | None, typer.Option(help="The rounds' folder. Default: in runs/.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure how much equal processes differ on this machine, and keep it for `check` and `compare`.

    Without models, backends and axis, a few cases of each kind are chosen.
    """
    from ssmperf.terminal import calibration, display
    from ssmperf.versions import calibrate as work

    done = work.calibrate(
        rounds=rounds,
        device=device,
        models=models,
        backends=backends,
        preset=preset,
        axis=axis or (),
        dtype=dtype,
        time=time,
        out=out,
        argv=sys.argv[1:],
        progress=display.progress(),
    )
    typer.echo(json.dumps(calibration.as_json(done), indent=2) if as_json else calibration.as_text(done))
