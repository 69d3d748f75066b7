"""What became of what a head drafted, verified or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drafters.head_reach import HeadReach


@dataclass(slots=True)
class Drafted:
    """Drafts of a head.

    Attributes:
        rows: row of each request.
        token_ids: int64 (rows, tokens).
        confidence: float64 (rows, tokens), how sure the head was; None where its tokens were drawn.

    """

    rows: dict[str, int]
    token_ids: NDArray[np.int64]
    confidence: NDArray[np.float64] | None

    def teach(self, reach: HeadReach, request_ids: Sequence[str], sampled: Sequence[Sequence[int]]) -> None:
        """Count how often they were right.

        Args:
            reach: where that is counted.
            request_ids: of the step.
            sampled: tokens that each has just committed.

        """
        if self.token_ids.size == 0:
            return
        rows, right, known = [], [], []
        for request_id, tokens in zip(request_ids, sampled, strict=True):
            at = self.rows.get(request_id)
            if at is None or not tokens:
                continue
            told = np.asarray(tokens[: self.token_ids.shape[1]])
            wrong = np.flatnonzero(self.token_ids[at, : len(told)] != told)
            rows.append(at)
            right.append(int(wrong[0]) if len(wrong) else len(told))
            known.append(len(told))
        if rows:
            confidence = None if self.confidence is None else self.confidence[rows]
            reach.update(confidence, np.array(right), np.array(known))


def no_drafts() -> Drafted:
    """Before the first step."""
    return Drafted({}, np.empty((0, 0), dtype=np.int64), None)
