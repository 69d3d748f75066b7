"""Step times from a measured table, and the threshold on reach that pays at each batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vllm_specx.bench.errors import BenchError
from vllm_specx.simulate.curve import Curve
from vllm_specx.tuner import CostTable


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Seconds of a step.

    Attributes:
        grid: float64[max_num_seqs + 1, max_n + 1], by requests that decode and draft tokens of each; linear between
            them. Row 0, a step of prompts alone, is a plain step of one request.
        per_prompt_token: to be added for each prompt token in the step.

    """

    grid: NDArray[np.float64]
    per_prompt_token: float

    @classmethod
    def of(cls, table: CostTable, *, max_num_seqs: int, max_n: int, prefill_us: float | None) -> StepTimes:
        """Look everything up once. Raises BenchError for a table that has no times of drafts."""
        if len(table.drafts) < 2:
            raise BenchError(
                "--costs: the table has only steps without draft tokens; measure some with drafts"
            )
        # The table is linear between whole numbers of draft tokens per request: they say everything.
        n = np.arange(max_n + 1)
        rows = [table(b, b * n) for b in range(1, max_num_seqs + 1)]
        # In the largest step the weights are read once for many tokens, as they are for a prompt.
        last, tokens = table.seconds[-1], table.requests[-1] * table.drafts[-1]
        slope = max(0.0, float((last[-1] - last[0]) / tokens))
        grid = np.stack([np.full(max_n + 1, rows[0][0]), *rows])
        return cls(np.ascontiguousarray(grid), slope if prefill_us is None else 1e-6 * prefill_us)


def best_thresholds(curve: Curve, times: StepTimes) -> NDArray[np.int64]:
    """The threshold that gives most tokens per second, for each batch and level of memory.

    All requests of the batch are taken to be at that level.

    Returns:
        int64[max_num_seqs + 1, L], an index of the curve's thresholds, or how many there are: no drafts.

    """
    num_batches, width = times.grid.shape
    num_levels, num_thresholds = curve.tokens_per_step.shape
    best = np.full((num_batches, num_levels), num_thresholds, dtype=np.int64)
    n = np.arange(width)
    for b in range(1, num_batches):
        row = times.grid[b]
        seconds = np.interp(curve.drafts_per_step, n, row)
        rates = np.column_stack([curve.tokens_per_step / seconds, np.full(num_levels, 1 / row[0])])
        # Of equal ones the last: with no drafts rather than with useless ones.
        best[b] = num_thresholds - np.argmax(rates[:, ::-1], axis=1)
    return best
