"""`vllm_specx.AdaptiveScheduler`: vLLM's scheduler, with a draft length chosen every step.

Decided in the engine core's only scheduler and carried to the workers in SchedulerOutput, N is the same on all ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from vllm_specx._compat.versions import check_supported
from vllm_specx.config import ConfigError, SpecxConfig
from vllm_specx.costs import make_cost_model
from vllm_specx.metrics.meter import meter_of
from vllm_specx.request_options import max_n_of
from vllm_specx.scheduling import methods
from vllm_specx.scheduling.controller import Controller

logger = init_logger("vllm.specx")


class _Adaptive:
    """What both schedulers have in common; a mix-in before vLLM's class."""

    controller: Controller | None

    # vLLM's
    vllm_config: Any
    scheduler_config: Any
    requests: dict[str, Any]
    num_spec_tokens: int
    max_num_scheduled_tokens: int
    get_request_counts: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_supported()
        vllm_config = self.vllm_config
        methods.check(vllm_config)
        self.controller = None
        if methods.is_pinned(vllm_config):  # the plug-in would have left vLLM's scheduler in place
            logger.warning_once("%s", methods.pinned_reason(vllm_config))
            return
        options = SpecxConfig.from_vllm(vllm_config)
        max_n = self.num_spec_tokens
        candidates = methods.ladder(max_n) if vllm_config.use_v2_model_runner else list(range(max_n + 1))
        self.controller = Controller(
            methods.Drafting.of(vllm_config),
            make_cost_model(options, vllm_config),
            max_n=max_n,
            candidates=candidates,
            token_budget=self.max_num_scheduled_tokens,
            max_draft_share=options.max_draft_share,
            is_async=isinstance(self, AsyncScheduler),
            drafter=str(vllm_config.speculative_config.method),
            # A proposer of ours counts what it drafts itself.
            meter=None if methods.is_rectangle(vllm_config) else meter_of(vllm_config),
        )
        # Not None: vLLM does not pad requests from the prefix cache to the longest draft then.
        self.dynamic_sd_lookup = [max_n] * (self.scheduler_config.max_num_seqs + 1)
        logger.info(
            "specx: %s drafts as many tokens as pay, every step; lengths to choose from: %s",
            vllm_config.speculative_config.method,
            candidates,
        )

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Learn from a step, then evaluate it as vLLM does (which cuts the tokens of requests that end)."""
        if self.controller is not None:
            try:
                self.controller.learn(scheduler_output, model_runner_output, self.requests)
            except Exception as error:
                self._give_up(error)
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        # The last word of schedule(): what will decode next is known, and no placeholder of a draft is set yet.
        if self.controller is not None and scheduler_output.num_scheduled_tokens:
            try:
                scheduler_output.num_spec_tokens_to_schedule = self._choose(scheduler_output)
            except Exception as error:
                self._give_up(error)
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]
        if isinstance(self, AsyncScheduler):  # drafts are placeholders, set just now
            self._cut(scheduler_output.num_scheduled_tokens)

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Take over the drafts of a step, no more of each than its request wants."""
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]
        self._cut(draft_token_ids.req_ids)

    def _cut(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            request = self.requests.get(request_id)
            params = None if request is None else request.sampling_params
            if request is not None and params is not None and params.extra_args and request.spec_token_ids:
                most = max_n_of(params)
                if most is not None:
                    request.spec_token_ids = request.spec_token_ids[:most]

    def _choose(self, scheduler_output: Any) -> int:
        assert self.controller is not None
        num_requests = num_useful = 0
        has_prefills = self.get_request_counts()[1] > 0
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            if (
                request.num_computed_tokens + num_tokens
                < request.num_tokens + request.num_output_placeholders
            ):
                has_prefills = True  # a part of its prompt is left
                continue
            num_requests += 1
            # This step yields a token at least, the next one after the drafts.
            num_useful = max(num_useful, request.max_tokens - request.num_output_tokens - 2)
        n = self.controller.choose(num_requests, num_useful, has_prefills=has_prefills)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("specx: n=%d %s", n, self.controller.last)
        return n

    def _give_up(self, error: Exception) -> None:
        logger.error(
            "specx: choosing the draft length failed; it stays at num_speculative_tokens from now on: %s: %s",
            type(error).__name__,
            error,
            exc_info=error,
        )
        if self.controller is not None:
            self.controller.count_fault()
        self.controller = None


class AdaptiveScheduler(_Adaptive, Scheduler):
    """vLLM's scheduler with a draft length for each step.

    Named in `--scheduler-cls`, or brought by the option `adaptive`. Where vLLM schedules asynchronously, the plug-in
    takes `AdaptiveAsyncScheduler` instead.

    Raises:
        ConfigError: a configuration in which the length would be ignored, or asynchronous scheduling.

    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See vLLM's Scheduler."""
        super().__init__(*args, **kwargs)
        if self.scheduler_config.async_scheduling:
            raise ConfigError(
                f"async scheduling needs {methods.ASYNC_SCHEDULER}, which the plug-in 'specx' would have taken: "
                "VLLM_PLUGINS keeps it from running"
            )


class AdaptiveAsyncScheduler(_Adaptive, AsyncScheduler):
    """`AdaptiveScheduler` for asynchronous scheduling."""
