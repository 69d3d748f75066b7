"""In the place of the tuner: whole drafts, or a random part of each, so that a verification is of many drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_specx.proposers._depth import DepthRule
from vllm_specx.proposers._lengths import WholeDrafts


class RandomDrafts(WholeDrafts):
    """Of each draft a random number of tokens, by nothing that was drafted or sampled; never none."""

    def __init__(self) -> None:
        """Start at a fixed seed."""
        super().__init__()
        self._rng = np.random.default_rng(0)

    def choose(self, reaches: Sequence[NDArray[np.float64]]) -> list[int]:
        """Return a length for each."""
        self._chosen = [int(self._rng.integers(1, len(reach) + 1)) if len(reach) else 0 for reach in reaches]
        return self._chosen


class FullDepth(DepthRule):
    """A head drafts all it can at every step, and its worth is what it promises."""

    def choose(
        self,
        policy: Any,
        times: Any,
        others: Sequence[NDArray[np.float64]],
        expected: NDArray[np.float64],
        can: NDArray[np.bool_],
        backlog: int = 0,
    ) -> int:
        """Return the deepest draft."""
        return len(expected) if can.any() else 0

    def goes_on(self, *args: Any) -> bool:
        """Return true: there is always one more."""
        return True


def force(proposer: Any, max_n: int, is_random: bool) -> None:
    """Let a proposer of ours draft all it can; any other has its fixed length, and is left alone."""
    if hasattr(proposer, "_policy"):
        proposer._policy = RandomDrafts() if is_random else WholeDrafts()
    if hasattr(proposer, "_depth"):
        proposer._depth = FullDepth(max_n)
