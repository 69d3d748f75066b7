"""A drafter that has seen nothing, whatever it is told: where a head drafts and no text is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from drafters import NO_DRAFT, Draft


class NoText:
    """The verbs of a drafter, without effect."""

    num_documents: Final = 0
    namespaces: Final = ()

    def start(self, request_id: str, prompt: Any, namespace: str | None = None) -> None:
        pass

    def observe(self, request_id: str, token_ids: Any) -> None:
        pass

    def stop(self, request_id: str) -> None:
        pass

    def propose(self, request_ids: Sequence[str], limits: Sequence[int]) -> list[Draft]:
        return [NO_DRAFT] * len(request_ids)

    def clear(self) -> None:
        pass

    def purge(self, namespace: str) -> int:
        return 0
