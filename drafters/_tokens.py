"""Token ids at the door: what is taken for some."""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_TOKEN_ID: Final = 2**31 - 2
_FEW: Final = 32


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
