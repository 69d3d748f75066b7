"""The per-step oracle: it knows each draft's reach, the true costs and the price of a second, not the outcome."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vllm_specx.regret.costs import CostGrid
from vllm_specx.regret.ranking import Ranking, rank
from vllm_specx.regret.simulate import NUM_BUCKETS, Policy, Run, bucket
from vllm_specx.tuner import Step

_MAX_RERUNS: Final = 5
_CONVERGED: Final = 0.003
_BESIDE: Final = (0.8, 1.2, 1.5)


class Priced:
    """Lengths that maximise expected tokens minus R * cost.

    `prices` are R by bucket of the batch, in rates of plain decoding at the same batch.
    """

    needs_drafts = True

    def __init__(self, costs: CostGrid, prices: NDArray[np.float64]) -> None:
        self._costs, self._prices = costs, prices

    def choose(self, request_ids: Sequence[int], reaches: Sequence[NDArray[np.float64]]) -> Sequence[int]:
        num_requests = len(request_ids)
        ranking = rank(reaches)
        gains = ranking.gains
        price = self._prices[bucket(num_requests)] * num_requests / self._costs[num_requests][0]
        best = int((gains - price * self._costs[num_requests][: len(gains)]).argmax())
        return ranking.lengths(best, num_requests)

    def update(self, step: Step) -> None:
        pass


class OwnRatio:
    """Lengths that maximise the step's own expected tokens per cost."""

    needs_drafts = True

    def __init__(self, costs: CostGrid) -> None:
        self._costs = costs

    def choose(self, request_ids: Sequence[int], reaches: Sequence[NDArray[np.float64]]) -> Sequence[int]:
        num_requests = len(request_ids)
        ranking = rank(reaches)
        return ranking.lengths(self.best(num_requests, ranking), num_requests)

    def best(self, num_requests: int, ranking: Ranking) -> int:
        """Return the number of draft tokens with the best ratio."""
        gains = ranking.gains
        return int(((num_requests + gains) / self._costs[num_requests][: len(gains)]).argmax())

    def update(self, step: Step) -> None:
        pass


def best_informed(run_with: Callable[[Policy], Run], costs: CostGrid) -> Run:
    """Run the oracle: the best, in hindsight, of the rules that know reach and true costs.

    The price is solved for by fixed point (run, take the speedups that came out, run again). Since what one step
    accepts changes what the next ones find, the price rule is not quite optimal: prices beside that point and each
    step's own best ratio are tried too.

    Args:
        run_with: runs the cell.
        costs: the true ones.

    """
    runs: list[Run] = []
    prices = np.ones(NUM_BUCKETS)
    for _ in range(_MAX_RERUNS):
        runs.append(run_with(Priced(costs, prices)))
        before, prices = prices, runs[-1].speedups
        if np.abs(prices / before - 1).max() < _CONVERGED:
            break
    runs += [run_with(Priced(costs, prices * factor)) for factor in _BESIDE]
    runs.append(run_with(OwnRatio(costs)))
    return max(runs, key=lambda run: run.rate)
