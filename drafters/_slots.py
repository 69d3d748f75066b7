"""What the kernels keep for each live request: arrays indexed by its slot."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from drafters import _suffix_tree_kernels as kernels

_FIRST_SLOTS: Final = 8


class Slots:
    """Arrays with a row per slot that grow together, and the slots that are free.

    Rows keep what their last user left: whoever takes a slot sets them.

    Args:
        max_n: most tokens in a draft.

    """

    def __init__(self, max_n: int) -> None:
        """Start without a slot."""
        self.offset = np.zeros(0, dtype=np.int64)  # of the request's region in the live store
        self.capacity = np.zeros(0, dtype=np.int64)  # tokens of it, a power of two; 0 for a free slot
        self.end = np.zeros(0, dtype=np.int64)  # tokens said so far
        self.prompt_end = np.zeros(0, dtype=np.int64)  # how many of them are its prompt
        self.luck = np.zeros(0)  # how often its drafts began rightly of late
        self.anchor = np.zeros(0, dtype=np.int64)  # where in its own text the last draft would go on, or -1
        self.tag = np.zeros(0, dtype=np.int64)  # of its namespace; -1: it reads no shared text
        self.seed = np.zeros(0, dtype=np.int64)
        self.generation = np.zeros(0, dtype=np.int32)  # of its users
        self.length = np.zeros(0, dtype=np.int64)  # of its last draft, 0 once that was judged
        self.token_ids = np.zeros((0, max_n), dtype=np.int32)
        self.reach = np.zeros((0, max_n))
        self.features = np.zeros((0, max_n, kernels.NUM_GROUPS), dtype=np.int16)
        self.leader = np.zeros(0, dtype=np.int64)  # where in its own text the last draft was led from, or -1
        self.source = np.zeros(0, dtype=np.int64)  # the same in the shared text
        self.free: list[int] = []

    def __len__(self) -> int:
        """Return the number of slots, free ones included."""
        return len(self.end)

    @property
    def region(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(offset, capacity), as the kernels take them."""
        return self.offset, self.capacity

    @property
    def namespace(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(tag, seed), as the kernels take them."""
        return self.tag, self.seed

    @property
    def drafts(
        self,
    ) -> tuple[
        NDArray[np.int64],
        NDArray[np.int32],
        NDArray[np.float64],
        NDArray[np.int16],
        NDArray[np.int64],
        NDArray[np.int64],
    ]:
        """(length, token_ids, reach, features, leader, source), as the kernels take them."""
        return self.length, self.token_ids, self.reach, self.features, self.leader, self.source

    def take(self) -> int:
        """Return a free slot. Raises MemoryError; nothing is changed then."""
        if not self.free:
            old = len(self)
            new = max(_FIRST_SLOTS, 2 * old)
            arrays = {name: array for name, array in vars(self).items() if isinstance(array, np.ndarray)}
            for name, grown in {name: _grown(array, new) for name, array in arrays.items()}.items():
                setattr(self, name, grown)  # all of them, or none where there is no memory for all
            self.source[old:] = -1
            self.free.extend(range(new - 1, old - 1, -1))
        return self.free.pop()

    def give_back(self, slot: int) -> None:
        """Make a slot free again."""
        self.source[slot] = -1
        self.capacity[slot] = self.end[slot] = self.length[slot] = 0
        self.token_ids[slot] = 0
        self.generation[slot] += 1  # wraps after 2**32 of them
        self.free.append(slot)


def _grown(array: NDArray[Any], rows: int) -> NDArray[Any]:
    grown = np.zeros((rows, *array.shape[1:]), dtype=array.dtype)
    grown[: len(array)] = array
    return grown
