"""Token ids at the door: what is taken for some."""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_TOKEN_ID: Final = 2**31 - 2
_FEW: Final = 32
_INT: Final = {int}
_NONE: Final = np.empty(0, dtype=np.int32)
NOTHING: Final = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), _NONE)  # is pending


def as_token_ids(token_ids: ArrayLike) -> NDArray[np.int32]:
    """Return `token_ids` as int32 of shape (n,).

    Raises:
        ValueError: not one-dimensional, or an id that is negative or beyond int32.
        TypeError: not integers.

    """
    ids = np.asarray(token_ids)
    if ids.size == 0:
        return np.empty(0, dtype=np.int32)
    if ids.ndim != 1:
        raise ValueError(f"token ids must be one-dimensional, got shape {ids.shape}")
    if ids.dtype.kind not in "iu":
        raise TypeError(f"token ids must be integers, got {ids.dtype}")
    few = ids.tolist() if ids.size <= _FEW else None  # Python is faster with those
    low, high = (ids.min(), ids.max()) if few is None else (min(few), max(few))
    if low < 0 or high > MAX_TOKEN_ID:
        raise ValueError(f"token ids must be within [0, {MAX_TOKEN_ID}], got {low}..{high}")
    return ids.astype(np.int32)  # a copy: the caller's buffer may change before the tokens are indexed


class Pending:
    """Tokens of many slots, in the order in which they came, until a kernel takes them in one call."""

    def __init__(self) -> None:
        """Start empty."""
        self.clear()

    def __len__(self) -> int:
        """Return how often something was added."""
        return len(self._slots)

    def clear(self) -> None:
        """Forget what was added."""
        self._slots: list[int] = []
        self._counts: list[int] = []
        self._few: list[int] = []
        self._parts: list[NDArray[np.int32]] = []

    def add(self, slot: int, token_ids: ArrayLike) -> None:
        """Append tokens to a slot's. Raises as `as_token_ids` does."""
        if isinstance(token_ids, list) and len(token_ids) <= _FEW and {*map(type, token_ids)} <= _INT:
            # What a step commits: numpy would take longer to look at it than all the rest.
            if token_ids and (min(token_ids) < 0 or max(token_ids) > MAX_TOKEN_ID):
                as_token_ids(token_ids)  # says what is wrong
            self._few += token_ids
            self._counts.append(len(token_ids))
        else:
            ids = as_token_ids(token_ids)
            self._close_part()
            self._parts.append(ids)
            self._counts.append(len(ids))
        self._slots.append(slot)

    def take(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """Return slots, how many tokens of each, and these, int32; start anew."""
        if not self._slots:
            return NOTHING
        self._close_part()
        parts = self._parts
        token_ids = parts[0] if len(parts) == 1 else np.concatenate([_NONE, *parts])
        taken = np.array(self._slots, dtype=np.int64), np.array(self._counts, dtype=np.int64), token_ids
        self.clear()
        return taken

    def _close_part(self) -> None:
        if self._few:
            self._parts.append(np.array(self._few, dtype=np.int32))
            self._few = []
