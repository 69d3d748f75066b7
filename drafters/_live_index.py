"""Where what live requests answer can be found by others of their namespace."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from drafters._index_kernels import NUM_ORDERS

NUM_ENTRIES: Final = 1 << 16  # tokens of answers: the latest


class LiveIndex:
    """Entries for the latest tokens of live requests, with the chains that find contexts among them.

    Args:
        num_entries: a power of two; 0: nothing is found.

    Attributes:
        entries: (slot, generation, position, prev, head, count), as `_link` takes them.

    """

    def __init__(self, num_entries: int) -> None:
        """Reserve and touch the arrays."""
        slot, generation, position = (np.full(num_entries, -1, dtype=np.int32) for _ in range(3))
        prev = np.full((NUM_ORDERS, num_entries), 0, dtype=np.int32)
        head = np.full((NUM_ORDERS, num_entries), 0, dtype=np.int64)  # np.zeros would not touch it
        self.entries = slot, generation, position, prev, head, np.zeros(1, dtype=np.int64)

    @property
    def num_bytes(self) -> int:
        """Bytes reserved."""
        return sum(array.nbytes for array in self.entries)

    def forget(self, slots: NDArray[np.bool_] | None = None) -> None:
        """Forget what the users of these slots said so far (bool, by slot); of all of them if not given."""
        slot = self.entries[0]
        if slots is None:
            slot[:] = -1
        elif len(slots):
            slot[slots[slot] & (slot >= 0)] = -1
