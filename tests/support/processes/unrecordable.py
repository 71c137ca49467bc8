"""Trains, in a process of its own, a network that waits for the device while it is captured, and only then.

The driver breaks such a capture off, which could spoil its process. The output is a JSON object.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from ssmperf.authoring import Network
from ssmperf.papers.learn.training import train
from ssmperf.suitekit import Job, sized


def main() -> None:
    """Train twice, then use the allocator."""
    job = Job(
        "gla",
        {**sized("gla", 64), "B": 8, "T": 32},
        "chunkwise",
        "mqar:vocabulary=32",
        rate=1e-3,
        seed=0,
        updates=12,
        device="cuda",
    )
    plain = Network.hidden
    tried = 0

    def hidden(self: Network, *given: Any, **options: Any) -> Any:
        nonlocal tried
        if torch.cuda.is_current_stream_capturing():
            tried += 1
            torch.cuda.synchronize()
        return plain(self, *given, **options)

    Network.hidden = hidden  # type: ignore[method-assign]
    found = [train(job) for _ in range(2)]
    torch.cuda.empty_cache()
    memory = torch.zeros(1 << 20, device="cuda").sum().item()
    print(
        json.dumps(
            {
                "tried": tried,
                "memory": memory,
                "reasons": [each.without_graph for each in found],
                "losses": [each.every_loss for each in found],
            }
        )
    )


if __name__ == "__main__":
    main()
