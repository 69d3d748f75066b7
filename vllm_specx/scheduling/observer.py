"""What a step did and how long it took, from what the scheduler sent to the workers and got back."""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from vllm_specx.tuner import Step


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step that has been run.

    Attributes:
        step: what it did.
        offered: draft tokens that the target judged, per request that had any; those a grammar cut are not among them.
        accepted: of which the first so many were accepted.

    """

    step: Step
    offered: list[int]
    accepted: list[int]


class Observer:
    """Turns scheduler outputs and what the model runner made of them into outcomes.

    Args:
        num_passes: passes of the drafter for N.
        is_async: whether a step's drafts are made after its tokens were handed over, in the time of the next step.
        clock: returns seconds that never go back.

    """

    def __init__(
        self,
        num_passes: Callable[[int], int],
        *,
        is_async: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start before the first step."""
        self._num_passes = num_passes
        self._is_async = is_async
        self._clock = clock
        self._last = float("nan")
        self._last_n = 0

    def observe(self, scheduled: Any, ran: Any, live: Container[str]) -> Outcome | None:
        """Describe a step; None for one that decoded nothing. To be called once a step, before vLLM evaluates it.

        Args:
            scheduled: vLLM's SchedulerOutput.
            ran: vLLM's ModelRunnerOutput for it; `sampled_token_ids` are not cut yet at the end of a request.
            live: requests that have not ended. Async scheduling runs a request once more, and what that accepts says
                nothing.

        """
        now = self._clock()
        seconds, self._last = now - self._last, now
        if scheduled.total_num_scheduled_tokens == 0:
            self._last = float("nan")  # the engine waits: the next step's time is not its own
            return None
        n = scheduled.num_spec_tokens_to_schedule
        drafting_n, self._last_n = (self._last_n if self._is_async else n), n
        drafts = scheduled.scheduled_spec_decode_tokens
        cut = scheduled.num_invalid_spec_tokens or {}
        num_requests = num_drafts = num_tokens = 0
        offered, accepted = [], []
        for request_id in scheduled.num_scheduled_tokens:
            row = ran.req_id_to_index.get(request_id)
            tokens = ran.sampled_token_ids[row] if ran.sampled_token_ids and row is not None else ()
            if not tokens:  # a part of a prompt
                continue
            num_requests += 1
            num_tokens += len(tokens)
            num_verified = len(drafts.get(request_id, ()))
            num_drafts += num_verified
            num_judged = num_verified - cut.get(request_id, 0)
            if num_judged > 0 and request_id in live:
                offered.append(num_judged)
                accepted.append(min(num_judged, len(tokens) - 1))
        if num_requests == 0:
            return None
        step = Step(
            num_requests=num_requests,
            num_draft_tokens=num_drafts,
            num_tokens=num_tokens,
            # Before a new request the engine may have been idle.
            seconds=None if scheduled.scheduled_new_reqs else seconds,
            num_prefill_tokens=max(0, scheduled.total_num_scheduled_tokens - num_requests - num_drafts),
            num_passes=self._num_passes(drafting_n),
        )
        return Outcome(step, offered, accepted)
