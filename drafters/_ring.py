"""The shared text: a ring of tagged tokens with the chains that find contexts in it."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from drafters import _index_kernels as kernels
from drafters._index_kernels import NUM_ORDERS, SEPARATOR
from drafters._namespaces import Namespace

BYTES_PER_TOKEN: Final = 8 + 4 * 2 * NUM_ORDERS + 4  # text, chains, credit
_PAGE: Final = 4096  # bytes
_REBASE_AT = 1 << 30  # positions are kept in int32


def new_store(
    num_tokens: int, token_type: type[Any]
) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.int32]]:
    """Return an empty (text, prev, head) for `num_tokens` tokens; pages are touched on use."""
    return (
        np.zeros(num_tokens, dtype=token_type),
        np.zeros((NUM_ORDERS, num_tokens), dtype=np.int32),
        np.zeros((NUM_ORDERS, num_tokens), dtype=np.int32),
    )


class Ring:
    """Texts one after the other, each followed by a separator; the oldest positions are given up first.

    Args:
        capacity: positions, a power of two, or 0.

    Attributes:
        store: (text int64, prev, head), as the kernels take them.
        credit: int32, by index: what was earned from each position since it was written.
        tail: the first valid position.
        end: one past the last.

    """

    def __init__(self, capacity: int) -> None:
        """Reserve the ring; pages are touched as it fills."""
        self.capacity = capacity
        self.store = new_store(max(capacity, 1), np.int64)
        self.credit = np.zeros(max(capacity, 1), dtype=np.int32)
        self.tail = 0
        self.end = 0

    @property
    def num_bytes(self) -> int:
        """Bytes reserved."""
        return sum(array.nbytes for array in self.store) + self.credit.nbytes

    def touch(self) -> None:
        """Make all pages resident: a fresh huge page costs milliseconds, whenever it is met."""
        for array in (*self.store, self.credit):
            array.reshape(-1)[:: _PAGE // array.itemsize] += 0

    def append(self, token_ids: NDArray[np.int32], namespace: Namespace) -> tuple[int, int]:
        """Append a text, for which there must be room, and a separator; return (start, end) of the text."""
        text, prev, head = self.store
        start = self.end
        end: int = kernels._append(text, prev, head, start, start, token_ids, namespace.tag, namespace.seed)
        i = end & (self.capacity - 1)
        text[i] = SEPARATOR
        prev[:, i] = 0
        self.end = end + 1
        return start, end

    def text(self, start: int, end: int) -> NDArray[np.int64]:
        """Tagged tokens at positions start..end-1; their low halves are the ids."""
        return _joined(self._parts(self.store[0], start, end), self.store[0])

    def credits(self, start: int, end: int) -> NDArray[np.int32]:
        """What was earned from positions start..end-1."""
        return _joined(self._parts(self.credit, start, end), self.credit)

    def take_credit(self, start: int, end: int) -> int:
        """Return what was earned from positions start..end-1 together, and count from zero again."""
        total = 0
        for part in self._parts(self.credit, start, end):
            earned = int(part.sum(dtype=np.int64))
            if earned:  # or pages would be touched for nothing
                total += earned
                part[:] = 0
        return total

    def wipe(self, start: int, end: int) -> None:
        """Overwrite positions start..end-1 with separators."""
        for part in self._parts(self.store[0], start, end):
            part[:] = SEPARATOR

    def rebase(self, num_positions: int) -> int:
        """Shift positions down by whole rounds if so many more would outgrow int32; return by how much."""
        if self.end + num_positions <= _REBASE_AT:
            return 0
        shift = self.tail // self.capacity * self.capacity
        self.tail -= shift
        self.end -= shift
        head = self.store[2]
        np.maximum(head - shift, 0, out=head)
        return shift

    def _parts(self, array: NDArray[Any], start: int, end: int) -> list[NDArray[Any]]:
        """Views of what an array of the ring has for positions start..end-1."""
        if start == end:
            return []
        lo = start & (self.capacity - 1)
        hi = lo + end - start
        return [array[lo:hi]] if hi <= self.capacity else [array[lo:], array[: hi - self.capacity]]


def _joined(parts: list[NDArray[Any]], like: NDArray[Any]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate([like[:0], *parts])
