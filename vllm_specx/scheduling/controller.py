"""Chooses N for the next step, within what the step and its requests have room for."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final

import numpy as np

from vllm_specx.metrics.meter import DraftMeter
from vllm_specx.scheduling.methods import Drafting
from vllm_specx.scheduling.observer import Observer, Outcome
from vllm_specx.tuner import CostModel, Decision, UniformTuner

_NOTHING: Final = np.zeros(2, dtype=np.int64)


class Controller:
    """A tuner, the observer that feeds it, and the limits that are none of its business.

    Args:
        drafting: how the drafter works.
        costs: what is known of step times.
        max_n: most draft tokens of one request.
        candidates: lengths to choose from, 0 among them.
        token_budget: most tokens of one step.
        max_draft_share: of these, what drafts may take while prompts wait.
        is_async: whether steps are scheduled before the one before has ended.
        drafter: what metrics call it.
        meter: counts what becomes of drafts; None: whoever drafts counts.

    Attributes:
        tuner: chooses by acceptance and costs.
        n: the last choice.

    """

    def __init__(
        self,
        drafting: Drafting,
        costs: CostModel,
        *,
        max_n: int,
        candidates: Sequence[int],
        token_budget: int,
        max_draft_share: float,
        is_async: bool = False,
        drafter: str = "",
        meter: DraftMeter | None = None,
    ) -> None:
        """Start without knowledge."""
        self.tuner = UniformTuner(
            costs,
            max_n=max_n,
            candidates=candidates,
            idle_passes=drafting.idle_passes,
            is_autoregressive=drafting.is_autoregressive,
        )
        self.n = max_n
        self._observer = Observer(drafting.num_passes, is_async=is_async)
        self._candidates = sorted(candidates)
        self._room = int(max_draft_share * token_budget)
        self._drafter = drafter
        self._meter = meter

    def choose(self, num_requests: int, num_useful: int, *, has_prefills: bool) -> int:
        """Return N for a step.

        Args:
            num_requests: requests that will decode in it.
            num_useful: most draft tokens that any of them could still use.
            has_prefills: whether prompts wait for a place in it.

        """
        most = num_useful
        if has_prefills and num_requests:
            most = min(most, self._room // num_requests)
        n = min(self.tuner.choose(num_requests), most)
        self.n = max((length for length in self._candidates if length <= n), default=0)
        decision = self.tuner.last
        if self._meter is not None and decision is not None and num_requests:
            self._meter.chosen([self.n] * num_requests, decision, decision.reason, 0.0)
        return self.n

    def learn(self, scheduled: Any, ran: Any, live: Container[str]) -> None:
        """Account for a step; see `Observer.observe`."""
        outcome = self._observer.observe(scheduled, ran, live)
        if outcome is not None:
            self.tuner.update(outcome.step, outcome.offered, outcome.accepted)
            if self._meter is not None:
                self._count(outcome, self._meter)

    def _count(self, outcome: Outcome, meter: DraftMeter) -> None:
        reach = self.tuner.acceptance.reach(self.tuner.max_n)
        meter.verified(
            [
                (self._drafter, reach[:offered], accepted)
                for offered, accepted in zip(outcome.offered, outcome.accepted, strict=True)
            ]
        )
        step = outcome.step
        # vLLM runs the drafter's passes, out of our sight: what they take is known as a part of steps only.
        plain, drafting = self.tuner.costs.seconds(step.num_requests, _NOTHING, (0, step.num_passes))
        meter.stepped(step, lambda _: float(plain))
        if step.seconds is not None:
            meter.drafted(float(drafting - plain))

    def count_fault(self) -> None:
        """Tell the metrics that choosing failed."""
        if self._meter is not None:
            self._meter.state({"specx_drafting_faults": 1})

    @property
    def last(self) -> Decision | None:
        """The tuner's last decision, before the limits; None before the first."""
        return self.tuner.last
