"""The base class of models: one mixing layer of a paper, lowered to a recurrence.

A model that passes on more than its recurrence's state, or calls the recurrence twice, overrides `forward`
and packs all that it passes on into one tensor, so that blocks and networks need not know.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ssmperf.engine import registry
from ssmperf.engine.layers.block import BackendLike, Block, build_block
from ssmperf.engine.layers.outline import Outline
from ssmperf.errors import Unsupported, UsageError

GATE_PRECISION = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


class Model(nn.Module):
    """One mixing layer, x (B, T, width) -> y (B, T, ·).

    A subclass builds its projections in `__init__(self, shape)` (calling `super().__init__(shape)`
    first) from the sizes of `shape`, and provides `operands`, `readout` and `definition`. `block` is the
    paper's layer around the model; the default is a residual pre-norm layer with an output projection.
    Parameters are created under the caller's random seed, in float32, on the CPU.
    """

    name: ClassVar[str]
    depends_on_length: ClassVar[bool] = False  # whether operands depend on T, so that a prefix gives other y
    # whether it projects to G key heads where the shape has G; else the engine picks G of the H heads
    projects_key_heads: ClassVar[bool] = False
    steps_per_token: int = 1  # steps of the recurrence for each token, which come one after another
    block: ClassVar[type[Block]] = Block
    # where the formula of its log gates has a least value: that, of gates that never reach it nor 0
    least_log_gate: float | None = None
    input_width: int | None = None  # of x, where it is not that of the shape
    output_width: int | None = None  # of y, once it is known

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__()
        self.shape = dict(shape)

    @property
    def width(self) -> int:
        """Width of the input x: C or D for models with one state per channel, H·V for matrix states.

        A model whose projections may have another width sets `input_width`.
        """
        if self.input_width is not None:
            return self.input_width
        for letter in ("C", "D"):
            if letter in self.shape:
                return self.shape[letter]
        return self.shape["H"] * self.shape["V"]

    @classmethod
    def shape_problem(cls, shape: Mapping[str, int], *, block: bool = False) -> str | None:
        """Say why the model cannot have a shape, as its constructor does by a UsageError; else None.

        block: whether the paper's layer around it must have that shape, too.
        """
        for without_memory in (Outline(), torch.device("meta")):
            problem = cls._refused(shape, block, without_memory)
            if problem is not None:
                return problem or None
        return None

    @classmethod
    def _refused(
        cls, shape: Mapping[str, int], block: bool, without_memory: AbstractContextManager[Any]
    ) -> str | None:
        """Build the model: its UsageError, "" if there is none, None if it cannot be built without memory."""
        with torch.random.fork_rng(devices=[]), without_memory, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # building the model in earnest shows them
            try:
                build_block(cls.name, shape) if block else cls(shape)
            except UsageError as error:
                return str(error)
            except Exception:  # of a constructor that looks at values, or computes with large tensors
                return None
        return ""

    @classmethod
    def depth_options(
        cls, shape: Mapping[str, int], layers: int, options: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """List the constructor options by which the layers of a network differ, first layer first.

        options: those that all its layers have. A model that depends on its depth overrides this. Parameters
        that the layers share are created here, once, and given to each of them.
        """
        return [{} for _ in range(layers)]

    @functools.cached_property
    def _has_state(self) -> bool:
        return registry.recurrence(registry.recurrence_of(self.name)).has_state

    def operands(self, x: Tensor) -> dict[str, Any]:
        """Compute the recurrence's operands by name, differentiable in x and the parameters.

        Gates are float32 or wider, whatever the dtype of x.
        """
        raise NotImplementedError(f"the model {self.name} does not define operands")

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        """Compute the layer's y from the recurrence's output (and from x, for output gates and skips)."""
        raise NotImplementedError(f"the model {self.name} does not define readout")

    def definition(self, x: Tensor) -> Tensor:
        """Compute y by the paper's equation, in a literal loop over time that uses nothing of ssmperf."""
        raise NotImplementedError(f"the model {self.name} does not define definition")

    def forward(
        self, x: Tensor, *, backend: BackendLike = "sequential", state: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute y and the final state with a backend, from an optional initial state.

        backend: a backend's name, or a function with the recurrence's signature.

        Raises:
            UnknownName: the model has no such backend.
            Unsupported: the backend refuses these operands, or there is a state and the recurrence has none.
        """
        output, final_state = self.compute(self.operands(x), backend, state)
        return self.readout(output, x), final_state

    def compute(
        self, operands: dict[str, Any], backend: BackendLike, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the recurrence's output and final state from operands; raises what `forward` raises."""
        compute = registry.backend(self.name, backend).function if isinstance(backend, str) else backend
        if self._has_state:
            operands = {**operands, "initial_state": state}
        elif state is not None:
            raise Unsupported(f"{self.name} lowers to a recurrence without a state: it cannot take one")
        output, final_state = compute(**operands)
        return output, final_state


def gate_precision(x: Tensor) -> Tensor:
    """Widen x to float32 if it has a half type, since gates are never computed in half precision."""
    return x.to(GATE_PRECISION.get(x.dtype, x.dtype))
