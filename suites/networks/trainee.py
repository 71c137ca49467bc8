"""A network that is trained: its parameters, its optimiser, and one step of its training."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf import Case
from ssmperf.authoring import BackendLike, Network
from ssmperf.suitekit import Answer, dtype_of, registry

from .cases import BYTES, block_options
from .text import Batch

RATE = 1e-3  # of learning
PROBED = 2  # steps of time that show which parameters take part


@dataclass
class Trainee:
    """A network in a case's dtype on its device, the batch that its steps read, and AdamW.

    Weights, gradients and the optimiser's moments have the case's dtype; there is no automatic casting. The
    loss is computed in float32 or wider.

    names: parameters that take part in the result, by place. initial: their values before any step.
    """

    network: Network
    backend: BackendLike
    batch: Batch
    optimizer: torch.optim.Optimizer
    names: tuple[str, ...]
    initial: tuple[Tensor, ...]

    @classmethod
    def of(cls, case: Case, backend: BackendLike, layers: int, batch: Batch) -> Trainee:
        """Build the network in its initial state: the same one for the same case, whatever the backend.

        batch: on the device; the trainee gets a copy.
        """
        assert case.model is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case.seed)
            network = Network(
                case.model,
                case.shape,
                layers=layers,
                vocabulary=BYTES,
                block_options=block_options(case.model, case.shape),
            )
        network.to(batch.tokens.device, dtype_of(case.dtype))
        definition = registry.recurrence(case.recurrence).definition
        names = _taking_part(network, definition, batch.head(1, min(PROBED, case.shape["T"])))
        parameters = dict(network.named_parameters())
        optimizer = torch.optim.AdamW(
            [parameters[name] for name in names], lr=RATE, capturable=batch.tokens.is_cuda
        )
        initial = tuple(parameters[name].detach().clone() for name in names)
        own = Batch(batch.tokens.clone(), batch.targets.clone())
        return cls(network, backend, own, optimizer, names, initial)

    @functools.cached_property
    def places(self) -> dict[str, str]:
        """Map every place of a parameter in a module to its name; a shared parameter has several places."""
        names = {id(parameter): name for name, parameter in self.network.named_parameters()}
        return {
            f"{path}.{own}" if path else own: names[id(parameter)]
            for path, module in self.network.named_modules()
            for own, parameter in module.named_parameters(recurse=False)
        }

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters that take part, in the order of their names."""
        found = dict(self.network.named_parameters())
        return tuple(found[name] for name in self.names)

    @property
    def gradients(self) -> tuple[Tensor | None, ...]:
        """Gradients of the parameters, as the last step has left them."""
        return tuple(parameter.grad for parameter in self.parameters)

    def forward(self) -> tuple[Tensor, Tensor]:
        """Compute the mean loss (nats per byte) of the batch with its graph, and the logits (B, T, 256)."""
        logits, _ = self.network(self.batch.tokens, backend=self.backend)
        return functional.cross_entropy(in_full(logits).flatten(0, 1), self.batch.targets.flatten()), logits

    def step(self) -> tuple[Tensor, Tensor]:
        """Train for one step: forward, loss, backward, update. Return the loss and the logits before it."""
        self.optimizer.zero_grad()
        loss, logits = self.forward()
        loss.backward()
        self.optimizer.step()
        return loss.detach(), logits.detach()

    def restore(self) -> None:
        """Write the initial parameters again. The optimiser keeps its state."""
        with torch.no_grad():
            for parameter, initial in zip(self.parameters, self.initial, strict=True):
                parameter.copy_(initial)

    def answer(self, logits: Tensor, gradients: Sequence[Tensor | None]) -> Answer:
        """Give the results of a step in the form in which they are judged."""
        named = dict(zip(self.names, gradients, strict=True))
        missing = [name for name, value in named.items() if value is None]
        found = {name: value for name, value in named.items() if value is not None}
        results = {"output": log_probabilities(logits), **({} if missing else found)}
        problem = f"no gradient reaches {', '.join(missing)}" if missing else None
        return Answer(results, gradient_problem=problem)


def in_full(logits: Tensor) -> Tensor:
    """Widen logits to float32 unless they are wider."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def log_probabilities(logits: Tensor) -> Tensor:
    """Compute the log-probabilities of all bytes, in the dtype of the logits."""
    return functional.log_softmax(in_full(logits), -1).to(logits.dtype)


def nbytes(tensors: Sequence[Any]) -> int:
    """Count the bytes of tensors, leaving out other values."""
    return sum(each.nbytes for each in tensors if isinstance(each, Tensor))


def _taking_part(network: Network, definition: BackendLike, batch: Batch) -> tuple[str, ...]:
    """Name the parameters that a gradient reaches, each shared one once."""
    named = dict(network.named_parameters())
    logits, _ = network(batch.tokens, backend=definition)
    found = torch.autograd.grad(logits.sum(), list(named.values()), allow_unused=True)
    return tuple(name for name, each in zip(named, found, strict=True) if each is not None)
