"""Online calibration: which share of draft tokens like this one did the target accept?

Each draft token falls into a cell (see `_suffix_tree_kernels._cell`). A cell's hazard, its conditional
acceptance probability, is its accepted share shrunk towards that of the coarser cell it belongs to, which in
turn is shrunk towards a prior; old outcomes fade, so the estimate follows the workload.
"""

import numpy as np
from numpy.typing import NDArray

from drafters import _suffix_tree_kernels as kernels

_SHAPE = (kernels.NUM_LENGTHS, kernels.NUM_SHARES, kernels.NUM_POSITIONS, kernels.NUM_LUCKS)
_COARSE_STRENGTH = 12.0  # how many outcomes the coarse estimate is worth in a fine cell
_PRIOR_STRENGTH = 8.0
_MEMORY = 4000.0  # outcomes a cell remembers before the old ones fade


class Calibration:
    """Accepted and offered counts per cell, and the hazards that follow from them."""

    def __init__(self) -> None:
        """Start from the prior alone."""
        self.hits: NDArray[np.float64] = np.zeros(kernels.NUM_CELLS)
        self.trials: NDArray[np.float64] = np.zeros(kernels.NUM_CELLS)
        length = np.arange(kernels.NUM_LENGTHS)[:, None] / (kernels.NUM_LENGTHS - 1)
        share = np.append(kernels.SHARE_EDGES, 1.0)[None, :]
        self._prior = np.clip(share * (0.25 + 0.7 * np.sqrt(length)), 0.02, 0.98)[:, :, None, None]
        self.hazard: NDArray[np.float64] = np.empty(kernels.NUM_CELLS)
        self.refresh()

    def refresh(self) -> None:
        """Recompute `hazard` from the counts and let crowded cells forget."""
        crowded = self.trials > _MEMORY
        if crowded.any():
            self.hits[crowded] *= 0.5
            self.trials[crowded] *= 0.5
        hits, trials = self.hits.reshape(_SHAPE), self.trials.reshape(_SHAPE)
        coarse_hits = hits.sum(axis=(2, 3), keepdims=True)
        coarse_trials = trials.sum(axis=(2, 3), keepdims=True)
        coarse = (coarse_hits + _PRIOR_STRENGTH * self._prior) / (coarse_trials + _PRIOR_STRENGTH)
        fine = (hits + _COARSE_STRENGTH * coarse) / (trials + _COARSE_STRENGTH)
        self.hazard[:] = fine.reshape(-1)

    def clear(self) -> None:
        """Forget every outcome."""
        self.hits[:] = 0.0
        self.trials[:] = 0.0
        self.refresh()
