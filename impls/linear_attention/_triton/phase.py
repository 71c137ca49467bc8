"""The gradient of phases that were rotated into the operands."""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from torch.nn import functional


def phase_gradient(
    q: Tensor, k: Tensor, dq: Tensor, dk: Tensor, states: Tensor, last: Tensor, adjoints: Tensor, chunk: int
) -> Tensor:
    """Gradient (B, T, H, K/2) of the phases rotated into q = [Re, -Im] and k = [Re, Im].

    Like a log gate's: the turns of q and k from a step to its chunk's end, plus that of the state there.
    """
    B, T, H, K = q.shape
    chunks, half = triton.cdiv(T, chunk), K // 2
    (q_re, q_im), (k_re, k_im) = q.float().chunk(2, -1), k.float().chunk(2, -1)
    (dq_re, dq_im), (dk_re, dk_im) = dq.chunk(2, -1), dk.chunk(2, -1)
    turns = dq_re * q_im - dq_im * q_re + dk_re * k_im - dk_im * k_re
    turns = functional.pad(turns, (0, 0, 0, 0, 0, chunks * chunk - T))
    turns = turns.view(B, chunks, chunk, H, half).flip(2).cumsum(2).flip(2)

    def turned(state: Tensor, adjoint: Tensor) -> Tensor:
        (re, im), (d_re, d_im) = state.float().chunk(2, -2), adjoint.float().chunk(2, -2)
        return (d_im * re - d_re * im).sum(-1)

    edges = turned(states[:, 1:], adjoints[:, :-1])
    final = turned(last.flatten(0, 1).unsqueeze(1), adjoints[:, -1:])
    ends = torch.cat([edges, final], 1).view(B, H, chunks, half)
    turns = turns + ends.permute(0, 2, 1, 3).unsqueeze(2)
    return turns.reshape(B, -1, H, half)[:, :T]
