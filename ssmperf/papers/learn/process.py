"""The process of one training, of several that run side by side: `python -m ... JOB`.

JOB is the JSON object that `trials` makes; the result is the checkpoint that it names. The output has a line
per look at the losses. If the exit code is not 0, its last line says why there is no result; REFUSED means
that the backend refuses the operands. A training that diverges has ended: its checkpoint says so.
"""

from __future__ import annotations

import contextlib
import json
import sys
from functools import partial
from pathlib import Path

import torch

from ssmperf.engine import registry
from ssmperf.errors import Unsupported
from ssmperf.papers.learn.training import Diverged, Job, train

REFUSED = 3


def main(text: str) -> None:
    """Carry out a training."""
    asked = json.loads(text)
    for file in asked["plugins"]:
        registry.load_plugin(file)
    torch.set_num_threads(asked["threads"])
    job = Job(**asked["job"])
    if job.device.startswith("cuda"):
        torch.cuda.set_device(job.device)
    try:
        with contextlib.suppress(Diverged):
            train(job, checkpoint=Path(asked["checkpoint"]), on_step=partial(print, flush=True))
    except Unsupported as error:
        print(error, flush=True)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main(sys.argv[1])
