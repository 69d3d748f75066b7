"""Two drafters at work for each request: the draft that promises more is taken."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from drafters.contract import Draft, RequestId
from drafters.lookahead import LookaheadDrafter
from drafters.suffix_tree import SuffixTreeDrafter

_ENOUGH: Final = 1.0  # tokens above the price with which the first draft is taken unseen
_MARGIN: Final = 1.25  # of two promises the higher one is likelier to be too high


class FallbackDrafter:
    """The suffix tree's draft, or Lookahead's where that one is worth little and this clearly more.

    Args:
        first: whose draft is taken where both are worth the same.
        second: the other one.

    Attributes:
        price: what a draft token has to promise, in tokens; a draft is worth what its tokens promise above it.

    """

    def __init__(self, first: SuffixTreeDrafter, second: LookaheadDrafter) -> None:
        self.first, self.second = first, second
        self.price = 0.0
        self._by_second: set[RequestId] = set()

    def start(self, request_id: RequestId, prompt_ids: ArrayLike, *, namespace: str | None) -> None:
        """See the drafters'."""
        self.first.start(request_id, prompt_ids, namespace=namespace)
        try:
            self.second.start(request_id, prompt_ids, namespace=namespace)
        except MemoryError:
            self.first.stop(request_id)
            raise

    def verified(self, request_id: RequestId, choice_ids: ArrayLike) -> None:
        """See `LookaheadDrafter.verified`; the choices after another draft are not of its trajectory."""
        if request_id in self._by_second:
            self.second.verified(request_id, choice_ids)

    def is_second(self, request_id: RequestId) -> bool:
        """Whether the last draft was the second drafter's."""
        return request_id in self._by_second

    def observe(self, request_id: RequestId, token_ids: ArrayLike) -> None:
        """See the drafters': each judges the draft that it made, whether it was taken or not."""
        self.first.observe(request_id, token_ids)
        self.second.observe(request_id, token_ids)

    def propose(self, request_ids: Sequence[RequestId], max_n: int | ArrayLike) -> list[Draft]:
        """See `Drafter.propose`."""
        self._by_second.clear()
        drafts = self.first.propose(request_ids, max_n)
        worth = [self._worth(draft) for draft in drafts]
        asked = [i for i, tokens in enumerate(worth) if tokens < _ENOUGH]
        if asked:
            limits = np.broadcast_to(max_n, (len(drafts),))[asked]
            others = self.second.propose([request_ids[i] for i in asked], limits)
            for i, other in zip(asked, others, strict=True):
                if self._worth(other) > _MARGIN * worth[i]:
                    drafts[i] = other
                    self._by_second.add(request_ids[i])
        return drafts

    def stop(self, request_id: RequestId) -> None:
        """See the drafters'."""
        self._by_second.discard(request_id)
        self.first.stop(request_id)
        self.second.stop(request_id)

    def purge(self, namespace: str) -> int:
        """See the drafters'; returns the number of answers."""
        self.second.purge(namespace)
        return self.first.purge(namespace)

    def clear(self) -> None:
        """See the drafters'."""
        self.first.clear()
        self.second.clear()

    @property
    def num_documents(self) -> int:
        """Number of answers in shared memory."""
        return self.first.num_documents

    @property
    def namespaces(self) -> list[str]:
        """Names of all namespaces in use."""
        return [*{*self.first.namespaces, *self.second.namespaces}]

    def _worth(self, draft: Draft) -> float:
        # Short rows: Python is faster than numpy here.
        return sum((r - self.price for r in draft.reach.tolist() if r > self.price), 0.0)
