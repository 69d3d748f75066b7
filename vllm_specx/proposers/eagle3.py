"""`vllm_specx.AdaptiveEagle3Proposer`: EAGLE-3 with a length chosen every step.

In one worker on model runner V1 it is vLLM's drafter behind ours, as in the hybrid, without a suffix tree. Elsewhere
the name stands for vLLM's drafter driven by `AdaptiveScheduler`, and nothing of this module is used.
"""

from __future__ import annotations

from typing import Any

from vllm_specx.proposers._nothing import NoText
from vllm_specx.proposers.hybrid import HybridProposer


class AdaptiveEagle3Proposer(HybridProposer):
    """Drafts of an EAGLE-3 head alone, per request, on the scale of calibrated reach.

    Args and errors: see HybridProposer.
    """

    def _make_drafter(self) -> Any:
        return NoText()

    def _state(self) -> dict[str, float]:
        return {"specx_drafting_faults": self.faults}
