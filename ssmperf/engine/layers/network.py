"""A network of blocks for a model: embedding, blocks that know their depth, final norm and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ssmperf.engine import registry
from ssmperf.engine.layers.block import BackendLike, Block, State
from ssmperf.engine.layers.dropout import NumberedDropout
from ssmperf.engine.layers.model import Model
from ssmperf.errors import UsageError


class Network(nn.Module):
    """Tokens (B, T) to logits (B, T, classes): embedding, pre-norm blocks, norm and head.

    Each layer's model gets what it needs to know of its depth from `Model.depth_options`. The embedding
    starts normal with variance 1/width, so that logits of a tied head start near unit variance.
    Parameters are created under the caller's random seed, in float32, on the CPU.

    Args:
        name: the model.
        shape: its sizes.
        layers: number of blocks.
        vocabulary: number of tokens.
        classes: number of logits; the vocabulary if None.
        tied: whether the head's weights are the embedding's.
        final_norm: whether a norm of the blocks' kind comes before the head.
        dropout: share of the embedded tokens that is zeroed in training.
        std: of the first weights of the embedding and of all linear maps, less by √(2·layers) for those that
            end a mixing branch; None leaves them to the models.
        options: keyword options of every layer's model; they win over those of its depth.
        block_options: keyword options of every block.

    Raises:
        UnknownName: no such model.
        UsageError: the sizes do not fit, or a tied head with another number of classes.
    """

    def __init__(
        self,
        name: str,
        shape: Mapping[str, int],
        *,
        layers: int,
        vocabulary: int,
        classes: int | None = None,
        tied: bool = False,
        final_norm: bool = True,
        dropout: float = 0.0,
        std: float | None = None,
        options: Mapping[str, Any] | None = None,
        block_options: Mapping[str, Any] | None = None,
    ) -> None:
        if layers < 1:
            raise UsageError(f"a network has at least one layer, got {layers}")
        if tied and classes not in (None, vocabulary):
            raise UsageError(f"a tied head has a logit per token: {vocabulary}, not {classes}")
        super().__init__()
        model: type[Model] = registry.model(name).cls
        blocks: list[Block] = []
        options = options or {}
        for by_depth in model.depth_options(shape, layers, options):
            mixer = model(shape, **{**by_depth, **options})
            mixer.output_width = blocks[0].mixer.output_width if blocks else None
            blocks.append(mixer.block(mixer, **(block_options or {})))
        width = blocks[0].width
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.blocks = nn.ModuleList(blocks)
        self.norm = type(blocks[0]).norm_type(width) if final_norm else nn.Identity()
        self.head = nn.Linear(width, vocabulary if classes is None else classes, bias=False)
        self.dropout = NumberedDropout(dropout)
        if std is not None:
            self._draw_weights(std, layers)
        if tied:
            self.head.weight = self.embedding.weight

    def _draw_weights(self, std: float, layers: int) -> None:
        """Draw the weights of the embedding and of linear maps; biases stay."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
        for block in cast("list[Block]", self.blocks):
            nn.init.normal_(block.output.weight, std=std / (2 * layers) ** 0.5)

    def forward(
        self,
        tokens: Tensor,
        *,
        backend: BackendLike = "sequential",
        states: Sequence[State | None] | None = None,
    ) -> tuple[Tensor, tuple[State | None, ...]]:
        """Logits (B, T, classes) and every block's state after the tokens, from the states before them.

        A block whose recurrence has no state gives None; see `Block.forward`.

        Raises:
            UnknownName: the model has no such backend.
            Unsupported: the backend refuses, or a state is given to a recurrence without one.
        """
        hidden, after = self.hidden(tokens, backend=backend, states=states)
        logits: Tensor = self.head(hidden)
        return logits, after

    def hidden(
        self,
        tokens: Tensor,
        *,
        backend: BackendLike = "sequential",
        states: Sequence[State | None] | None = None,
    ) -> tuple[Tensor, tuple[State | None, ...]]:
        """Like `forward`, but the input of the head (B, T, width) instead of the logits.

        Where few steps are scored, `head` of those alone saves most of the time of a large vocabulary.
        """
        x = self.dropout(self.embedding(tokens))
        after, first = [], None
        before = [None] * len(self.blocks) if states is None else states
        for block, state in zip(cast("list[Block]", self.blocks), before, strict=True):
            x, first, state = block.in_network(x, first, backend=backend, state=state)
            after.append(state)
        normed: Tensor = self.norm(x)
        return normed, tuple(after)


def count_parameters(name: str, shape: Mapping[str, int], **network: Any) -> int:
    """Count the parameters of a `Network`, each shared one once, without allocating them.

    network: the keyword arguments of `Network`.
    """
    with torch.device("meta"):
        parameters = list(Network(name, shape, **network).parameters())
    return sum(parameter.numel() for parameter in parameters)
