"""The spread between runs, from the differences of neighbours, and random orders of the runs.

The interval of a run does not cover what changes from run to run, so it is not used. The difference of two
neighbouring runs has twice the variance of one run, except where something has changed in between, so
differences that stand out are cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ssmperf.engine.measure.paired import common_variance

CONFIDENCE_REACH = 2.58  # standard errors from a value to the ends of its interval at 99 %
ORDERS = 999  # random orders of the runs
LEAST_SPREAD = 1e-3  # of a run, in logs: no machine repeats a time better
_SEED = 0
_MAD = 1.4826  # from a median absolute deviation to the standard deviation of normal noise
_CUT = 2.5  # differences beyond this many standard deviations count as if they were there
_LEFT = 0.966  # share of normal noise's variance that is left by the cut
_DEGREES = 0.64  # degrees of freedom of the variance, per difference, in simulations with normal noise

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]


class Shuffles:
    """Random orders of all runs, by which every case is reordered in the same way.

    If nothing has changed, any order of the runs was as likely as the true one, and cases that vary together
    still do so after both are reordered. The orders are the same in every process.
    """

    def __init__(self, runs: int, orders: int = ORDERS) -> None:
        self._keys = np.random.default_rng(_SEED).random((orders, runs))
        self._known: dict[bytes, IntArray] = {}

    def orders(self, runs: IntArray) -> IntArray:
        """Give the orders of some of the runs, (1 + orders, len(runs)). The first is the true one."""
        key = runs.tobytes()
        if key not in self._known:
            shuffled = np.argsort(self._keys[:, runs], axis=1)
            self._known[key] = np.vstack([np.arange(len(runs)), shuffled])
        return self._known[key]


@dataclass(frozen=True, slots=True)
class SharedNoise:
    """The part of the variances between runs that the cases of a history share.

    variance: the common one. degrees: how many degrees of freedom it counts for in each case.
    """

    variance: float
    degrees: float

    @classmethod
    def of(cls, differences: Sequence[Array]) -> SharedNoise:
        """Estimate it from the differences of neighbouring runs of each case.

        The more the variances of cases differ beyond their own scatter, the less is common (Smyth 2004).
        """
        known = [each for each in differences if len(each) > 1]
        if len(known) < 2:
            return cls(0.0, 0.0)
        degrees = _DEGREES * float(np.median([len(each) for each in known]))
        return cls(*common_variance(np.array([float(_variances(each)) for each in known]), degrees))

    def spreads(self, differences: Array) -> Array:
        """Compute standard deviations of single runs from rows of differences, (..., m) to (...)."""
        own = _DEGREES * differences.shape[-1]
        total = self.degrees * self.variance + own * _variances(differences)
        spreads = np.sqrt(total / (self.degrees + own))
        return np.asarray(np.maximum(spreads, LEAST_SPREAD), dtype=np.float64)


def _variances(differences: Array) -> Array:
    """Compute variances of single runs from rows of differences, (..., m) to (...)."""
    sizes = np.abs(differences)
    cut = _CUT * _MAD * np.median(sizes, axis=-1)
    squares = np.minimum(sizes, cut[..., None]) ** 2
    return np.asarray(squares.mean(axis=-1) / (2 * _LEFT), dtype=np.float64)
