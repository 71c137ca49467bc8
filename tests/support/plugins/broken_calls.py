"""A plug-in of backends that are right for plain calls, and wrong for one form of a call.

Two of each kind that public reports describe; test_calls.py says how each must be called wrong.
Each computes by the definition, so that only the planted fault can be flagged.
"""

from __future__ import annotations

import torch

import ssmperf
from ssmperf.suitekit import registry

scan = registry.recurrence("scan").definition
attention = registry.recurrence("linear_attention").definition
delta_rule = registry.recurrence("delta_rule").definition
selective_scan = registry.recurrence("selective_scan").definition


def broken(of, name, **declarations):
    return ssmperf.backend(of, name=f"broken_{name}", dtypes=("float32",), **declarations)


def key_heads(change):
    """Read key heads in another order where heads share them."""

    def call(q, k, v, *operands, **options):
        H, G = v.shape[2], k.shape[2]
        if G != H:
            heads = change(torch.arange(H), H, G)
            q, k = q[:, :, heads], k[:, :, heads]
        return q, k, v

    return call


modulo = key_heads(lambda h, H, G: h % G)
backwards = key_heads(lambda h, H, G: (G - 1) - h * G // H)


@broken("linear_attention", "heads_modulo", gates=("key", "scalar", "none"))
def heads_modulo(q, k, v, log_a=None, log_b=None, initial_state=None, **options):
    q, k, v = modulo(q, k, v)
    return attention(q, k, v, log_a, log_b, initial_state, **options)


@broken("delta_rule", "heads_backwards", gates=("scalar",))
def heads_backwards(q, k, v, beta, log_a=None, initial_state=None, **options):
    q, k, v = backwards(q, k, v)
    return delta_rule(q, k, v, beta, log_a, initial_state, **options)


@broken("linear_attention", "leaks", gates=("key", "scalar"))
def leaks(q, k, v, log_a=None, log_b=None, initial_state=None, *, cu_seqlens=None, **options):
    """The state goes on into the next sequence."""
    if cu_seqlens is None:
        return attention(q, k, v, log_a, log_b, initial_state, **options)
    own = attention(q, k, v, log_a, log_b, initial_state, cu_seqlens=cu_seqlens, **options)
    first = None if initial_state is None else initial_state[:1]
    return attention(q, k, v, log_a, log_b, first, **options)[0], own[1]


@broken("delta_rule", "forgets_empty", gates=("scalar",))
def forgets_empty(q, k, v, beta, log_a=None, initial_state=None, *, cu_seqlens=None, **options):
    """An empty sequence loses its state."""
    output, state = delta_rule(q, k, v, beta, log_a, initial_state, cu_seqlens=cu_seqlens, **options)
    if cu_seqlens is not None:
        state = state * (cu_seqlens.diff() > 0).view(-1, 1, 1, 1)
    return output, state


@broken("selective_scan", "loses_skip", gates=("exp",))
def loses_skip(*operands, skip=None, **options):
    return selective_scan(*operands, skip=None if skip is None else skip.detach(), **options)


@broken("linear_attention", "loses_bonus", gates=("key",))
def loses_bonus(*operands, bonus=None, **options):
    return attention(*operands, bonus=None if bonus is None else bonus.detach(), **options)


def memory_of(x):
    """Read a tensor's memory as if it were contiguous, as a kernel does that is given its address."""
    flat = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return flat[(torch.arange(x.numel()) + x.storage_offset()) % flat.numel()].reshape(x.shape)


class FromMemory(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return memory_of(gradient)


@broken("scan", "output_memory", gates=("data",))
def output_memory(*operands, **options):
    output, state = scan(*operands, **options)
    return FromMemory.apply(output), state


@broken("linear_attention", "state_memory", gates=("key",))
def state_memory(*operands, **options):
    output, state = attention(*operands, **options)
    return output, FromMemory.apply(state)


class Both(torch.autograd.Function):
    """Passes two results on; their gradients arrive only if both do."""

    @staticmethod
    def forward(ctx, output, state):
        ctx.set_materialize_grads(False)
        return output.clone(), state.clone()

    @staticmethod
    def backward(ctx, output, state):
        return (None, None) if output is None else (output, state)


@broken("scan", "state_alone", gates=("data",))
def state_alone(*operands, **options):
    return Both.apply(*scan(*operands, **options))


class Weighed(torch.autograd.Function):
    """Passes two operands on; the gradient of the second is right only if that of the first is wanted."""

    @staticmethod
    def forward(ctx, one, other):
        ctx.both = ctx.needs_input_grad[0]
        return one.clone(), other.clone()

    @staticmethod
    def backward(ctx, one, other):
        return one, other if ctx.both else 2 * other


@broken("linear_attention", "frozen_operand", gates=("key",))
def frozen_operand(q, k, v, *operands, **options):
    return attention(*Weighed.apply(q, k), v, *operands, **options)


@broken("scan", "operand_alone", gates=("data",))
def operand_alone(log_a, b, initial_state=None, *, phase=None):
    log_a, b = Weighed.apply(log_a, b)
    return scan(log_a, b, initial_state, phase=phase)


called = set()


def first(name):
    before = name in called
    called.add(name)
    return not before


@broken("scan", "first_adds", gates=("data",))
def first_adds(*operands, **options):
    """As an autotuner does that runs candidates on one output."""
    output, state = scan(*operands, **options)
    return (2 * output if first("adds") else output), state


@broken("linear_attention", "first_changes", gates=("key",))
def first_changes(q, k, v, *operands, **options):
    result = attention(q, k, v, *operands, **options)
    if first("changes"):
        with torch.no_grad():
            q.mul_(2)
    return result


class ByHand(torch.autograd.Function):
    """A definition with a backward pass of its own, whose gradients depend on no operand for autograd."""

    @staticmethod
    def forward(ctx, definition, *operands):
        ctx.definition = definition
        ctx.save_for_backward(*operands)
        return definition(*operands)

    @staticmethod
    def backward(ctx, *gradients):
        leaves = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            results = ctx.definition(*leaves)
        found = torch.autograd.grad(results, leaves, [each.detach() for each in gradients])
        return None, *(each.detach() for each in found)


class Once(ByHand):
    """The same, marked: torch refuses only what is not linear in the results."""

    backward = staticmethod(torch.autograd.function.once_differentiable(ByHand.backward))


@broken("scan", "once", gates=("data",))
def once(log_a, b, initial_state=None, *, phase=None):
    if initial_state is None:
        return scan(log_a, b)
    return Once.apply(scan, log_a, b, initial_state)


@broken("delta_rule", "detached", gates=("scalar",))
def detached(q, k, v, beta, log_a=None, initial_state=None, **options):
    if initial_state is None or options:
        return delta_rule(q, k, v, beta, log_a, initial_state, **options)
    return ByHand.apply(delta_rule, q, k, v, beta, log_a, initial_state)


@broken("scan", "half_state", gates=("data",))
def half_state(*operands, **options):
    output, state = scan(*operands, **options)
    return output, state.bfloat16() if torch.is_autocast_enabled("cpu") else state


@broken("linear_attention", "no_autocast", gates=("key",))
def no_autocast(q, k, *operands, **options):
    scores = torch.einsum("bthk,bthk->bth", q, k)
    if scores.dtype != q.dtype:
        raise TypeError(f"expected scalar type Float but found {scores.dtype}")
    return attention(q, k, *operands, **options)


@broken("scan", "state_in_place", gates=("data",))
def state_in_place(log_a, b, initial_state=None, *, phase=None):
    output, state = scan(log_a, b, initial_state, phase=phase)
    if initial_state is not None:
        with torch.no_grad():
            initial_state.copy_(state)
    return output, state


@broken("delta_rule", "key_in_place", gates=("scalar",))
def key_in_place(q, k, v, beta, *operands, **options):
    result = delta_rule(q, k, v, beta, *operands, **options)
    with torch.no_grad():
        k.div_(2)
    return result


@broken("scan", "turns_back", gates=("data",))
def turns_back(log_a, b, initial_state=None, *, phase=None):
    return scan(log_a, b.conj() if b.is_complex() else b, initial_state, phase=phase)
