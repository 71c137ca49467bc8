"""A task that networks learn: count the ones of a row, modulo a number.

    ssmperf run --suite extrapolation --plugin examples/task.py --regime task/parity:modulus=3 --models mingru

The table says how often a trained network is right at the length of its training and beyond.
"""

import torch

from ssmperf.authoring import Draw, Examples, Task, task


@task("parity")
def parity(*, modulus: int = 2) -> Task:
    """Count the ones so far.

    modulus: the number of classes.
    """

    def sample(draw: Draw) -> Examples:
        generator = torch.Generator().manual_seed(draw.seed % 2**63)
        tokens = torch.randint(2, (draw.rows, draw.T), generator=generator)
        reaches = torch.arange(1, draw.T + 1).expand(draw.rows, -1)
        return Examples(tokens, tokens.cumsum(1) % modulus, reaches)

    return Task(vocabulary=2, classes=modulus, sample=sample)
