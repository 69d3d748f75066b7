"""One draft length for the whole batch, for drafters that the engine runs itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vllm_specx.tuner.acceptance import Hazards
from vllm_specx.tuner.cost import CostModel, Step
from vllm_specx.tuner.decision import Decision, mean_alpha
from vllm_specx.tuner.learning import NUM_BUCKETS, Probe, Trend, bucket, outcome_deviation

_HYSTERESIS: Final = 0.015  # gain that a change of N must promise
_FIRST_PROBE: Final = 4
_LAST_PROBE: Final = 128
_MEMORY: Final = 150.0  # request-steps, and at least
_MEMORY_STEPS: Final = 30.0  # steps
_CHANGED: Final = 2.3  # memories forgotten when acceptance has changed: a tenth is left
_OPTIMISM: Final = 1.5  # standard deviations
_LEAST_OPTIMISM: Final = 0.1  # of acceptance, while drafts are off


@dataclass(slots=True)
class _Choice:
    num_requests: int
    n: int
    tokens: float  # expected per request
    speedup: float
    plain: float
    seconds: float
    alpha: float
    reason: str


class UniformTuner:
    """One length for the whole batch, for drafters that the engine runs itself.

    Every step with the same batch is alike, so the N that maximises the tokens over the time of one step maximises the
    long-run rate too.

    Args:
        costs: step times; updated by `update`.
        max_n: most draft tokens of one request.
        idle_passes: passes of the drafter in a step with N = 0 (1 for EAGLE, whose KV is kept in sync).
        candidates: lengths to choose from, 0 included or not; 0..max_n if not given.
        is_autoregressive: whether each draft token is a pass of the drafter; otherwise drafting counts no passes.

    """

    def __init__(
        self,
        costs: CostModel,
        *,
        max_n: int,
        idle_passes: int = 0,
        candidates: Sequence[int] | None = None,
        is_autoregressive: bool = True,
    ) -> None:
        """Start from the prior of acceptance."""
        lengths = sorted(set(range(max_n + 1) if candidates is None else candidates))
        if not lengths or lengths[0] < 0 or lengths[-1] > max_n:
            raise ValueError(f"candidates must be lengths within 0..{max_n}, got {candidates}")
        self.costs = costs
        self.max_n = max_n
        self.acceptance = Hazards(max(1, max_n), memory=_MEMORY)
        self._candidates = np.array(lengths)
        self._passes = (
            np.where(self._candidates > 0, self._candidates, idle_passes)
            if is_autoregressive
            else np.zeros_like(self._candidates)
        )
        # Two more steps are predicted, for the record: a plain one, and one with a draft token per request.
        self._lengths = np.concatenate(([0, 1], self._candidates))
        self._all_passes = np.concatenate(([0, int(is_autoregressive)], self._passes))
        self._n = -1  # of the last decision that was no probe
        self._probes = [Probe(_FIRST_PROBE, _LAST_PROBE) for _ in range(NUM_BUCKETS)]
        self._trend = Trend()
        self._upward = False
        self._choice: _Choice | None = None

    def choose(self, num_requests: int) -> int:
        """Return N for a step with `num_requests` requests."""
        if num_requests < 1:
            return 0
        (plain, first), seconds = np.split(self._seconds(num_requests), [2])
        tokens = _tokens(self.acceptance.mean)[self._candidates]
        rates = num_requests * tokens / seconds
        best = int(np.argmax(rates))
        reason = "price" if self._candidates[best] else "off"
        kept = np.flatnonzero(self._candidates == self._n)
        if len(kept) and best != kept[0] and rates[best] < (1 + _HYSTERESIS) * rates[kept[0]]:
            best, reason = int(kept[0]), "keep"
        self._n = int(self._candidates[best])
        chosen = best
        probe = self._probes[bucket(num_requests)]
        if probe.due():
            chosen = self._something_else(num_requests, seconds, best)
            if chosen != best:
                reason = "probe"
                probe.report(surprising=False)  # until its outcome is known
        n = int(self._candidates[chosen])
        self._choice = _Choice(
            num_requests=num_requests,
            n=n,
            tokens=float(tokens[chosen]),
            speedup=float(rates[best] * plain) / num_requests,
            plain=float(plain),
            seconds=float(seconds[chosen]),
            alpha=mean_alpha(
                num_requests, max(1, n) * num_requests, float(plain), float(seconds[chosen] if n else first)
            ),
            reason=reason,
        )
        return n

    def update(self, step: Step, offered: int | Sequence[int], accepted_by_request: Sequence[int]) -> None:
        """Account for a step, which need not be that of the last decision.

        Args:
            step: what it did.
            offered: N of that step, or draft tokens per request where some had fewer (cut by a grammar, say).
            accepted_by_request: draft tokens accepted, per request that was offered them.

        """
        changes = self.costs.num_changes
        self.costs.update(step)
        if self.costs.num_changes > changes:
            for probe in self._probes:
                probe.report(surprising=True)
        num_requests = len(accepted_by_request)
        lengths = np.broadcast_to(np.maximum(offered, 0), num_requests)
        most = int(lengths.max(initial=0))
        if most < 1:
            self.acceptance.forget()
            return
        accepted = np.minimum(np.maximum(accepted_by_request, 0), lengths)
        reach = self.acceptance.reach(min(most, self.max_n))
        means = np.concatenate(([0.0], np.cumsum(reach)))
        squares = np.concatenate(([0.0], np.cumsum((2 * np.arange(len(reach)) + 1) * reach)))
        known = np.minimum(lengths, self.max_n)
        expected = float(np.sum(means[known]))
        variance = float(np.sum(squares[known] - means[known] ** 2))
        error = float(np.sum(accepted)) - expected
        if self._trend.is_change(error / outcome_deviation(expected, variance)):
            self.acceptance.forget(_CHANGED * _MEMORY)
        if most > self._n and error > 0.5 * expected:  # a probe, and more than was thought
            probe = self._probes[bucket(num_requests)]
            probe.report(surprising=True)
            probe.again()
        memory = max(_MEMORY, _MEMORY_STEPS * num_requests)
        self.acceptance.update(lengths, accepted, memory=memory)

    @property
    def last(self) -> Decision | None:
        """The last decision; None before the first."""
        choice = self._choice
        if choice is None:
            return None
        b = choice.num_requests
        return Decision(
            num_requests=b,
            num_draft_tokens=b * choice.n,
            num_candidates=b * int(self._candidates[-1]),
            expected_tokens=b * choice.tokens,
            price=choice.speedup * b / choice.plain,
            speedup=choice.speedup,
            alpha=choice.alpha,
            seconds=choice.seconds,
            reason=choice.reason,
        )

    def _seconds(self, num_requests: int) -> NDArray[np.float64]:
        """Predicted seconds of a plain step, of one with a draft token each, and for each candidate."""
        return self.costs.seconds(num_requests, num_requests * self._lengths, self._all_passes)

    def _something_else(self, num_requests: int, seconds: NDArray[np.float64], best: int) -> int:
        """Index of a candidate that would pay if acceptance or costs were as good to it as they may be; or `best`.

        Above, at most two steps of the ladder; below, any: what is accepted there is known, only costs are not.
        """
        mean, doubt = self.acceptance.mean, self.acceptance.deviation
        if self._candidates[best] == 0:
            doubt = np.maximum(doubt, _LEAST_OPTIMISM)
        spread = self.costs.deviation(num_requests, num_requests * self._candidates, self._passes)
        cheapest = np.maximum(0.5 * seconds, seconds - _OPTIMISM * np.abs(spread - spread[best]))
        highest = _tokens(np.minimum(1.0, mean + _OPTIMISM * doubt))[self._candidates]
        rates = _tokens(mean)[self._candidates] / cheapest
        above = highest / np.maximum(cheapest, seconds[best])
        self._upward = not self._upward
        for upward in (self._upward, not self._upward):
            if upward:
                other = best + 1 + int(np.argmax(np.append(above[best + 1 : best + 3], 0.0)))
                if other < len(seconds) and above[other] > rates[best]:
                    return other
            elif best > 0:
                other = int(np.argmax(rates[:best]))
                if rates[other] > rates[best]:
                    return other
        return best


def _tokens(hazards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Expected tokens of a request for N = 0, 1, ..., len(hazards)."""
    return np.concatenate(([1.0], 1 + np.cumsum(np.cumprod(hazards))))
