"""Online calibration of reach: a logistic model of whether a draft token is accepted, given that it is reached.

Each draft token has one feature of each of a drafter's groups; the logistic function of the sum of their weights is its
chance. Every known outcome moves the weights, so the estimate follows the workload; the weights start from a prior,
which was fitted to public traces (`benchmarks/fit_prior.py`).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from drafters._reach_kernels import FIRST_EVIDENCE

_MOST_WEIGHT: Final = 30.0
_ELSEWHERE: Final = 100.0  # most information that outcomes of elsewhere are worth


class Calibration:
    """The model: row 0 the weights, row 1 the Fisher information each has seen; shape (2, features).

    Args:
        prior: weights to start from, group after group; features beyond them start from 0.
        num_features: of all groups together.

    """

    def __init__(self, prior: Sequence[Sequence[float]], num_features: int) -> None:
        """Start from the prior."""
        self.prior: NDArray[np.float64] = np.zeros(num_features)
        fitted = [weight for group in prior for weight in group]
        self.prior[: len(fitted)] = fitted
        self.num_fitted = len(fitted)
        self.model: NDArray[np.float64] = np.empty((2, num_features))
        self.clear()

    def clear(self) -> None:
        """Forget every outcome."""
        self.model[0] = self.prior
        self.model[1] = FIRST_EVIDENCE

    @property
    def least(self) -> float:
        """Sum of the information in `export` before any outcome."""
        return FIRST_EVIDENCE * self.num_fitted

    def export(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Copy weights and information of the features that have a prior: those that mean the same everywhere."""
        weights, information = self.model[:, : self.num_fitted]
        return weights.copy(), information.copy()

    def start_from(self, weights: NDArray[np.float64], information: NDArray[np.float64]) -> None:
        """Start from what was learnt elsewhere, with part of the trust in it.

        Raises:
            ValueError: it is not as `export` made it; nothing is changed.

        """
        shape = (self.num_fitted,)
        if weights.shape != shape or information.shape != shape:
            raise ValueError("weights of another model of reach")
        if not (np.abs(weights) <= _MOST_WEIGHT).all() or not np.isfinite(information).all():
            raise ValueError("weights that are no numbers, or too large")
        self.model[0, : self.num_fitted] = weights
        self.model[1, : self.num_fitted] = np.clip(information, FIRST_EVIDENCE, _ELSEWHERE)
