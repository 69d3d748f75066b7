"""Shared draft memory: the token text of finished requests, bounded in bytes, oldest documents first out."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from drafters import _suffix_tree_kernels as kernels
from drafters._suffix_tree_kernels import NUM_ORDERS, SEPARATOR

BYTES_PER_TOKEN = 4 * (1 + 2 * NUM_ORDERS)
MIN_TOKENS = 256
_REBASE_AT = 1 << 30  # positions are kept in int32
MAX_BYTES = (1 << 29) * BYTES_PER_TOKEN  # more tokens than this, and rebasing could not keep positions small


def new_store(num_tokens: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Return an empty (text, prev, head) for `num_tokens` tokens, a power of two; pages are touched on use."""
    return (
        np.zeros(num_tokens, dtype=np.int32),
        np.zeros((NUM_ORDERS, num_tokens), dtype=np.int32),
        np.zeros((NUM_ORDERS, num_tokens), dtype=np.int32),
    )


class SharedMemory:
    """A ring of documents with the chains that find contexts in it.

    Args:
        max_bytes: budget; what fits is rounded down to a power of two tokens. 0 keeps nothing.

    Raises:
        ValueError: a budget too small for `MIN_TOKENS` tokens, or beyond `MAX_BYTES`.

    """

    def __init__(self, max_bytes: int) -> None:
        smallest = MIN_TOKENS * BYTES_PER_TOKEN
        if max_bytes != 0 and not smallest <= max_bytes <= MAX_BYTES:
            raise ValueError(
                f"max_bytes must be 0 (share nothing) or within [{smallest}, {MAX_BYTES}], got {max_bytes}"
            )
        self.capacity = 1 << ((max_bytes // BYTES_PER_TOKEN).bit_length() - 1) if max_bytes else 0
        self.store = new_store(max(self.capacity, 1))
        self.tail = 0  # first valid position
        self.end = 0  # one past the last
        self._documents: deque[tuple[int, int]] = deque()

    @property
    def num_bytes(self) -> int:
        """Bytes reserved for the store."""
        return sum(a.nbytes for a in self.store)

    @property
    def num_tokens(self) -> int:
        """Tokens held, separators not counted."""
        return sum(end - start for start, end in self._documents)

    @property
    def num_documents(self) -> int:
        """Documents held."""
        return len(self._documents)

    def add(self, token_ids: NDArray[np.int32]) -> None:
        """Append a document; the oldest ones make room. Of one that is too large, its end is kept."""
        room = self.capacity - 1
        token_ids = token_ids[-room:] if room > 0 else token_ids[:0]
        if len(token_ids) < 2:  # nothing could ever follow a match
            return
        if self.end + len(token_ids) + 1 > _REBASE_AT:
            self._rebase()
        while self.end + len(token_ids) + 1 - self.tail > self.capacity:
            self._documents.popleft()
            self.tail = self._documents[0][0] if self._documents else self.end
        start = self.end
        text, prev, head = self.store
        self.end = kernels._append(text, prev, head, start, start, token_ids)
        self._documents.append((start, self.end))
        i = self.end & (self.capacity - 1)
        text[i] = SEPARATOR
        prev[:, i] = 0
        self.end += 1

    def clear(self) -> None:
        """Forget every document."""
        self.store = new_store(max(self.capacity, 1))  # fresh pages, not yet resident
        self.tail = self.end = 0
        self._documents.clear()

    def _rebase(self) -> None:
        """Shift all positions down by whole rounds of the ring."""
        shift = self.tail // self.capacity * self.capacity
        self.tail -= shift
        self.end -= shift
        self._documents = deque((start - shift, end - shift) for start, end in self._documents)
        head = self.store[2]
        np.maximum(head - shift, 0, out=head)
