"""The tuner itself, as a policy of the simulation."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vllm_specx.tuner import CostModel, CostTable, Step, Tuner


class Tuned:
    """The tuner as it is served; with a table, after `specx calibrate`."""

    needs_drafts = True

    def __init__(self, max_n: int, table: CostTable | None = None) -> None:
        self.tuner = Tuner(CostModel(table), max_n=max_n)

    def choose(self, request_ids: Sequence[int], reaches: Sequence[NDArray[np.float64]]) -> Sequence[int]:
        return self.tuner.choose(reaches)

    def update(self, step: Step) -> None:
        self.tuner.update(step)
