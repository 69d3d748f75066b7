"""What a drafter is: four verbs over token ids, and the draft they produce.

A drafter knows tokens and nothing of an engine. The engine tells it which tokens the target committed;
it answers, once per step for the whole batch, with a draft per request and how far each is likely to hold.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

RequestId = Hashable


@dataclass(frozen=True, slots=True)
class Draft:
    """A linear draft for one request.

    Attributes:
        token_ids: int32, shape (n,); n may be 0.
        reach: float64, shape (n,); reach[k] is the calibrated probability that the first k+1 draft tokens
            are all accepted, hence non-increasing and within [0, 1].

    """

    token_ids: NDArray[np.int32]
    reach: NDArray[np.float64]

    def __len__(self) -> int:
        """Return n, the number of draft tokens."""
        return len(self.token_ids)


class Drafter(Protocol):
    """The contract between a draft source and whoever drives it."""

    def start(self, request_id: RequestId, prompt_ids: ArrayLike) -> None:
        """Begin a request whose prompt is `prompt_ids` (integers, 1-D, may be empty)."""

    def observe(self, request_id: RequestId, token_ids: ArrayLike) -> None:
        """Append the tokens that the target committed (integers, 1-D) to a request."""

    def propose(self, request_ids: Sequence[RequestId], max_n: int | ArrayLike) -> list[Draft]:
        """Draft up to `max_n` tokens (one number, or one per request) for every request, in order."""

    def stop(self, request_id: RequestId) -> None:
        """End a request, finished or aborted; what it wrote may enter shared memory."""


def checked_limits(request_ids: Sequence[RequestId], max_n: int | ArrayLike, most: int) -> NDArray[np.int64]:
    """Return the longest draft of each request, none above `most`, shape (requests,).

    Raises:
        ValueError, TypeError: no numbers of 64 bits, a negative max_n or one whose entries are not one per request, or
            a repeated request id.

    """
    shape = (len(request_ids),)
    if len(set(request_ids)) != len(request_ids):
        raise ValueError("a request id is repeated")
    if (
        isinstance(max_n, list)
        and {*map(type, max_n)} == {int}
        and min(max_n) >= 0
        and len(max_n) == shape[0]
    ):
        return np.array([min(n, most) for n in max_n], dtype=np.int64)  # as below, but soon
    try:
        limits = np.asarray(max_n, dtype=np.int64)
    except OverflowError as error:
        raise ValueError(f"max_n must be within 64 bits: {error}") from error
    if limits.shape not in ((), shape):
        raise ValueError(f"max_n must be one number or one per request ({shape[0]}), got {limits.shape}")
    limits = np.minimum(np.broadcast_to(limits, shape), most)
    if limits.min(initial=0) < 0:
        raise ValueError(f"max_n must not be negative, got {limits.min()}")
    return np.ascontiguousarray(limits)


def made_drafts(
    rows: NDArray[np.int64],
    length: NDArray[np.int64],
    token_ids: NDArray[np.int32],
    reach: NDArray[np.float64],
) -> list[Draft]:
    """Copies of the drafts that a kernel has left in arrays with a row per slot.

    Args:
        rows: slots, in the order of the drafts.
        length, token_ids, reach: (slots,), (slots, n), (slots, n).

    """
    ids, reaches = token_ids[rows], reach[rows]  # one copy each for all of them
    return [Draft(ids[i, :n], reaches[i, :n]) if n else NO_DRAFT for i, n in enumerate(length[rows].tolist())]


NO_DRAFT: Final = Draft(np.empty(0, dtype=np.int32), np.empty(0))
