"""Online calibration of reach: a logistic model of whether a draft token is accepted, given that it is reached.

Each draft token has one feature of each of a drafter's groups; the logistic function of the sum of their weights is its
chance. Every known outcome moves the weights, so the estimate follows the workload; the weights start from a prior,
which was fitted to public traces (`benchmarks/fit_prior.py`).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from drafters._reach_kernels import FIRST_EVIDENCE


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
        self.model: NDArray[np.float64] = np.empty((2, num_features))
        self.clear()

    def clear(self) -> None:
        """Forget every outcome."""
        self.model[0] = self.prior
        self.model[1] = FIRST_EVIDENCE
