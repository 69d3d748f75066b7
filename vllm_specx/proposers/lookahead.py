"""`vllm_specx.LookaheadProposer`: n-grams of the target's own Jacobi trajectory, through vLLM's custom_class hook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drafters import LookaheadDrafter
from vllm_specx.config import SpecxConfig
from vllm_specx.proposers._base import DrafterProposer, Offered, RunsOnV2
from vllm_specx.tuner import Step


class LookaheadProposer(RunsOnV2, DrafterProposer):
    """Draft from the n-grams that a request's own verification passes went through; no draft weights.

    Args:
        vllm_config: the engine's configuration; options come from its additional_config["specx"].

    Raises:
        ConfigError: options or draft length that cannot be honoured.

    """

    kind = "lookahead"
    wants_target_token_ids = True

    def _make_drafter(self) -> Any:
        return make_lookahead(self._options, self.num_speculative_tokens)

    def _learn(self, step: Step, context: Any, sampled: Sequence[Sequence[int]]) -> None:
        super()._learn(step, context, sampled)
        tell_choices(self.drafter, context, sampled, self._offered)


def make_lookahead(options: SpecxConfig, max_n: int) -> LookaheadDrafter:
    """The drafter that the options ask for."""
    return LookaheadDrafter(
        max_n=max_n,
        window=options.lookahead_window,
        ngram=options.lookahead_ngram,
        candidates=options.lookahead_candidates,
        shared=options.lookahead_shared,
        from_prompt=options.lookahead_prompt,
    )


def tell_choices(
    drafter: Any, context: Any, sampled: Sequence[Sequence[int]], offered: Mapping[str, Offered]
) -> None:
    """Hand each request's drafter what the target chose at the positions of its draft.

    Args:
        drafter: has `verified`.
        context: ProposerContext of the step.
        sampled: tokens that each row has just committed.
        offered: drafts of the step, by request.

    """
    counts = context.num_draft_tokens
    if counts is None or context.target_token_ids is None:  # nothing was verified; or model runner V2
        return
    choices = context.target_token_ids.tolist()
    at = 0
    for request_id, count, new in zip(context.req_ids, counts, sampled, strict=True):
        # vLLM pads a request that comes from the prefix cache with drafts of -1: these are not ours.
        if new and count and request_id in offered and count <= len(offered[request_id].reach):
            drafter.verified(request_id, choices[at : at + count + 1])
        at += count + 1
