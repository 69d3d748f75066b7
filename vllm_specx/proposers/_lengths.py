"""How a proposer comes to its draft lengths: a policy of the tuner, told what each step did and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from vllm_specx.config import SpecxConfig
from vllm_specx.costs import make_cost_model
from vllm_specx.tuner import CostModel, Decision, PriceRule, Step, Tuner


class Policy(Protocol):
    """Chooses draft lengths by reach."""

    def choose(self, reaches: Sequence[NDArray[np.float64]]) -> list[int]:
        """Return how many tokens of each draft to verify."""

    def update(self, step: Step) -> None:
        """Account for the step that the last choice led to."""

    def forget(self) -> None:
        """Forget what drafts earned; what steps cost stays known."""

    def explain(self) -> str:
        """Return the last choice and its reasons as one line of key=value pairs."""

    def plain_seconds(self, num_requests: int) -> float:
        """Seconds of a decode step of so many requests without drafts; NaN where that is not measured."""

    @property
    def last(self) -> Decision | None:
        """The tuner's last decision, if it decides."""

    @property
    def reason(self) -> str:
        """Why the last lengths were chosen, in a word; where the tuner decided, its decision says it."""

    @property
    def token_price(self) -> float:
        """What a draft token has to promise, by the last choice, in tokens."""


class MeasuredCosts:
    """The tuner on costs that it measures in service.

    Args:
        max_n: most draft tokens of one request.
        costs: what is known of step times.

    """

    def __init__(self, max_n: int, costs: CostModel) -> None:
        """Start without knowledge of drafts."""
        self._max_n = max_n
        self.costs = costs
        self.forget()

    def choose(self, reaches: Sequence[NDArray[np.float64]]) -> list[int]:
        """See `Tuner.choose`."""
        return self.tuner.choose(reaches)

    def update(self, step: Step) -> None:
        """See `Tuner.update`."""
        self.tuner.update(step)

    def forget(self) -> None:
        """Start a new tuner on the same costs."""
        self.tuner = Tuner(self.costs, max_n=self._max_n)

    def explain(self) -> str:
        """See `Decision`."""
        return str(self.tuner.last)

    def plain_seconds(self, num_requests: int) -> float:
        """By the costs that were measured."""
        return self.tuner.plain_seconds(num_requests)

    @property
    def last(self) -> Decision | None:
        """See `Tuner.last`."""
        return self.tuner.last

    @property
    def reason(self) -> str:
        """There was nothing to choose from yet."""
        return "empty"

    @property
    def token_price(self) -> float:
        """The speedup that is had times what verification of a token takes of a plain step."""
        last = self.tuner.last
        return 0.0 if last is None else max(0.0, last.speedup * last.alpha)


class FixedCosts:
    """The price rule for a cost that the user states.

    Args:
        alpha: cost of verifying one draft token, relative to a decode step without any.

    """

    def __init__(self, alpha: float) -> None:
        """Start from the rate of plain decoding."""
        self._alpha = alpha
        self._chosen: list[int] = []
        self.forget()

    def choose(self, reaches: Sequence[NDArray[np.float64]]) -> list[int]:
        """See `PriceRule.lengths`."""
        self._chosen = self._rule.lengths(reaches)
        return self._chosen

    def update(self, step: Step) -> None:
        """See `PriceRule.update`."""
        self._rule.update(step.num_tokens, step.num_draft_tokens, step.num_requests)

    def forget(self) -> None:
        """Start a new rule."""
        self._rule = PriceRule(self._alpha)

    def explain(self) -> str:
        """The stated cost is the reason."""
        return f"decision reason=price requests={len(self._chosen)} draft={sum(self._chosen)} alpha={self._alpha}"

    last: Final = None
    reason: Final = "price"

    def plain_seconds(self, num_requests: int) -> float:
        """Nothing is measured."""
        return float("nan")

    @property
    def token_price(self) -> float:
        """See `PriceRule`."""
        return self._alpha * self._rule.rate


class WholeDrafts:
    """Every draft as it is: the scheduler has chosen one length for all, and verifies it whatever is drafted."""

    def __init__(self) -> None:
        """Start before the first step."""
        self._chosen: list[int] = []

    def choose(self, reaches: Sequence[NDArray[np.float64]]) -> list[int]:
        """Return the length of each."""
        self._chosen = [len(reach) for reach in reaches]
        return self._chosen

    def update(self, step: Step) -> None:
        """There is nothing to learn."""

    def forget(self) -> None:
        """There is nothing to forget."""

    def explain(self) -> str:
        """The scheduler has the reasons."""
        return f"decision reason=scheduler requests={len(self._chosen)} draft={sum(self._chosen)}"

    last: Final = None
    reason: Final = "scheduler"

    def plain_seconds(self, num_requests: int) -> float:
        """The scheduler measures it."""
        return float("nan")

    @property
    def token_price(self) -> float:
        """All of them are verified, right or wrong."""
        return 0.0


def make_policy(options: SpecxConfig, vllm_config: Any) -> Policy:
    """The policy that the options, and who chooses lengths, ask for."""
    if vllm_config.use_v2_model_runner and vllm_config.scheduler_config.async_scheduling:
        return WholeDrafts()
    if options.alpha is not None:
        return FixedCosts(options.alpha)
    max_n = vllm_config.speculative_config.num_speculative_tokens
    return MeasuredCosts(max_n, make_cost_model(options, vllm_config))


def within(lengths: Sequence[int], room: int) -> list[int]:
    """Return lengths that sum up to `room` at most, all cut in proportion where they do not fit."""
    total = sum(lengths)
    return list(lengths) if total <= room else [n * room // total for n in lengths]


class StepMeter:
    """Tell a policy what happened from one proposal to the next.

    Args:
        clock: returns seconds that never go back.

    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start before the first step."""
        self._clock = clock
        self._last = float("nan")

    def measure(self, context: Any, sampled: Sequence[Sequence[int]]) -> Step:
        """Describe the step that has just been sampled.

        Args:
            context: ProposerContext of the step.
            sampled: tokens that each row has just committed; empty for a partial prefill.

        """
        now = self._clock()
        seconds, self._last = now - self._last, now
        decoding = [row for row, tokens in enumerate(sampled) if tokens]
        verified = context.num_draft_tokens
        num_draft = sum(verified[row] for row in decoding) if verified else 0
        output = context.scheduler_output
        return Step(
            num_requests=len(decoding),
            num_draft_tokens=num_draft,
            num_tokens=sum(len(sampled[row]) for row in decoding),
            # Before a new request the engine may have been idle.
            seconds=None if output.scheduled_new_reqs else seconds,
            num_prefill_tokens=max(0, output.total_num_scheduled_tokens - len(decoding) - num_draft),
        )
