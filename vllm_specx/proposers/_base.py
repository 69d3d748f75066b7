"""A drafter behind vLLM's custom_class hook: what all proposers of ours share."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from vllm.logger import init_logger

from drafters import NO_DRAFT, Draft
from vllm_specx import plugin
from vllm_specx.config import SpecxConfig
from vllm_specx.memory.namespaces import has_parts, parts_of
from vllm_specx.metrics.meter import meter_of, no_meter
from vllm_specx.proposers._gate import checked_drafts
from vllm_specx.proposers._lengths import StepMeter, make_policy, within
from vllm_specx.proposers._memory import is_output_rank, watch_weights
from vllm_specx.proposers._requests import RequestTracker
from vllm_specx.tuner import Step

logger = init_logger("vllm.specx")
_STATE_EVERY: Final = 32  # steps


class Offered(NamedTuple):
    """A draft that was offered: who made it, and the reach of its tokens."""

    kind: str
    reach: NDArray[np.float64]


class RunsOnV2:
    """A proposer of which model runner V2 can have a speculator."""

    @classmethod
    def make_v2_speculator(cls, vllm_config: Any, device: Any, req_states: Any) -> Any:
        """The same on model runner V2: a BaseSpeculator. See `CustomClassSpeculator`."""
        from vllm_specx.speculators.custom_class import CustomClassSpeculator

        return CustomClassSpeculator(cls, vllm_config, device, req_states)


class DrafterProposer(ABC):
    """Ask a drafter every step, and the tuner how much of its drafts is worth verifying.

    Args:
        vllm_config: the engine's configuration; options come from its additional_config["specx"].

    Raises:
        ConfigError: options or draft length that cannot be honoured.

    """

    wants_context = True
    kind: ClassVar[str]

    def __init__(self, vllm_config: Any) -> None:
        plugin.register()  # where VLLM_PLUGINS kept the entry point from running
        plugin.check_config(vllm_config)
        self._options = options = SpecxConfig.from_vllm(vllm_config)
        self.num_speculative_tokens: int = vllm_config.speculative_config.num_speculative_tokens
        self.vocab_size: int = vllm_config.model_config.get_vocab_size()
        self.faults = 0
        self.num_draft_tokens = 0  # verified
        self.num_accepted_tokens = 0
        self._policy = make_policy(options, vllm_config)
        self._meter = StepMeter()
        # vLLM schedules drafts before prompts.
        self._room = int(options.max_draft_share * vllm_config.scheduler_config.max_num_batched_tokens)
        self._is_enabled = True
        self._offered: dict[str, Offered] = {}  # in the last step, by request
        self._num_steps = 0
        self.metrics = meter_of(vllm_config) if is_output_rank(vllm_config.parallel_config) else no_meter()
        self._start_over()

    def load_model(self, target_model: Any) -> None:
        """There are no weights to load, but the target's are watched for changes."""
        watch_weights(target_model, self.on_weights_changed)

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
        context: Any = None,
    ) -> list[list[int]]:
        """Return a draft per row, each possibly empty; never raises.

        Args:
            sampled_token_ids: tokens that each row has just committed; empty for a partial prefill.
            num_tokens_no_spec: int array (rows,), tokens of each row, drafts not counted.
            token_ids_cpu: int array (rows, max_model_len).
            slot_mappings: not used.
            context: ProposerContext; without one (vLLM without the patch) nothing is drafted.

        """
        try:
            return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, context)
        except Exception as error:
            self._fault(f"{type(error).__name__}: {error}")
            try:
                self._requests.clear()
            except Exception:  # the drafter itself is broken
                self._replace_drafter()
            return [[] for _ in sampled_token_ids]

    def reset_memory(self) -> None:
        """Forget shared memory, calibration and what drafts earned; live requests go on."""
        self.drafter.clear()
        self._policy.forget()

    def on_weights_changed(self) -> None:
        """Forget what the target said with other weights, calibration included.

        Called after the engine slept or its weights changed. What requests that live through it have said by now
        is forgotten with the rest; they go on, and share nothing.
        """
        self._forget()

    def forget(self) -> int:
        """Forget all; returns the number of answers. See `vllm_specx.forget`."""
        return self._forget()

    def purge(self, cache_salt: str | None = None, adapter: str | None = None) -> int:
        """Forget what a tenant and an adapter said; returns the number of answers. See `vllm_specx.purge`."""
        return self._purge(parts_of(cache_salt, adapter))

    def set_enabled(self, is_enabled: bool) -> bool:
        """Draft, or only observe, from the next step on; returns what held before. See `vllm_specx.set_enabled`."""
        if not isinstance(is_enabled, bool):
            raise TypeError(f"set_enabled takes true or false, got {is_enabled!r}")
        was_enabled, self._is_enabled = self._is_enabled, is_enabled
        return was_enabled

    def _forget(self) -> int:
        num_documents = 0
        try:
            self._requests.clear()
            num_documents = self.drafter.num_documents
            self.reset_memory()
        except Exception as error:  # the drafter is broken: a new one has nothing to forget
            self._fault(f"{type(error).__name__}: {error}")
            self._start_over()
        return num_documents

    def _purge(self, parts: Sequence[str]) -> int:
        def is_meant(namespace: str) -> bool:
            return has_parts(namespace, parts)

        self._requests.clear_namespaces(is_meant)
        return sum(self.drafter.purge(name) for name in self.drafter.namespaces if is_meant(name))

    def _propose(
        self, sampled: Sequence[Sequence[int]], num_tokens: Any, token_ids: Any, context: Any
    ) -> list[list[int]]:
        start = time.perf_counter()
        step = self._meter.measure(context, sampled)
        self._learn(step, context, sampled)
        rows = self._requests.sync(context, sampled, num_tokens, token_ids)
        self._count(step, sampled, context)
        request_ids = [context.req_ids[row] for row in rows]
        limits = self._limits(context, request_ids)
        drafts = self._draft(rows, request_ids, limits)
        if self._is_enabled:
            lengths = within(self._policy.choose([draft.reach for draft in drafts]), self._room)
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("specx: %s", self._policy.explain())
        else:  # which tells the policy nothing of what drafts are worth
            lengths = [0] * len(drafts)
        result: list[list[int]] = [[] for _ in sampled]
        # What a request was offered that this step left out is verified when it comes back.
        rest = context.requests.keys() - set(context.req_ids)
        self._offered = {name: offered for name, offered in self._offered.items() if name in rest}
        taken = [i for i, n in enumerate(lengths) if n]
        chosen = checked_drafts(
            [drafts[i].token_ids[: lengths[i]] for i in taken],
            [limits[i] for i in taken],
            self.vocab_size,
            self._fault,
        )
        for i, tokens in zip(taken, chosen, strict=True):
            lengths[i] = len(tokens)
            if tokens:
                row, request_id = rows[i], request_ids[i]
                result[row] = tokens
                reach = drafts[i].reach[: len(tokens)]
                self._offered[request_id] = Offered(self._kind_of(row, request_id), reach)
        decision = self._policy.last
        reason = self._policy.reason if decision is None else decision.reason
        self.metrics.chosen(
            lengths,
            decision,
            reason if self._is_enabled else "disabled",
            time.perf_counter() - start,
        )
        return result

    def _count(self, step: Step, sampled: Sequence[Sequence[int]], context: Any) -> None:
        """Count what the step made of the last drafts."""
        self.metrics.stepped(step, self._policy.plain_seconds)
        self._num_steps += 1
        if self._num_steps % _STATE_EVERY == 1:
            self.metrics.state(self._state())
        verified = context.num_draft_tokens
        if verified is None:
            return
        outcomes = []
        resumed = getattr(
            getattr(context.scheduler_output, "scheduled_cached_reqs", None), "resumed_req_ids", ()
        )
        for request_id, count, tokens in zip(context.req_ids, verified, sampled, strict=True):
            # vLLM pads a request that comes from the prefix cache with drafts of -1: only ours count. A preempted one
            # has lost them.
            offered = None if request_id in resumed else self._offered.get(request_id)
            num_draft = 0 if offered is None else min(len(offered.reach), count)
            if offered is None or num_draft == 0 or not tokens:
                continue
            num_accepted = min(num_draft, len(tokens) - 1)
            outcomes.append((offered.kind, offered.reach[:num_draft], num_accepted))
            self.num_draft_tokens += num_draft
            self.num_accepted_tokens += num_accepted
        self.metrics.verified(outcomes)

    def _state(self) -> dict[str, float]:
        """Metrics of one number."""
        return {"specx_drafting_faults": self.faults}

    def _kind_of(self, row: int, request_id: str) -> str:
        """Who made a request's draft, by the name in `metrics.layout.DRAFTERS`."""
        return self.kind

    def _learn(self, step: Step, context: Any, sampled: Sequence[Sequence[int]]) -> None:
        """Account for the step that has just been sampled, before the drafter is told what was committed."""
        self._policy.update(step)

    def _limits(self, context: Any, request_ids: Sequence[str]) -> list[int]:
        """Most draft tokens of each request."""
        if not self._is_enabled:
            return [0] * len(request_ids)
        most, end, by_itself = context.num_spec_tokens, context.max_model_len, self._requests.max_draft
        return [max(0, min(most, by_itself(request_id, end))) for request_id in request_ids]

    def _draft(
        self, rows: Sequence[int], request_ids: Sequence[str], limits: Sequence[int]
    ) -> Sequence[Draft]:
        """One draft per request; the drafter looks only for those that may have one."""
        if all(limits):
            drafts: list[Draft] = self.drafter.propose(request_ids, limits)
            if len(drafts) != len(limits):
                raise ValueError(f"{len(drafts)} drafts for {len(limits)} requests")
            return drafts
        # One is asked for in any case: until then the drafter puts off what it observes.
        asked = [i for i, limit in enumerate(limits) if limit] or list(range(len(limits)))[:1]
        drafts = [NO_DRAFT] * len(limits)
        found = self.drafter.propose([request_ids[i] for i in asked], [limits[i] for i in asked])
        for i, draft in zip(asked, found, strict=True):
            drafts[i] = draft
        return drafts

    @abstractmethod
    def _make_drafter(self) -> Any:
        """A drafter that has seen nothing."""

    def _start_over(self) -> None:
        self.drafter = self._make_drafter()
        self._requests = RequestTracker(self.drafter, _log_once)

    def _replace_drafter(self) -> None:
        """The drafter is broken."""
        self._start_over()

    def _fault(self, reason: str) -> None:
        if self.faults == 0:
            logger.warning("specx: drafting failed, going on without a draft (logged once): %s", reason)
        self.faults += 1


def _log_once(reason: str) -> None:
    logger.warning_once("specx: %s", reason)
