"""Reach of a draft head's tokens, calibrated online: what its confidence was worth so far.

A head says how sure it is of each token, the probability that it gives its first choice. That number is no acceptance
rate. So the share that was accepted is counted by confidence and by position, each position only where it was reached.
"""

from __future__ import annotations

from math import exp
from typing import Final

import numpy as np
from numpy.typing import NDArray

_NUM_BINS: Final = 12  # of confidence, on a logistic scale
_WIDEST: Final = 3.0  # log odds of the outermost bins
_NUM_POSITIONS: Final = 3  # the first, the second, all later ones
_MEMORY: Final = 1500.0  # outcomes
_FIRST: Final = 0.55  # acceptance of a first token, until it is known
_LATER: Final = 0.85  # of a later one, relative to the one before
_STRENGTH: Final = 6.0  # outcomes that the prior is worth


class HeadReach:
    """Acceptance by confidence and by position, discounted.

    Args:
        max_n: longest draft.

    """

    def __init__(self, max_n: int) -> None:
        self.max_n = max_n
        self._accepted = np.zeros((_NUM_POSITIONS, _NUM_BINS))
        self._reached = np.zeros((_NUM_POSITIONS, _NUM_BINS))
        # Of each position whatever its confidence: what a draft that is yet to be made is worth.
        self._hits = np.zeros(max_n)
        self._tries = np.zeros(max_n)

    def reach(self, confidence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return P(first k+1 tokens are all accepted) for drafts with these confidences.

        Args:
            confidence: float64 (drafts, n), probabilities of the tokens in the head's own distribution, n <= max_n.

        """
        positions = np.minimum(np.arange(confidence.shape[1]), _NUM_POSITIONS - 1)
        bins = _bins(confidence)
        accepted, reached = self._accepted[positions, bins], self._reached[positions, bins]
        hazards = (accepted + _STRENGTH * confidence) / (reached + _STRENGTH)
        return np.asarray(np.cumprod(hazards, axis=1))

    def expected(self, n: int) -> NDArray[np.float64]:
        """Return the reach, float64 (n,), of a draft that is yet to be made."""
        hazards = np.empty(n)
        prior = _FIRST
        for k in range(n):
            hazards[k] = (self._hits[k] + _STRENGTH * prior) / (self._tries[k] + _STRENGTH)
            prior = _LATER * hazards[k]
        return np.asarray(np.cumprod(hazards))

    def update(
        self,
        confidence: NDArray[np.float64] | None,
        num_right: NDArray[np.int64],
        num_known: NDArray[np.int64],
    ) -> None:
        """Count what became of drafts, whether they were verified or not.

        Args:
            confidence: float64 (drafts, n); None if it was not known.
            num_right: int64 (drafts,), tokens at the start of each draft that the target said too.
            num_known: int64 (drafts,), of how many tokens that is known; at least num_right.

        """
        num_reached = np.minimum(num_right + 1, num_known)
        total = int(num_reached.sum())
        if total == 0:
            return
        n = self.max_n if confidence is None else confidence.shape[1]
        at = np.arange(n)
        reached = at < num_reached[:, None]
        right = at < num_right[:, None]
        fade = exp(-len(num_right) / _MEMORY)
        self._hits *= fade
        self._tries *= fade
        self._hits[:n] += right.sum(axis=0)
        self._tries[:n] += reached.sum(axis=0)
        if confidence is None:
            return
        self._accepted *= fade
        self._reached *= fade
        rows, columns = np.nonzero(reached)
        cells = np.minimum(columns, _NUM_POSITIONS - 1), _bins(confidence[rows, columns])
        np.add.at(self._reached, cells, 1.0)
        np.add.at(self._accepted, cells, right[rows, columns].astype(np.float64))

    def clear(self) -> None:
        """Forget all outcomes."""
        for counts in (self._accepted, self._reached, self._hits, self._tries):
            counts[:] = 0.0


def _bins(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    clipped = np.clip(confidence, 1e-6, 1 - 1e-6)
    scaled = (np.log(clipped / (1 - clipped)) + _WIDEST) * (_NUM_BINS / (2 * _WIDEST))
    return np.clip(scaled, 0, _NUM_BINS - 1).astype(np.int64)
