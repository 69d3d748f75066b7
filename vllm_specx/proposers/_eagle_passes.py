"""vLLM's EAGLE drafter, run as deep as we want it or not at all, with the confidence of each token that it drafts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from vllm_specx.proposers._backlog import Backlog, Unread
from vllm_specx.proposers._pass_times import PassTimes

# Runs vLLM's own drafting for the step: given the number of tokens, returns (rows, tokens).
Run = Callable[[int], Any]
_BACKLOG_BYTES: Final = 64 << 20


# Told the confidences so far, (rows, tokens): whether to draft one more token.
GoOn = Callable[[NDArray[np.float64]], bool]


class _Enough(Exception):
    """Ends vLLM's loop over the passes."""


class EaglePasses:
    """The forward passes of vLLM's drafter.

    The first pass, over what was verified, keeps the drafter's KV cache in step with the target's, also where nothing
    is drafted. Each further token is a pass more. A drafter that sleeps makes no pass; what it has to read then is
    kept, and read in one pass when it is woken.

    Args:
        drafter: vLLM's EagleProposer, its model loaded.

    Attributes:
        seconds: that drafting took in the last step.
        times: what passes take.
        backlog: what it has not read.

    """

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter
        self.seconds = 0.0
        self.times = PassTimes()
        states = drafter.model.model.fc_input_size * drafter.dtype.itemsize
        self.backlog = Backlog(max_tokens=_BACKLOG_BYTES // states)
        self._run: Run | None = None
        self._request_ids: Sequence[str] = ()
        self._is_asleep = False
        self._confidence: list[torch.Tensor] = []
        self._tokens: list[torch.Tensor] = []
        self._depth = 0
        self._go_on: GoOn | None = None
        self._num_read = 0
        self._sampled: list[tuple[float, float]] = []  # when each token's choice began and ended
        if not (drafter.use_local_argmax_reduction or drafter.use_heterogeneous_vocab):
            drafter._greedy_sample = self._greedy_sample
        self._propose = drafter.propose
        drafter.propose = self._read_and_propose

    def begin(self, run: Run, request_ids: Sequence[str]) -> None:
        """A step of these requests has been sampled; `run` drafts for it, once."""
        self._run, self._request_ids = run, request_ids

    def draft(
        self, depth: int, *, asleep: bool = False, go_on: GoOn | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """Draft `depth` tokens, possibly none, for every row.

        Args:
            depth: number of tokens at most.
            asleep: make no pass at all, with depth 0.
            go_on: asked after each token but the last; not asked where tokens are drawn.

        Returns:
            token ids (rows, tokens) and the probabilities of these in the head's own distribution; None for the latter
            where tokens were sampled: how sure the head was must not decide then whether its token is offered.

        """
        run, self._run = self._run, None
        if run is None:
            raise RuntimeError("drafted twice for one step")
        for steps in (self._confidence, self._tokens, self._sampled):
            steps.clear()
        self._is_asleep = asleep and depth == 0
        self._depth, self._go_on = depth, go_on
        start = time.perf_counter()
        try:
            drafts = run(depth)
        except _Enough:
            drafts = torch.stack(self._tokens, dim=1)
        token_ids = drafts.cpu().numpy()
        end = time.perf_counter()
        self.seconds = end - start
        if not self._is_asleep:
            self._learn(start, end, *token_ids.shape)
        if len(self._confidence) != token_ids.shape[1] or not self._confidence:
            return token_ids, None
        return token_ids, self._confidences()

    def finish(self) -> None:
        """Keep the KV cache in step if nothing was drafted (because drafting failed before)."""
        if self._run is not None:
            self.draft(0)

    def _learn(self, start: float, end: float, num_requests: int, depth: int) -> None:
        times = self.times
        if depth == 0:
            times.read.update(self._num_read, end - start)
        elif len(self._sampled) == depth:
            (begun, chosen), (_, last) = self._sampled[0], self._sampled[-1]
            times.read.update(self._num_read, begun - start)
            times.sample.update(num_requests, chosen - begun)
            if depth > 1:
                times.more.update(num_requests, (last - chosen) / (depth - 1))
        else:  # tokens were drawn
            times.more.update(num_requests, (end - start - times.read(self._num_read)) / depth)

    def _read_and_propose(
        self,
        num_speculative_tokens: int,
        target_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        token_indices_to_sample: Any,
        common_attn_metadata: Any,
        **more: Any,
    ) -> torch.Tensor:
        """In place of vLLM's `propose`: keeps its arguments while it sleeps, and adds what was kept later."""
        metadata = common_attn_metadata
        if self._is_asleep or self.backlog.num_tokens:
            now = Unread(
                metadata.query_start_loc_cpu.tolist(),
                target_token_ids.clone(),  # views of buffers that the runner fills again
                target_positions.clone(),
                metadata.slot_mapping.clone(),
                target_hidden_states,
            )
            if self._is_asleep:
                self.backlog.put(self._request_ids, now)
                return next_token_ids.new_empty((len(self._request_ids), 0))
            unread = self.backlog.take(self._request_ids, now, self._drafter.max_num_tokens)
            starts = torch.tensor(unread.starts, dtype=metadata.query_start_loc_cpu.dtype)
            metadata = metadata.replace(
                query_start_loc=starts.to(metadata.query_start_loc.device),
                query_start_loc_cpu=starts,
                num_actual_tokens=unread.starts[-1],
                max_query_len=int(starts.diff().max()),
                slot_mapping=unread.slots,
                _num_computed_tokens_cache=None,
                _token_to_req_indices_cache=None,
            )
            target_token_ids, target_positions = unread.token_ids, unread.positions
            target_hidden_states = unread.states
        self._num_read = len(target_token_ids)
        drafts: torch.Tensor = self._propose(
            num_speculative_tokens=num_speculative_tokens,
            target_token_ids=target_token_ids,
            target_positions=target_positions,
            target_hidden_states=target_hidden_states,
            next_token_ids=next_token_ids,
            token_indices_to_sample=token_indices_to_sample,
            common_attn_metadata=metadata,
            **more,
        )
        return drafts

    def _greedy_sample(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """In place of vLLM's: the same choice without spreading the logits over the whole vocabulary."""
        begun = time.perf_counter()
        model = self._drafter.model
        logits = model.logits_processor(model.lm_head, hidden_states).float()
        highest, choice = logits.max(dim=-1)
        self._confidence.append((highest - logits.logsumexp(dim=-1)).exp())
        offsets = model.draft_id_to_target_id
        choice = choice if offsets is None else choice + offsets[choice]
        self._tokens.append(choice)
        self._sampled.append((begun, time.perf_counter()))
        is_last = len(self._tokens) == self._depth
        if self._go_on is not None and not is_last and not self._go_on(self._confidences()):
            raise _Enough
        return choice

    def _confidences(self) -> NDArray[np.float64]:
        values: NDArray[np.float64] = torch.stack(self._confidence, dim=1).double().cpu().numpy()
        return values
