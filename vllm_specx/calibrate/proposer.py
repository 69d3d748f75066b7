"""Drafts whose only purpose is to be verified."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vllm_specx.proposers._lengths import StepMeter
from vllm_specx.tuner import Step


class FixedLengthProposer:
    """Offer every request the same number of random tokens, and note what each step took. For measuring only.

    Verification costs the same whatever the tokens are; random ones are hardly ever accepted, so that all requests
    stay about as long as one another.

    Args:
        vocab_size: drafts are within [0, vocab_size).
        meter: measures the steps as they are measured in service.

    """

    wants_context = True

    def __init__(self, vocab_size: int, meter: StepMeter | None = None) -> None:
        self.num_drafts = 0  # of each request, from the next call on
        self._vocab_size = vocab_size
        self._meter = meter or StepMeter()
        self._rng = np.random.default_rng(0)
        self._steps: list[Step] = []

    def take_steps(self) -> list[Step]:
        """Return the steps since the last call of this."""
        steps, self._steps = self._steps, []
        return steps

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
        context: Any = None,
    ) -> list[list[int]]:
        """Return `num_drafts` tokens for each row that decodes; see `SuffixTreeProposer.propose`."""
        self._steps.append(self._meter.measure(context, sampled_token_ids))
        most = min(self.num_drafts, context.num_spec_tokens)
        drafts = self._rng.integers(self._vocab_size, size=(len(sampled_token_ids), most)).tolist()
        return [
            # One place is left for the bonus token.
            draft[: max(0, context.max_model_len - int(num_tokens_no_spec[row]) - 1)] if tokens else []
            for row, (draft, tokens) in enumerate(zip(drafts, sampled_token_ids, strict=True))
        ]
