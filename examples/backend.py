"""A backend: the scan h_t = a_t ⊙ h_{t−1} + b_t as a loop in PyTorch. autograd differentiates it.

    ssmperf run --suite correctness,throughput --plugin examples/backend.py --backends my_loop --models hgrn

Its cases end as `ok`. With another gate in the loop they would end as `wrong`, and have no time.
"""

import torch

from ssmperf.authoring import Unsupported, backend


@backend("scan", name="my_loop", gates=("data", "const"))
def my_loop(log_a, b, initial_state=None, *, phase=None):
    """One step after another, for real gates."""
    if b.shape[1] > 65536:
        raise Unsupported("longer than 65536 steps")
    state = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    gates = log_a.exp().expand(b.shape)
    states = []
    for a_t, b_t in zip(gates.unbind(1), b.unbind(1), strict=True):
        state = a_t * state + b_t
        states.append(state.to(b.dtype))
    return torch.stack(states, dim=1), state
