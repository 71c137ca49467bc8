"""Chunks of queries, each against all keys up to its end, and computed again in the backward pass.

So only the weights of one chunk are ever held, and memory is linear in T. After Rabe and Staats,
Self-attention does not need O(n²) memory (2021), without the second loop over keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from .common import Operands, as_backend, biases, sums_after

CHUNK = 64


def _attend(q: Tensor, keys: Tensor, values: Tensor, log_f: Tensor | None, log_past: Tensor | None) -> Tensor:
    """Attend from the last queries (B, H, C, K) to all keys (B, H, N, K), under the gates of all steps.

    log_f: (B, H, N − S) or None. log_past: (B, H, S), None if S is 0 or there is no gate.
    """
    C, N = q.shape[2], keys.shape[2]
    if log_f is None:
        bias = torch.full((C, N), -math.inf, dtype=q.dtype, device=q.device).triu(N - C + 1)
    else:
        before, own = log_f.split([log_f.shape[-1] - C, C], dim=-1)
        if log_past is not None:
            log_past = log_past + before.sum(-1, keepdim=True)
        if before.shape[-1]:
            since = sums_after(before)
            log_past = since if log_past is None else torch.cat([log_past, since], dim=-1)
        bias = biases(own, log_past)
    return torch.softmax(q @ keys.mT + bias, dim=-1) @ values


class Chunked(torch.autograd.Function):
    """`_attend` chunk by chunk, of which only the operands are kept."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, keys: Tensor, values: Tensor, log_f: Tensor | None, log_past: Tensor | None
    ) -> Tensor:
        operands = (q, keys, values, log_f, log_past)
        ctx.save_for_backward(*operands)
        return torch.cat([_attend(*_parts(operands, chunk)) for chunk in _chunks(q.shape[2])], dim=2)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        operands, again = ctx.saved_tensors, torch.is_grad_enabled()
        gradients = [None if each is None else torch.zeros_like(each) for each in operands]
        for chunk in _chunks(grad_output.shape[2]):
            leaves: list[Any] = [None if part is None else _leaf(part) for part in _parts(operands, chunk)]
            with torch.enable_grad():
                output = _attend(*leaves)
            given = [leaf for leaf in leaves if leaf is not None]
            found = iter(torch.autograd.grad(output, given, grad_output[:, :, chunk], create_graph=again))
            for into in _parts(gradients, chunk):
                if into is not None:
                    into += next(found)
        return tuple(gradients)


def _leaf(part: Tensor) -> Tensor:
    """View a part of an operand apart from all others; with its graph where gradients are differentiated."""
    if torch.is_grad_enabled() and part.requires_grad:
        return part.view_as(part)
    return part.detach().requires_grad_()


def _chunks(T: int) -> Iterator[slice]:
    """Cut T queries into chunks."""
    return (slice(start, min(start + CHUNK, T)) for start in range(0, T, CHUNK))


def _parts(operands: Any, chunk: slice) -> tuple[Any, ...]:
    """View the operands of a chunk: its queries, and what is before its end."""
    q, keys, values, log_f, log_past = operands
    end = keys.shape[2] - q.shape[2] + chunk.stop
    gates = None if log_f is None else log_f[..., : chunk.stop]
    return q[:, :, chunk], keys[:, :, :end], values[:, :, :end], gates, log_past


def launches(shape: Shape) -> float:
    """About fifteen per chunk."""
    return 15 + 15 * math.ceil(shape["T"] / CHUNK)


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The scores, weights and biases of one chunk, and operands and output in working precision."""
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")
    keys = T + shape.get("S", 0)
    scores = (3 if gate_kind == "none" else 6) * CHUNK * keys
    return B * H * (scores + keys * (2 * K + 2 * V + 2) + T * (K + 2 * V)) * max(4, itemsize)


def saved(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The operands in working precision."""
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")
    return B * T * H * (2 * K + V + 2) * max(4, itemsize)


@backend("softmax_attention", name="chunkwise", launches=launches, workspace=workspace, saved=saved)
@as_backend
def chunkwise(x: Operands) -> Tensor:
    """Matrix products of 64 queries with all keys up to the last of them, memory linear in T."""
    output: Tensor = Chunked.apply(x.q, x.keys, x.values, x.log_f, x.log_past)  # type: ignore[no-untyped-call]
    return output
