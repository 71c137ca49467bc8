"""The dot products of timed calls' results with secret vectors.

A call's vectors are drawn when its result has been copied: while the backend ran, they did not exist, so that
no search of its process's memory could have found them. Signs are enough, and two short vectors of them make
a long one (`Projection`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssmperf.engine.measure.answers import Projection, norm
from ssmperf.engine.operands.variation import MOST_SEED

Weights = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sum:
    """The dot products of a call's result, by tensor.

    seed: of the call's vectors. expected: what the bases say of the products; None for a mixture. alike: of a
    mixture, the products with vectors that are the same for all calls.
    """

    seed: int
    products: list[Tensor]
    expected: list[Tensor] | None
    alike: list[Tensor] | None


class Sums:
    """The products of a pass's timed calls.

    tensors: the result of an untimed call, whose shapes and dtypes all calls must have.
    secret: where seeds come from.
    """

    def __init__(self, tensors: Sequence[Tensor], secret: random.Random) -> None:
        self.results = [torch.empty_like(each, device="meta") for each in tensors]
        self.secret = secret
        self.calls: list[Sum] = []
        self._alike = _vectors(tensors, self._seed())
        self._bases: list[list[Tensor]] = []
        self._norms: list[list[float]] = []

    @property
    def roundings(self) -> list[float]:
        """The rounding error of a product relative to the norm, by tensor."""
        return [each.rounding for each in self._alike]

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Tell whether tensors have the shapes and dtypes of the untimed call's."""
        return [(x.shape, x.dtype) for x in tensors] == [(x.shape, x.dtype) for x in self.results]

    def add_base(self, tensors: list[Tensor]) -> None:
        """Keep the result of a base: of the first, then of the second."""
        self._bases.append(tensors)
        self._norms.append([norm(each) for each in tensors])

    def scale(self, at: int, weights: Weights) -> float:
        """Compute the size of a tensor of a combination: that of its parts together."""
        first, second = self._norms
        return abs(weights[0]) * first[at] + abs(weights[1]) * second[at]

    def add(self, tensors: Sequence[Tensor], weights: Weights | None) -> None:
        """Draw vectors for a call, and multiply its result with them.

        tensors: the result, as copied. weights: of the bases in a combination; None for a mixture.
        """
        seed = self._seed()
        vectors = _vectors(tensors, seed)
        products = _products(vectors, tensors)
        if weights is None:
            self.calls.append(Sum(seed, products, None, _products(self._alike, tensors)))
            return
        one, other = (_products(vectors, base) for base in self._bases)
        expected = [weights[0] * a + weights[1] * b for a, b in zip(one, other, strict=True)]
        self.calls.append(Sum(seed, products, expected, None))

    def products(self) -> list[list[float]]:
        """List the products of all calls, by call and tensor."""
        return _numbers([each.products for each in self.calls])

    def expected(self) -> dict[int, list[float]]:
        """List what the products of combinations must be, by the number of the call."""
        combined = {at: each.expected for at, each in enumerate(self.calls) if each.expected is not None}
        return dict(zip(combined, _numbers(list(combined.values())), strict=True))

    def alike(self) -> dict[int, tuple[float, ...]]:
        """List the products of mixtures with the same vectors, by the number of the call."""
        mixed = {at: each.alike for at, each in enumerate(self.calls) if each.alike is not None}
        return dict(zip(mixed, map(tuple, _numbers(list(mixed.values()))), strict=True))

    def again(self, at: int, tensors: Sequence[Tensor]) -> list[float]:
        """Multiply another result with the vectors of a call."""
        return [float(each) for each in _products(_vectors(tensors, self.calls[at].seed), tensors)]

    def _seed(self) -> int:
        return self.secret.randrange(MOST_SEED)


def _vectors(tensors: Sequence[Tensor], seed: int) -> list[Projection]:
    """Draw vectors for tensors, on their device."""
    generator = torch.Generator(tensors[0].device).manual_seed(seed)
    return [Projection(each, generator) for each in tensors]


def _products(vectors: Sequence[Projection], tensors: Sequence[Tensor]) -> list[Tensor]:
    return [project(each) for project, each in zip(vectors, tensors, strict=True)]


def _numbers(products: Sequence[Sequence[Tensor]]) -> list[list[float]]:
    """Fetch the products of several calls together."""
    if not products:
        return []
    rows = torch.stack([torch.stack([each.double() for each in of_call]) for of_call in products])
    return [[float(each) for each in row] for row in rows.tolist()]
