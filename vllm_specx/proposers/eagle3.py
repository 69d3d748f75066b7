"""`vllm_specx.AdaptiveEagle3Proposer`: EAGLE-3 with a length chosen every step.

In one worker on model runner V1 it is vLLM's drafter behind ours, as in the hybrid, without a suffix tree. Elsewhere
the name stands for vLLM's drafter driven by `AdaptiveScheduler`, and nothing of this module is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from drafters import Draft
from vllm_specx.proposers.hybrid import HybridProposer


class AdaptiveEagle3Proposer(HybridProposer):
    """Drafts of an EAGLE-3 head alone, per request, on the scale of calibrated reach.

    Args and errors: see HybridProposer.
    """

    def _make_drafter(self) -> Any:
        return _Nothing()


class _Nothing:
    """A drafter that has seen nothing, whatever it is told."""

    def __init__(self) -> None:
        self.memory = SimpleNamespace(num_documents=0, namespaces=())

    def start(self, request_id: str, prompt: Any, namespace: str | None = None) -> None:
        pass

    def observe(self, request_id: str, token_ids: Any) -> None:
        pass

    def stop(self, request_id: str) -> None:
        pass

    def propose(self, request_ids: Sequence[str], limits: Sequence[int]) -> list[Draft]:
        return [Draft(np.empty(0, dtype=np.int32), np.empty(0))] * len(request_ids)

    def clear(self) -> None:
        pass

    def purge(self, namespace: str) -> int:
        return 0
