"""A proposer of ours as a speculator of vLLM's model runner V2.

V2 keeps tokens and drafts on the device, and its drafts are a rectangle: as many for every request. A proposer works on
the host, so a step costs one small copy of what was sampled to the host and one of the drafts back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.distributed import get_tp_group
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from vllm_specx._compat import ProposerContext

_FIRST_SIZE: Final = 256


@dataclass(frozen=True, slots=True)
class Request:
    """What a proposer asks of a request, by the names of V1's CachedRequestState."""

    prompt_token_ids: list[int] | None
    prompt_embeds: torch.Tensor | None
    sampling_params: Any
    lora_request: Any
    mm_features: Any

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids or ())


class Tokens:
    """The tokens of a request, int32, on the host."""

    __slots__ = ("_buffer", "num")

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.num = len(token_ids)
        self._buffer = np.empty(max(_FIRST_SIZE, 2 * self.num), dtype=np.int32)
        self._buffer[: self.num] = token_ids

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add what was sampled."""
        end = self.num + len(token_ids)
        if end > len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty_like(self._buffer)])
        self._buffer[self.num : end] = token_ids
        self.num = end

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """All of them."""
        return self._buffer[: self.num]


_NO_TOKEN: Final = (0,)  # of a part of a prompt


class _Rows:
    """Answers `rows[row, a:b]` as V1's token buffer does."""

    def __init__(self, tokens: Sequence[Tokens]) -> None:
        self._tokens = tokens

    def __getitem__(self, key: tuple[int, slice]) -> NDArray[np.int32]:
        row, part = key
        return self._tokens[row].token_ids[part]


class CustomClassSpeculator(BaseSpeculator):
    """Runs a proposer of the custom_class kind on the first tensor-parallel rank; the others are sent its drafts.

    Args:
        make_proposer: makes it, from the configuration.
        vllm_config: the engine's configuration.
        device: where drafts are verified.
        req_states: V2's RequestState, whose token buffer says what was sampled.

    Attributes:
        proposer: None on ranks that do not draft.
        draft_lengths: without async scheduling, how many of each request's draft tokens are to be verified; None under
            async scheduling, where all of them are.

    """

    supports_mm_inputs = False
    draft_logits = None

    def __init__(
        self, make_proposer: Callable[[Any], Any], vllm_config: Any, device: torch.device, req_states: Any
    ) -> None:
        self._tp = get_tp_group()
        self.proposer = make_proposer(vllm_config) if self._tp.rank_in_group == 0 else None
        self._req_states = req_states
        self._max_model_len: int = vllm_config.model_config.max_model_len
        self._num_steps: int = vllm_config.speculative_config.num_speculative_tokens
        self._is_async = bool(vllm_config.scheduler_config.async_scheduling)
        num_requests: int = vllm_config.scheduler_config.max_num_seqs
        is_remote = device.type != "cpu"
        self._event = torch.Event(device) if is_remote else None
        self._drafts = torch.zeros(num_requests, self._num_steps, dtype=torch.int64, device=device)
        self._host_drafts = torch.zeros(
            num_requests, self._num_steps, dtype=torch.int64, pin_memory=is_remote
        )
        self._host_sampled = torch.zeros(
            num_requests, self._num_steps + 2, dtype=torch.int32, pin_memory=is_remote
        )
        self._steps = torch.arange(self._num_steps + 1, device=device)
        self._requests: dict[str, Request] = {}
        self._tokens: dict[str, Tokens] = {}
        self._scheduler_output: Any = None
        self.draft_lengths: dict[str, int] | None = None

    def load_model(self, target_model: Any) -> None:
        """See the proposer's."""
        if self.proposer is not None:
            self.proposer.load_model(target_model)

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """There is nothing to capture."""

    def capture(self) -> None:
        """There is nothing to capture."""

    def begin_step(self, scheduler_output: Any) -> None:
        """Take over the requests that a step brings and those that it ends; called before it is run."""
        if self.proposer is None:
            return
        self._scheduler_output = scheduler_output
        for gone in (*scheduler_output.finished_req_ids, *(scheduler_output.preempted_req_ids or ())):
            self._requests.pop(gone, None)
            self._tokens.pop(gone, None)
        for (
            new
        ) in scheduler_output.scheduled_new_reqs:  # requests that were preempted come back as these, too
            self._requests[new.req_id] = Request(
                new.prompt_token_ids,
                new.prompt_embeds,
                new.sampling_params,
                new.lora_request,
                new.mm_features,
            )
            self._tokens[new.req_id] = Tokens(new.prefill_token_ids)

    @torch.inference_mode()
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        next_prefill_tokens: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> torch.Tensor:
        """Return drafts for every request of the batch, int64 (requests, num_speculative_tokens of the configuration).

        A row without a draft repeats the last token. See BaseSpeculator for the arguments.
        """
        n = self._num_steps if num_speculative_tokens is None else num_speculative_tokens
        drafts = self._drafts[: input_batch.num_reqs]
        if dummy_run:
            return drafts
        if self.proposer is not None:
            self._fill(self._sampled(input_batch, num_sampled), input_batch, n)
            if n:
                drafts.copy_(self._host_drafts[: len(drafts)], non_blocking=True)
        if n and self._tp.world_size > 1:
            self._tp.broadcast(drafts, src=0)
        return drafts

    def _sampled(self, input_batch: Any, num_sampled: torch.Tensor) -> list[list[int]]:
        """What each row has just committed; nothing for a part of a prompt."""
        states, rows = self._req_states, input_batch.idx_mapping
        starts = states.total_len.gpu[rows] - num_sampled
        places = (starts[:, None] + self._steps).clamp_(max=self._max_model_len - 1)
        token_ids = states.all_token_ids.gpu[rows[:, None], places]
        host = self._host_sampled[: len(rows)]
        host.copy_(torch.cat([num_sampled[:, None], token_ids], dim=1), non_blocking=True)
        if self._event is not None:
            self._event.record()
            self._event.synchronize()
        return [row[1 : 1 + row[0]] for row in host.tolist()]

    def _fill(self, sampled: list[list[int]], input_batch: Any, n: int) -> None:
        req_ids = input_batch.req_ids
        tokens = [self._tokens[req_id] for req_id in req_ids]
        for known, new in zip(tokens, sampled, strict=True):
            known.extend(new)
        verified = input_batch.num_draft_tokens_per_req
        context = ProposerContext(
            req_ids=list(req_ids),
            requests=self._requests,
            scheduler_output=self._scheduler_output,
            num_spec_tokens=n,
            max_model_len=self._max_model_len,
            num_draft_tokens=None if verified is None else verified.tolist(),
            target_token_ids=None,
            sample_hidden_states=None,
            aux_hidden_states=None,
        )
        assert self.proposer is not None
        found = self.proposer.propose(
            sampled, [known.num for known in tokens], _Rows(tokens), context=context
        )
        if not self._is_async:
            self.draft_lengths = dict(zip(req_ids, map(len, found), strict=True))
        host = self._host_drafts.numpy()
        last = [(draft or new or _NO_TOKEN)[-1] for draft, new in zip(found, sampled, strict=True)]
        host[: len(last)] = np.array(last, dtype=np.int64)[:, None]
        for row, draft in enumerate(found):
            if draft:
                host[row, : len(draft)] = draft
