"""How many draft tokens each request gets in the next step.

Renewal reward: with R the long-run rate of tokens per second, the lengths that maximise it are those that maximise,
step by step, the expected tokens minus R times the seconds of the step. R is kept as a speedup S over plain decoding
at the same batch, so that it survives a change of batch and of the machine's speed: R = S * b / t(b, 0).
"""

from collections.abc import Sequence
from math import exp
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vllm_specx.tuner import _kernels as kernels
from vllm_specx.tuner.cost import CostModel, Step
from vllm_specx.tuner.decision import Decision, mean_alpha
from vllm_specx.tuner.learning import NUM_BUCKETS, Probe, Trust
from vllm_specx.tuner.learning import bucket as bucket_of

_MEMORY: Final = 200.0  # request-steps that tell what drafts offer, and at least
_MEMORY_STEPS: Final = 20.0  # steps
_RATIO_STEPS: Final = 200.0  # steps that tell what was had of what was possible
_PRIOR_STEPS: Final = 20.0  # steps that "all of it" is worth
_FIRST_PROBE: Final = 4
_LAST_PROBE: Final = 512
_DISTRUST_PROBE: Final = 24  # while drafts are off for want of trust
_SURPRISE: Final = 2.0  # error of a prediction, in standard deviations of a measurement
_OPTIMISM: Final = 1.5  # standard deviations of the cost of drafts
_NOTHING: Final = np.zeros(1, dtype=np.int64)


