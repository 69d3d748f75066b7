"""Conditional acceptance by draft position, from outcomes that are nested and censored.

A step that offered n tokens and had a accepted tells that positions 1..a were accepted, that position a+1 was rejected
if it was offered, and nothing about later ones. So each position counts only the steps that reached it.
"""

from math import exp

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Hazards:
    """Discounted counts of reached and accepted, per position.

    Args:
        max_n: positions.
        memory: request-steps after which an outcome weighs 1/e.
        first: prior mean of the first position; each later position has the estimate before it as its prior.
        strength: outcomes that a prior is worth.

    """

    def __init__(
        self, max_n: int, *, memory: float = 500.0, first: float = 0.6, strength: float = 8.0
    ) -> None:
        if max_n < 1:
            raise ValueError(f"max_n must be at least 1, got {max_n}")
        if not (memory > 0 and 0 < first < 1 and strength > 0):
            raise ValueError("memory and strength must be positive, first between 0 and 1")
        self.max_n = max_n
        self._memory = memory
        self._first = first
        self._strength = strength
        self._reached = np.zeros(max_n)
        self._accepted = np.zeros(max_n)

    def update(self, num_offered: ArrayLike, num_accepted: ArrayLike, *, memory: float | None = None) -> None:
        """Count one request's outcome, or an array of them (one per request of a step).

        Args:
            num_offered: draft tokens offered.
            num_accepted: of which the first so many were accepted.
            memory: in place of the usual one, this time.

        Raises:
            ValueError: a negative number, or more accepted than offered.

        """
        offered = np.atleast_1d(np.asarray(num_offered, dtype=np.int64))
        accepted = np.atleast_1d(np.asarray(num_accepted, dtype=np.int64))
        if np.any(accepted < 0) or np.any(accepted > offered):
            raise ValueError(f"accepted {accepted.tolist()} does not fit offered {offered.tolist()}")
        share = len(offered) / (memory or self._memory)
        fade = exp(-share)
        weight = (1 - fade) / share if share else 1.0  # what one of them still weighs on average
        offered = np.minimum(offered, self.max_n)
        accepted = np.minimum(accepted, offered)
        # A request reaches the positions that it accepted and, if one was offered there, the one that it rejected.
        reached = np.minimum(accepted + 1, offered)
        self._reached = self._reached * fade + weight * _tail_counts(reached, self.max_n)
        self._accepted = self._accepted * fade + weight * _tail_counts(accepted, self.max_n)

    def forget(self, num_steps: float = 1.0) -> None:
        """Let what is known fade by so many request-steps in which nothing was offered."""
        fade = exp(-num_steps / self._memory)
        self._reached *= fade
        self._accepted *= fade

    @property
    def mean(self) -> NDArray[np.float64]:
        """Estimated P(position is accepted | it is reached); float64[max_n]."""
        means = np.empty(self.max_n)
        prior = self._first
        for k in range(self.max_n):
            prior = (self._accepted[k] + self._strength * prior) / (self._reached[k] + self._strength)
            means[k] = prior
        return means

    @property
    def deviation(self) -> NDArray[np.float64]:
        """Standard deviation of each estimate, that of its Beta distribution; float64[max_n]."""
        mean = self.mean
        return np.asarray(np.sqrt(mean * (1 - mean) / (self._reached + self._strength + 1)))

    def reach(self, n: int) -> NDArray[np.float64]:
        """Estimated P(first k+1 draft tokens are all accepted), k < n <= max_n; float64[n], non-increasing."""
        return np.asarray(np.cumprod(self.mean[:n]))


def _tail_counts(lengths: NDArray[np.int64], max_n: int) -> NDArray[np.float64]:
    """How many lengths are at least 1, 2, ..., max_n; float64[max_n]."""
    counts = np.bincount(lengths, minlength=max_n + 1)
    return np.cumsum(counts[::-1])[::-1][1:].astype(np.float64)
