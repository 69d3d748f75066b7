"""The true costs of a simulation, from a measured table."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vllm_specx.tuner import CostTable

PACKAGED: Final = Path(__file__).with_name("costs-cpu-2core.json")
_PROFILE_REPEATS: Final = 3


class CostGrid:
    """Costs by requests and draft tokens, looked up instead of interpolated.

    Args:
        table: seconds of (requests, draft tokens in all).
        max_n: most draft tokens of one request.

    """

    def __init__(self, table: Callable[[int, NDArray[np.int64]], NDArray[np.float64]], max_n: int) -> None:
        self._table, self._max_n = table, max_n
        self._rows: dict[int, NDArray[np.float64]] = {}

    def __getitem__(self, batch: int) -> NDArray[np.float64]:
        """Return the cost of 0, 1, ... batch * max_n draft tokens, float64."""
        row = self._rows.get(batch)
        if row is None:
            row = self._rows[batch] = self._table(batch, np.arange(batch * self._max_n + 1))
        return row


def profiled(table: CostTable, rng: np.random.Generator, noise: float) -> CostTable:
    """Return the table as a start-up profile would see it: each point the median of a few noisy runs."""
    seen = np.exp(rng.normal(0.0, noise, (_PROFILE_REPEATS, *table.seconds.shape)))
    return replace(table, seconds=table.seconds * np.median(seen, axis=0))
