"""Online calibration of reach: a logistic model of whether a draft token is accepted, given that it is reached.

Each draft token has one feature of each group (see `_suffix_tree_kernels.GROUP_SIZES`); the logistic function of the
sum of their weights is its chance. Every known outcome moves the weights, so the estimate follows the workload; the
weights start from a prior that was fitted to public traces (`benchmarks/fit_prior.py`).
"""

import numpy as np
from numpy.typing import NDArray

from drafters import _suffix_tree_kernels as kernels
from drafters._prior import WEIGHTS

PRIOR: NDArray[np.float64] = np.zeros(kernels.NUM_FEATURES)
PRIOR[: kernels.OFFSETS[kernels.NUM_FITTED]] = [weight for group in WEIGHTS for weight in group]


class Calibration:
    """The model: row 0 the weights, row 1 the Fisher information each has seen; shape (2, NUM_FEATURES)."""

    def __init__(self) -> None:
        """Start from the prior."""
        self.model: NDArray[np.float64] = np.empty((2, kernels.NUM_FEATURES))
        self.clear()

    def clear(self) -> None:
        """Forget every outcome."""
        self.model[0] = PRIOR
        self.model[1] = kernels.FIRST_EVIDENCE
