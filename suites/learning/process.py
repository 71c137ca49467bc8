"""The process of one training, of several that run side by side: `python -m ... JOB LOG`.

JOB is the JSON object that `trials` makes; the result is the checkpoint that it names. An exit code of 1
means that the last line of the output says why there is none. A training that diverges has ended: its
checkpoint says so.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import torch

from ssmperf import registry

from .training import Diverged, Job, train


def main(text: str) -> None:
    """Carry out a training."""
    asked = json.loads(text)
    for file in asked["plugins"]:
        registry.load_plugin(file)
    torch.set_num_threads(asked["threads"])
    job = Job(**asked["job"])
    if job.device.startswith("cuda"):
        torch.cuda.set_device(job.device)
    with contextlib.suppress(Diverged):
        train(job, checkpoint=Path(asked["checkpoint"]))


if __name__ == "__main__":
    main(sys.argv[1])
