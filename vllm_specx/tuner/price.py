"""The marginal rule: a draft token is worth its place if it earns more tokens than the time it takes would.

Renewal reward: with R the long-run rate of tokens per unit of cost, the choice that maximises R takes, at each
step, the lengths that maximise sum_i E_i(N_i) - R * cost. With a cost of 1 + alpha*N per request this is one
threshold on reach: draft token k stays while reach_k >= alpha * R.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_FADE: Final = 0.998  # per request-step


class PriceRule:
    """Choose draft lengths for a fixed verification overhead.

    Args:
        alpha: cost of verifying one draft token, relative to a decode step without any.

    """

    def __init__(self, alpha: float) -> None:
        """Start from the rate of plain decoding, one token per unit of cost."""
        self.alpha = alpha
        self._tokens = 1.0
        self._cost = 1.0

    @property
    def rate(self) -> float:
        """R: tokens per plain decode step of one request, over the recent past."""
        return self._tokens / self._cost

    def lengths(self, reaches: Sequence[NDArray[np.float64]]) -> list[int]:
        """Return how many tokens of each draft to verify, given its reach (non-increasing)."""
        price = -self.alpha * self.rate
        return [int(np.searchsorted(-reach, price, side="right")) for reach in reaches]

    def update(self, num_tokens: int, num_draft_tokens: int, num_requests: int = 1) -> None:
        """Account for a step: tokens committed (bonus included) and draft tokens verified, all requests together."""
        fade = _FADE**num_requests
        self._tokens = self._tokens * fade + num_tokens
        self._cost = self._cost * fade + num_requests + self.alpha * num_draft_tokens
