"""Draft tokens of a whole batch, best first."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Ranking(NamedTuple):
    """All draft tokens of a step in falling order of reach.

    Attributes:
        rows: int64[m], the request that each belongs to; its tokens come in order.
        gains: float64[m + 1], expected accepted tokens of the best 0, 1, ... m.

    """

    rows: NDArray[np.int64]
    gains: NDArray[np.float64]

    def lengths(self, num_draft_tokens: int, num_requests: int) -> list[int]:
        """Return the lengths that the best `num_draft_tokens` amount to."""
        taken: list[int] = np.bincount(self.rows[:num_draft_tokens], minlength=num_requests).tolist()
        return taken


def rank(reaches: Sequence[NDArray[np.float64]]) -> Ranking:
    """Merge the reach of all drafts, each non-increasing; at least one draft, perhaps empty."""
    counts = [len(reach) for reach in reaches]
    flat = np.concatenate(reaches)
    order = np.argsort(-flat, kind="stable")
    gains = np.empty(len(flat) + 1)
    gains[0] = 0.0
    np.cumsum(flat[order], out=gains[1:])
    return Ranking(np.repeat(np.arange(len(counts)), counts)[order], gains)
