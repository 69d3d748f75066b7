"""The text of live requests: one slab, handed out in regions of a power of two tokens."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from drafters import _index_kernels as kernels
from drafters._ring import new_store

MIN_REGION: Final = 256  # tokens
FIRST_TOKENS = 1 << 18


class LiveStore:
    """A slab of (text, prev, head) with regions in use and regions to use again.

    There is room for `FIRST_TOKENS` tokens to begin with, which is touched here, so that no request waits for pages;
    the slab doubles when it is full.
    """

    def __init__(self) -> None:
        """Reserve and touch the first slab."""
        self.arrays: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]] = new_store(
            FIRST_TOKENS, np.int32
        )
        for array in self.arrays:
            array.fill(0)
        self.used = 0  # tokens of room handed out so far
        self.free: dict[int, list[int]] = {}  # offsets by size

    @property
    def num_bytes(self) -> int:
        """Bytes reserved."""
        return sum(array.nbytes for array in self.arrays)

    def reserve(self, num_tokens: Sequence[int]) -> list[tuple[int, int]]:
        """Return a cleared region (offset, size) of at least so many tokens for each entry.

        Many at once, so that the slab grows once, before anything was written to them. Raises MemoryError where there
        is no more; nothing is changed then.
        """
        sizes = [max(MIN_REGION, 1 << (wanted - 1).bit_length()) for wanted in num_tokens]
        used = self.used + sum(
            size * max(0, number - len(self.free.get(size, ()))) for size, number in Counter(sizes).items()
        )
        if used > len(self.arrays[0]):
            self._grow(used)
        regions = []
        for size in sizes:
            free = self.free.get(size)
            if free:
                offset = free.pop()
                self.arrays[2][:, offset : offset + size] = 0
            else:
                offset = self.used
                self.used += size
            regions.append((offset, size))
        return regions

    def _grow(self, num_tokens: int) -> None:
        bigger = new_store(1 << (num_tokens - 1).bit_length(), np.int32)
        for new, old in zip(bigger, self.arrays, strict=True):
            new[..., : self.used] = old[..., : self.used]
        self.arrays = bigger

    def release(self, offset: int, size: int, end: int) -> None:
        """Take back a region whose first `end` tokens were written; they are overwritten, whoever said them."""
        self.arrays[0][offset : offset + end] = 0
        self.free.setdefault(size, []).append(offset)

    def move(self, region: tuple[int, int], end: int, to: tuple[int, int]) -> None:
        """Move a text of `end` tokens to a reserved region, index it there, and take back the one it had."""
        offset, size = region
        token_ids = self.arrays[0][offset : offset + end].copy()
        self.release(offset, size, end)
        text, prev, head = self.arrays
        lo, hi = to[0], sum(to)
        kernels._append(text[lo:hi], prev[:, lo:hi], head[:, lo:hi], 0, 0, token_ids, 0, 0)
