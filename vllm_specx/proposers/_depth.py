"""How many tokens an autoregressive drafter should draft for a batch of which it need not serve every request."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_specx.proposers._pass_times import DraftTimes

_FIRST_PROBE: Final = 16  # steps without a draft of the head before one is made to see
_LAST_PROBE: Final = 256
_PROBE_DEPTH: Final = 2
_EXPLORE: Final = 16  # stops of which one goes on, to know what later tokens are worth
_NUM_GAINS: Final = 64
_PROBE_SHARE: Final = 0.01  # of the time since the last look, for reading to the head
_MEMORY: Final = 24  # steps over which it is found out whether being awake pays
_ENOUGH: Final = 128  # requests after which that is known in fewer steps
_LEAST: Final = 4  # but not in fewer than these
_HORIZON: Final = 32
_SMALL: Final = 4  # requests up to which a draft token's cost depends on how many there are (see tuner.cost)


class DepthRule:
    """Renewal reward for the passes of a head, before they are run.

    With R the long-run rate and a price per draft token of R times the seconds that it adds to verification, a request
    is worth sum(max(0, reach - price)) by the draft that suits it better; in a small batch, where tokens are not alike,
    the best prefix of it at its own cost. Of all depths the one is taken whose worth, summed over the batch, exceeds R
    times the seconds of its passes by most.

    Once awake, a head has to read what was verified whether it drafts or not, so that pass is not counted against a
    draft. It is counted against being awake: where what the head adds is on average not worth it, the head sleeps.
    Waking it costs the reading of its backlog, and staying awake that of new prompts, which must be earned within
    `_HORIZON` steps. Before anything is known they are read where that takes no longer than a step.

    Args:
        max_n: deepest draft.

    Attributes:
        token_price: what a draft token had to promise in the last decision, in tokens.
        is_asleep: whether the head should make no pass in this step.

    """

    def __init__(self, max_n: int) -> None:
        self.max_n = max_n
        self.clear()

    def clear(self) -> None:
        """Forget how long nothing was drafted."""
        self.token_price = 0.0
        self.is_asleep = False
        self._prices: NDArray[np.float64] | None = None  # of 1, 2, .. draft tokens together, in a small batch
        self._seconds = 0.0  # of drafting in a step, on average
        self._added = 0.0  # tokens a step that being awake adds, on average
        self._rate = 0.0
        self._gains: deque[float] = deque(maxlen=_NUM_GAINS)
        self._num_tokens = 1.0  # of a draft, on average
        self._num_steps = self._num_seen = 0
        self._num_stops = 0
        self._num_waited = 0
        self._wait = _FIRST_PROBE

    def choose(
        self,
        policy: Any,
        times: DraftTimes,
        others: Sequence[NDArray[np.float64]],
        expected: NDArray[np.float64],
        can: NDArray[np.bool_],
        backlog: int = 0,
    ) -> int:
        """Return how many tokens to draft for every request.

        Args:
            policy: MeasuredCosts; its costs, of verification alone, and its last decision are read.
            times: what passes take.
            others: reach of each request's other draft, float64 (n_i,).
            expected: reach of the head's draft, float64 (deepest,), the same for all requests.
            can: bool (requests,), whether the head can draft for it at all.
            backlog: tokens that the head has not read, those of prompts in this step included.

        """
        b, deepest = len(others), len(expected) if can.any() else 0
        if b == 0 or deepest == 0:
            return 0
        last = policy.tuner.last
        num_draft = last.num_draft_tokens if last is not None and last.num_requests == b else b
        most = num_draft + b
        plain, high = policy.costs.seconds(b, np.array([0, most])).tolist()
        read = times.read(b)
        rate = max(1.0, last.speedup if last is not None else 1.0) * b / (plain + self._seconds)
        self._rate = rate
        # What a token adds on average: next to few others its own share may be anything.
        self.token_price = price = rate * max(0.0, high - plain) / most
        self._prices = None
        if b <= _SMALL:
            self._prices = rate * (policy.costs.seconds(b, np.arange(1, self.max_n + 1)) - plain)
            best = np.maximum.accumulate(np.cumsum(expected) - self._prices[: len(expected)])
            own = np.concatenate(([0.0], np.maximum(0.0, best)))
        else:
            own = np.concatenate(([0.0], np.cumsum(np.maximum(0.0, expected - price))))
        other = self.worth(others)
        drafting = np.array([times.drafting(b, depth) for depth in range(deepest + 1)])
        worth = np.maximum(own * can[:, None], other[:, None]).sum(axis=0) - rate * drafting
        depth = int(np.argmax(worth))
        added = float(worth[depth] - worth[0])
        if len(self._gains) == _NUM_GAINS:
            # The better of two is worth more than the one that is better on average.
            gains = np.maximum(np.array(self._gains)[:, None], other[can]).mean(axis=0)
            cost = times.sample(b) + (self._num_tokens - 1) * times.more(b)
            added = float((gains - other[can]).sum()) - rate * cost
            depth = max(1, round(self._num_tokens)) if added > 0 else 0
            added = max(0.0, added)
        self._num_steps += 1
        self._num_seen += b
        is_known = self._num_steps >= _MEMORY or (self._num_seen >= _ENOUGH and self._num_steps >= _LEAST)
        self._added += (added - rate * read - self._added) / _MEMORY
        reading = times.read(b + backlog) - read
        too_dear = self._added * _HORIZON < rate * reading
        if self.is_asleep:
            self.is_asleep = self._added <= 0 or too_dear
        elif is_known:
            self.is_asleep = self._added < 0 or too_dear
        else:
            self.is_asleep = reading > plain
        self._seconds += (
            (0.0 if self.is_asleep else read + drafting[min(depth, deepest)]) - self._seconds
        ) / _MEMORY
        if depth and not self.is_asleep:
            self._num_waited, self._wait = 0, _FIRST_PROBE
            return min(depth, deepest)
        return self._look_again(reading, plain, deepest)

    def worth(self, reaches: Sequence[NDArray[np.float64]] | NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what drafts of these reaches are worth by the last decision, in tokens, float64 (drafts,)."""
        price, prices = self.token_price, self._prices
        if prices is None:
            return np.array(
                [np.maximum(0.0, reach - price).sum() if len(reach) else 0.0 for reach in reaches]
            )
        cut = [np.cumsum(reach[: len(prices)]) for reach in reaches]
        return np.array([max(0.0, (tokens - prices[: len(tokens)]).max(initial=0.0)) for tokens in cut])

    def note(self, gains: NDArray[np.float64], num_tokens: int) -> None:
        """Learn what a draft turned out to be worth once it was known how sure the head is.

        Args:
            gains: what it is worth, by request.
            num_tokens: of the draft.

        """
        self._gains.extend(gains.tolist())
        self._num_tokens += (num_tokens - self._num_tokens) / _MEMORY

    def goes_on(
        self,
        times: DraftTimes,
        reach: NDArray[np.float64],
        hazard: float,
        others: Sequence[NDArray[np.float64]],
        can: NDArray[np.bool_],
    ) -> bool:
        """Return whether one more token is worth a pass, now that it is known how sure the head was of those before.

        Args:
            times: what passes take.
            reach: of the tokens drafted so far, float64 (requests, tokens).
            hazard: what the next one's acceptance is on average, given that it is reached.
            others, can: as for `choose`.

        """
        other = self.worth(others)
        longer = self.worth(np.column_stack((reach, reach[:, -1] * hazard)))
        # The head's draft counts only as far as it is better than the other one.
        added = (np.maximum(longer, other) - np.maximum(self.worth(reach), other))[can].sum()
        if added > self._rate * times.more(len(reach)):
            return True
        self._num_stops += 1
        return self._num_stops % _EXPLORE == 0

    def _look_again(self, reading: float, plain: float, deepest: int) -> int:
        """What the head is worth is known only while it drafts: from time to time it does, at a bounded cost."""
        self._num_waited += 1
        if self._num_waited < self._wait or reading > _PROBE_SHARE * plain * self._num_waited:
            return 0
        self._num_waited, self._wait = 0, min(2 * self._wait, _LAST_PROBE)
        return min(_PROBE_DEPTH, deepest)
