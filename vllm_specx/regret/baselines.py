"""The rules to beat, written from their public descriptions.

Each is given what helps it: drafts of the same drafter, clean counts, and parameters chosen in hindsight.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_specx.regret.costs import CostGrid
from vllm_specx.regret.oracle import OwnRatio
from vllm_specx.regret.ranking import rank
from vllm_specx.regret.simulate import NUM_BUCKETS, bucket
from vllm_specx.tuner import Step

_FIRST_TRIES: Final = 3  # steps of each arm before the bandit begins


def _cut(n: int, reaches: Sequence[NDArray[np.float64]]) -> list[int]:
    return [min(n, len(reach)) for reach in reaches]


class FixedN:
    """Always the same number of draft tokens, where there are as many."""

    def __init__(self, n: int) -> None:
        self.needs_drafts = n > 0
        self._n = n

    def choose(self, request_ids: Sequence[int], reaches: Sequence[NDArray[np.float64]]) -> Sequence[int]:
        return _cut(self._n, reaches)

    def update(self, step: Step) -> None:
        pass


class BatchTable:
    """N by batch size, as vLLM's num_speculative_tokens_per_batch_size; here by powers of two.

    https://docs.vllm.ai, "Dynamic Speculative Decoding".
    """

    needs_drafts = True

    def __init__(self, n_by_bucket: Sequence[int]) -> None:
        self._n_by_bucket = n_by_bucket

    def choose(self, request_ids: Sequence[int], reaches: Sequence[NDArray[np.float64]]) -> Sequence[int]:
        return _cut(self._n_by_bucket[bucket(len(request_ids))], reaches)

    def update(self, step: Step) -> None:
        pass


class Ema:
    """SGLang's adaptive steps: a ladder of N, climbed by the moving average of accepted drafts per request.

    It aims one step beyond what is accepted: down a rung while the average is at most the lower rung - 0.5 + `down`,
    up a rung where it exceeds the current one - 0.5 + `up`. https://docs.sglang.io, "Adaptive Speculative Decoding"
    (there: ladder 1, 3, 7; alpha 0.2; every 5 steps after 10; down -0.25, up 0). Turning off is ours: at the lowest
    rung, with an average of at most `off`, nothing is drafted for `_OFF_STEPS` steps.
    """

    needs_drafts = True
    _WARM_UP: Final = 10
    _INTERVAL: Final = 5
    _OFF_STEPS: Final = 100

    def __init__(self, ladder: Sequence[int], *, alpha: float, down: float, up: float, off: float) -> None:
        self._ladder, self._alpha, self._down, self._up, self._off = ladder, alpha, down, up, off
        self._rung = len(ladder) // 2
        self._ema = float(ladder[self._rung])
        self._num_steps = 0
        self._rest = 0  # steps left without drafts

    def choose(self, request_ids: Sequence[int], reaches: Sequence[NDArray[np.float64]]) -> Sequence[int]:
        return _cut(0 if self._rest else self._ladder[self._rung], reaches)

    def update(self, step: Step) -> None:
        self._num_steps += 1
        if self._rest:
            self._rest -= 1
            return
        ladder = self._ladder
        accepted = step.num_tokens / step.num_requests - 1.0
        self._ema += self._alpha * (accepted - self._ema)
        if self._num_steps < self._WARM_UP or self._num_steps % self._INTERVAL:
            return
        while self._rung > 0 and self._ema <= ladder[self._rung - 1] - 0.5 + self._down:
            self._rung -= 1
        while self._rung + 1 < len(ladder) and self._ema > ladder[self._rung] - 0.5 + self._up:
            self._rung += 1
        if self._rung == 0 and self._ema <= self._off:
            self._rest = self._OFF_STEPS


class Bandit:
    """Epsilon-greedy over N, an arm each; the reward is the discounted ratio of tokens to measured seconds.

    A set of arms for every bucket of the batch. Each arm is tried `_FIRST_TRIES` times first.
    """

    needs_drafts = True

    def __init__(self, arms: Sequence[int], *, epsilon: float, fade: float, seed: int) -> None:
        self._arms, self._epsilon, self._fade = arms, epsilon, fade
        self._rng = np.random.default_rng((seed, 2))
        self._tokens = np.zeros((NUM_BUCKETS, len(arms)))
        self._seconds = np.zeros((NUM_BUCKETS, len(arms)))
        self._tries = np.zeros((NUM_BUCKETS, len(arms)), dtype=np.int64)
        self._arm = 0

    def choose(self, request_ids: Sequence[int], reaches: Sequence[NDArray[np.float64]]) -> Sequence[int]:
        at = bucket(len(request_ids))
        fewest = int(self._tries[at].argmin())
        if self._tries[at, fewest] < _FIRST_TRIES:
            self._arm = fewest
        elif self._rng.random() < self._epsilon:
            self._arm = int(self._rng.integers(len(self._arms)))
        else:
            self._arm = int((self._tokens[at] / self._seconds[at]).argmax())
        return _cut(self._arms[self._arm], reaches)

    def update(self, step: Step) -> None:
        at, arm = bucket(step.num_requests), self._arm
        assert step.seconds is not None
        self._tries[at, arm] += 1
        self._tokens[at, arm] = self._tokens[at, arm] * self._fade + step.num_tokens
        self._seconds[at, arm] = self._seconds[at, arm] * self._fade + step.seconds


class PrefixArgmax(OwnRatio):
    """vLLM's adaptive verification: each step verifies the prefix of the ranked drafts with the best own ratio.

    Survival is the running product of conditional confidences, smoothed over the steps of each request; costs are
    profiled once. https://docs.vllm.ai, "Adaptive Verification", and vLLM pull request 47808 (there: smoothing 0.8,
    the weight of the newest; the number of tokens follows from the step before, their choice from this one, which is
    `lagged`). Confidence here is the drafter's calibrated reach.
    """

    def __init__(self, costs: CostGrid, *, alpha: float, max_n: int, lagged: bool = False) -> None:
        super().__init__(costs)
        self._alpha, self._max_n, self._lagged = alpha, max_n, lagged
        self._share = 1.0  # of a full draft for every request
        self._confidence: dict[int, NDArray[np.float64]] = {}

    def choose(self, request_ids: Sequence[int], reaches: Sequence[NDArray[np.float64]]) -> Sequence[int]:
        shown = [reach[: self._max_n] for reach in reaches]
        if self._alpha < 1.0:
            shown = self._smooth(request_ids, shown)
        if not self._lagged:
            return super().choose(request_ids, shown)
        num_requests = len(request_ids)
        budget = round(self._share * num_requests * self._max_n)
        ranking = rank(shown)
        self._share = self.best(num_requests, ranking) / (num_requests * self._max_n)
        return ranking.lengths(budget, num_requests)

    def _smooth(
        self, request_ids: Sequence[int], reaches: Sequence[NDArray[np.float64]]
    ) -> list[NDArray[np.float64]]:
        kept: dict[int, NDArray[np.float64]] = {}
        survival = []
        for request_id, reach in zip(request_ids, reaches, strict=True):
            before = self._confidence.get(request_id)
            confidence = np.empty(self._max_n) if before is None else before
            n = len(reach)
            if n:
                now = reach.copy()
                now[1:] /= reach[:-1]
                if before is None:
                    confidence[:n] = now
                    confidence[n:] = now[-1]
                else:
                    confidence[:n] += self._alpha * (now - confidence[:n])
                kept[request_id] = confidence
            elif before is not None:
                kept[request_id] = before
            survival.append(np.minimum(1.0, confidence[:n]).cumprod())
        self._confidence = kept
        return survival


def ema_grid(max_n: int) -> dict[str, Mapping[str, Any]]:
    """The EMA's parameters, by name; SGLang's own come first."""
    ladders = ((1, 3, 7), (1, 2, 4, 8, 16, 32, 64, 128))
    return {
        f"ladder {','.join(map(str, ladder))} alpha {alpha} off {off}": {
            "ladder": ladder,
            "alpha": alpha,
            "down": -0.25,
            "up": 0.0,
            "off": off,
        }
        for ladder in (tuple(n for n in ladder if n <= max_n) for ladder in ladders)
        for off in (-1.0, 0.3, 0.6)
        for alpha in (0.2, 0.05)
    }