class Tuner:
    """Lengths for drafts that carry their reach, ragged over the batch.

    Three things are learned beside the step times. What drafts offer: a histogram of reach, used or not, from which S
    follows for any batch and any costs (were every step an average one). The share of that S that is really had, per
    size of batch. And how much of what reach promises is accepted (`trust`).

    Args:
        costs: step times; updated by `update`.
        max_n: most draft tokens of one request.

    """

    def __init__(self, costs: CostModel, *, max_n: int) -> None:
        """Compile the kernels and start without any knowledge of drafts."""
        if max_n < 0:
            raise ValueError(f"max_n must not be negative, got {max_n}")
        self.costs = costs
        self.max_n = max_n
        self.trust = Trust()
        self._probes = [Probe(_FIRST_PROBE, _LAST_PROBE) for _ in range(NUM_BUCKETS)]
        self._upward = False
        self._x = np.empty(kernels.NUM_FEATURES)
        self._forget()
        self._compile()
        self._forget()

    def _compile(self) -> None:
        """Run every kernel once."""
        self.choose([np.array([0.5])])
        ordered, starts, lengths = np.array([-0.5]), np.array([0, 1]), np.array([1])
        most = kernels._best_prefix(ordered, np.array([1.0, 1.0]), 1.0, 1.0)
        kernels._cut(ordered, starts, ordered, most, lengths, self._choice)

    def _forget(self) -> None:
        self._histogram = np.zeros((2, kernels.NUM_BINS + 1))
        self._had = [_PRIOR_STEPS] * NUM_BUCKETS  # tokens, by size of batch
        self._possible = self._had.copy()
        self._choice = np.zeros(kernels.NUM_CHOICE)
        self._curve = np.empty(0)
        self._reason = ""
        self._num_requests = 0
        self._is_open = False  # the step of the last decision was not yet accounted for

    def choose(self, reaches: Sequence[NDArray[np.float64]]) -> list[int]:
        """Return how many tokens of each draft to verify.

        Args:
            reaches: one float64[n_i] per request that decodes, n_i >= 0, already cut to what the request may still
                produce; non-increasing.

        """
        b = len(reaches)
        if b == 0:
            self._is_open = False
            return []
        lengths = np.fromiter(map(len, reaches), np.int64, b)
        flat = np.concatenate(reaches, dtype=np.float64)
        neg, starts, curve = np.empty(len(flat)), np.empty(b + 1, dtype=np.int64), np.empty(len(flat) + 1)
        fade = exp(-b / max(_MEMORY, _MEMORY_STEPS * b))
        total = kernels._gather(flat, lengths, self.max_n, fade, neg, starts, self._histogram)
        ordered = np.sort(neg[:total])
        self._curve = curve = curve[: total + 1]
        self._num_requests, self._is_open = b, True
        bucket, choice = bucket_of(b), self._choice
        kernels._decide(
            ordered,
            neg,
            starts,
            self.costs.mean,
            self.costs.sizes,
            self._x,
            self._histogram,
            self._had[bucket] / self._possible[bucket],
            self.trust.value,
            curve,
            lengths,
            choice,
        )
        num_draft = int(choice[kernels.DRAFT])
        self._reason = "price" if num_draft else "off" if total else "empty"
        hurry = num_draft == 0 and self.trust.is_low
        if total and self._probes[bucket].due(_DISTRUST_PROBE if hurry else None):
            other = self._something_else(ordered, curve, b, num_draft)
            if other != num_draft:
                self._reason = "probe"
                kernels._cut(neg, starts, ordered, other, lengths, choice)
        chosen: list[int] = lengths.tolist()
        return chosen

    def update(self, step: Step) -> None:
        """Account for the step that the last decision led to."""
        changes = self.costs.num_changes
        self.costs.update(step)
        if self.costs.num_changes > changes:
            for probe in self._probes:
                probe.report(surprising=True)
        if not self._is_open:
            return
        self._is_open = False
        bucket = bucket_of(self._num_requests)
        num_draft, expected, variance, possible, _, _ = self._choice.tolist()
        if self._reason == "probe":
            self._probes[bucket].report(self.costs.surprise > _SURPRISE * self.costs.noise)
        else:
            kept, time = 1 - 1 / _RATIO_STEPS, self._curve.item(int(num_draft)) / self._curve.item(0)
            self._had[bucket] = (
                kept * self._had[bucket] + 1 + self.trust.value * expected / self._num_requests
            )
            self._possible[bucket] = kept * self._possible[bucket] + possible * time
        # An engine may verify fewer draft tokens than were chosen.
        share = min(1.0, step.num_draft_tokens / num_draft) if num_draft else 0.0
        accepted = min(max(0, step.num_tokens - step.num_requests), step.num_draft_tokens)
        self.trust.update(share * expected, share * variance, accepted)

    @property
    def last(self) -> Decision | None:
        """The last decision; None before the first."""
        b = self._num_requests
        if b == 0:
            return None
        num_draft, expected, _, _, speedup, price = self._choice.tolist()
        n, last = int(num_draft), len(self._curve) - 1
        plain, first, time = (self._curve.item(m) for m in (0, min(1, last), n))
        return Decision(
            num_requests=b,
            num_draft_tokens=n,
            num_candidates=last,
            expected_tokens=b + self.trust.value * expected,
            price=price / self.costs.scale,
            speedup=speedup,
            alpha=mean_alpha(b, max(1, n), plain, time if n else first),
            seconds=time * self.costs.scale,
            reason=self._reason,
        )

    def plain_seconds(self, num_requests: int) -> float:
        """Predicted seconds of a step without drafts: of the last choice, if that was for as many requests."""
        if num_requests == self._num_requests:
            return self._curve.item(0) * self.costs.scale
        return float(self.costs.seconds(num_requests, _NOTHING)[0])

    def _something_else(
        self, ordered: NDArray[np.float64], curve: NDArray[np.float64], b: int, num_draft: int
    ) -> int:
        """A choice that would be better if drafts cost as little, or as much, as they may; else num_draft."""
        price = float(self._choice[kernels.PRICE])
        if num_draft == 0 and self.trust.is_low:
            most: int = kernels._best_prefix(ordered, curve, 1.0, price)
            return min(most, max(1, b // 4))
        limit = min(len(ordered), max(2 * num_draft, 2 * b))
        sizes = np.unique(np.geomspace(1, limit, 16).astype(np.int64))
        extra = curve[sizes] - curve[0]
        doubt = _OPTIMISM * self.costs.deviation(b, sizes) / self.costs.scale
        tokens = -self.trust.value * np.cumsum(ordered)[sizes - 1]
        self._upward = not self._upward
        for upward in (self._upward, not self._upward):
            values = tokens - price * np.maximum(0, extra - doubt if upward else extra + doubt)
            best = int(np.argmax(values))
            other = int(sizes[best]) if values[best] > 0 else 0
            if upward and other > num_draft:
                return max(other, min(limit, b))  # a long way off tells more
            if not upward and other < num_draft:
                return 0 if other < num_draft // 2 else other
        return num_draft
