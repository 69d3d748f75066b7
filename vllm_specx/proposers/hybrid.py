"""`vllm_specx.HybridProposer`: per request and per step the suffix tree's draft, EAGLE-3's, or none.

It is vLLM's method eagle3 with its drafter behind ours: vLLM runs the head, we say how deep, and which draft is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from drafters import Draft
from drafters.head_reach import HeadReach
from vllm_specx.config import ConfigError
from vllm_specx.heads import PLUGIN_MISSING
from vllm_specx.proposers._depth import DepthRule
from vllm_specx.proposers._eagle_passes import EaglePasses, Run
from vllm_specx.proposers._lengths import MeasuredCosts
from vllm_specx.proposers._outcomes import Drafted, no_drafts
from vllm_specx.proposers.suffix_tree import SuffixTreeProposer
from vllm_specx.tuner import Step


class HybridProposer(SuffixTreeProposer):
    """Drafts of the suffix tree and of an EAGLE-3 head on one scale, that of calibrated reach.

    Args:
        vllm_config: the engine's configuration; options come from its additional_config["specx"].
        drafter: vLLM's EagleProposer, its model loaded.

    Raises:
        ConfigError: see SuffixTreeProposer; or vLLM took the name for that of a custom class.

    """

    def __init__(self, vllm_config: Any, drafter: Any = None) -> None:
        if drafter is None:
            raise ConfigError(PLUGIN_MISSING)
        super().__init__(vllm_config)
        assert isinstance(self._policy, MeasuredCosts)  # the plug-in refuses a stated cost, and runner V2
        self._costs = self._policy
        self._passes = EaglePasses(drafter)
        self._head = HeadReach(self.num_speculative_tokens)
        self._depth = DepthRule(self.num_speculative_tokens)
        self._drafted = no_drafts()
        self._is_drawn = vllm_config.speculative_config.draft_sample_method == "probabilistic"
        self._num_prefill = 0  # tokens of prompts in this step
        self._by_head: set[int] = set()  # rows that took the head's draft

    def propose_with(
        self, run: Run, sampled: list[list[int]], num_tokens: Any, token_ids: Any, context: Any
    ) -> list[list[int]]:
        """Return a draft per row, each possibly empty; never raises unless vLLM's drafter does.

        Args:
            run: vLLM's own drafting for this step.
            sampled, num_tokens, token_ids, context: as for `propose`.

        """
        self._passes.begin(run, context.req_ids)
        self._passes.backlog.prune(context.requests)
        try:
            return self.propose(sampled, num_tokens, token_ids, context=context)
        finally:
            self._passes.finish()

    def probabilities(self, probs: torch.Tensor, drafts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return what each draft token was drawn from, for vLLM's rejection sampler: (rows, longest, vocab).

        A token of the suffix tree is certain given what came before it.

        Args:
            probs: (rows, depth, vocab), what the head's tokens were drawn from.
            drafts: what is offered, by row.

        """
        longest = max(map(len, drafts), default=0)
        if longest == 0:
            return probs
        result = probs.new_zeros(len(drafts), longest, probs.shape[-1])
        for row, draft in enumerate(drafts):
            if row in self._by_head:
                result[row, : len(draft)] = probs[row, : len(draft)]
            elif draft:
                result[row, torch.arange(len(draft)), torch.tensor(draft)] = 1.0
        return result

    def reset_memory(self) -> None:
        """Forget shared memory, calibration and what drafts earned; live requests go on."""
        super().reset_memory()
        self._head.clear()
        self._depth.clear()

    def _kind_of(self, row: int, request_id: str) -> str:
        return "eagle3" if row in self._by_head else self.kind

    def _learn(self, step: Step, context: Any, sampled: Sequence[Sequence[int]]) -> None:
        self._num_prefill = step.num_prefill_tokens
        if step.seconds is not None:  # of which the costs are to know verification alone
            step = replace(step, seconds=step.seconds - self._passes.seconds)
        super()._learn(step, context, sampled)
        self._drafted.teach(self._head, context.req_ids, sampled)

    def _draft(
        self, rows: Sequence[int], request_ids: Sequence[str], limits: Sequence[int]
    ) -> Sequence[Draft]:
        self._by_head.clear()
        found = super()._draft(rows, request_ids, limits)
        expected = self._head.expected(self.num_speculative_tokens)
        most = max(limits, default=0)
        lost = self._passes.backlog.lost
        can = np.array(
            [limit > 0 and name not in lost for name, limit in zip(request_ids, limits, strict=True)]
        )
        reaches = [draft.reach for draft in found]
        backlog = self._passes.backlog.num_tokens + self._num_prefill
        depth = self._depth.choose(self._costs, self._passes.times, reaches, expected[:most], can, backlog)

        def go_on(confidence: NDArray[np.float64]) -> bool:
            reach = self._head.reach(confidence[rows])
            hazard = float(expected[reach.shape[1]] / expected[reach.shape[1] - 1])
            return self._depth.goes_on(self._passes.times, reach, hazard, reaches, can)

        # How many tokens are drafted may depend on what the head says of them, but not where they are drawn.
        token_ids, confidence = self._passes.draft(
            most if depth and not self._is_drawn else depth, asleep=self._depth.is_asleep, go_on=go_on
        )
        self._drafted = Drafted(dict(zip(request_ids, rows, strict=True)), token_ids, confidence)
        if token_ids.shape[1] == 0:
            return found
        reach = (
            np.tile(expected[: token_ids.shape[1]], (len(token_ids), 1))
            if confidence is None
            else self._head.reach(confidence)
        )
        worth = self._depth.worth
        if confidence is not None:
            self._depth.note(worth(reach[rows])[can], reach.shape[1])
        chosen = []
        for row, name, draft, limit, other in zip(
            rows, request_ids, found, limits, worth(reaches), strict=True
        ):
            if name in lost:
                chosen.append(draft)
                continue
            own = Draft(token_ids[row, :limit].astype(np.int32), reach[row, :limit])
            if worth([own.reach])[0] > other:
                draft = own
                self._by_head.add(row)
            chosen.append(draft)
        return chosen
