"""Suffix-tree drafter: what followed the last times this context was seen, here or in earlier answers.

The idea is SuffixDecoding's (Oliaro et al. 2024): match the end of a request's text against everything it
has said and everything that was answered before, and draft what came next. Instead of nodes it keeps hash
chains over the text itself, which visit the same occurrences (see `_suffix_tree_kernels`).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from drafters import _suffix_tree_kernels as kernels
from drafters.calibration import Calibration
from drafters.contract import Draft, RequestId
from drafters.memory import SharedMemory, new_store

_MIN_REGION: Final = 256  # tokens; regions are powers of two
_LUCK_RATE: Final = 0.15
_LUCK_START: Final = 0.5
_USUAL_RATE: Final = 0.1
_PROMPT_TAIL: Final = 16  # prompt tokens kept before a shared output, as the context of its beginning
_MAX_TOKEN_ID: Final = 2**31 - 2


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
    if ids.min() < 0 or ids.max() > _MAX_TOKEN_ID:
        raise ValueError(f"token ids must be within [0, {_MAX_TOKEN_ID}], got {ids.min()}..{ids.max()}")
    return ids.astype(np.int32)  # a copy: the caller's buffer may change before the tokens are indexed


class SuffixTreeDrafter:
    """Draft from a request's own text and from the answers of finished requests.

    Args:
        max_n: most tokens in a draft.
        memory_bytes: budget of the shared memory; 0 shares nothing between requests.
        min_reach: a draft ends where its reach falls below this.

    Raises:
        ValueError: an argument out of range.

    Not thread-safe. Memory: `memory_bytes`, plus 36 bytes for each token of room in live requests.

    """

    def __init__(self, *, max_n: int = 32, memory_bytes: int = 256 << 20, min_reach: float = 0.02) -> None:
        if max_n < 1:
            raise ValueError(f"max_n must be at least 1, got {max_n}")
        if not 0.0 <= min_reach <= 1.0:
            raise ValueError(f"min_reach must be within [0, 1], got {min_reach}")
        self.max_n = max_n
        self.min_reach = min_reach
        self.memory = SharedMemory(memory_bytes)
        self.calibration = Calibration()
        self._slots: dict[RequestId, int] = {}
        self._share: dict[RequestId, bool] = {}
        self._prompt_length: dict[RequestId, int] = {}
        self._pending: list[tuple[int, NDArray[np.int32]]] = []
        self._free_slots: list[int] = []
        self._free_regions: dict[int, list[int]] = {}
        self._used = 0  # tokens of room handed out
        self._live = new_store(_MIN_REGION * 4)
        self._offset, self._capacity, self._end = (np.zeros(0, dtype=np.int64) for _ in range(3))
        self._luck = np.zeros(0)
        self._length = np.zeros(0, dtype=np.int64)
        self._ids = np.zeros((0, max_n), dtype=np.int32)
        self._reach = np.zeros((0, max_n))
        self._features = np.zeros((0, max_n, kernels.NUM_GROUPS), dtype=np.int16)
        self._leader = np.zeros(0, dtype=np.int64)
        self._anchor = np.zeros(0, dtype=np.int64)
        self._usual_luck = _LUCK_START  # of the requests that ended lately: what a new one is taken to have
        self._warm_up()

    def start(self, request_id: RequestId, prompt_ids: ArrayLike, *, share: bool = True) -> None:
        """Begin a request.

        Args:
            request_id: any hashable; must not be live.
            prompt_ids: integers, shape (n,); n may be 0.
            share: False keeps this request from reading and from writing shared memory.

        Raises:
            ValueError, TypeError: the id is live, or the tokens are not valid (see `as_token_ids`).

        """
        if request_id in self._slots:
            raise ValueError(f"request {request_id!r} is already live; stop it first")
        ids = as_token_ids(prompt_ids)
        slot = self._new_slot()
        self._reserve(slot, len(ids) + _MIN_REGION)
        self._end[slot] = 0
        self._luck[slot] = self._usual_luck
        self._anchor[slot] = -1
        self._length[slot] = 0
        self._slots[request_id] = slot
        self._share[request_id] = share
        self._prompt_length[request_id] = len(ids)
        self._pending.append((slot, ids))

    def observe(self, request_id: RequestId, token_ids: ArrayLike) -> None:
        """Append the tokens that the target committed; they also judge the request's last draft.

        Raises:
            KeyError: the request is not live.
            ValueError, TypeError: the tokens are not valid.

        """
        slot = self._slot(request_id)
        self._pending.append((slot, as_token_ids(token_ids)))

    def propose(self, request_ids: Sequence[RequestId], max_n: int | ArrayLike) -> list[Draft]:
        """Draft for every request, in order; see `Drafter.propose`.

        Raises:
            KeyError: a request is not live.
            ValueError: a negative max_n or one whose entries are not one per request, or a repeated request id.

        """
        rows = np.fromiter((self._slot(r) for r in request_ids), dtype=np.int64, count=len(request_ids))
        limits = np.asarray(max_n, dtype=np.int64)
        if limits.shape not in ((), rows.shape):
            raise ValueError(f"max_n must be one number or one per request ({len(rows)}), got {limits.shape}")
        limits = np.minimum(np.broadcast_to(limits, rows.shape), self.max_n)
        if rows.size == 0:
            return []
        if limits.min() < 0:
            raise ValueError(f"max_n must not be negative, got {limits.min()}")
        if len(set(request_ids)) != len(request_ids):
            raise ValueError("a request id is repeated")
        self._flush()
        self._run(rows, np.ascontiguousarray(limits), self._share_of(request_ids))
        return [
            Draft(self._ids[s, : self._length[s]].copy(), self._reach[s, : self._length[s]].copy())
            for s in rows.tolist()
        ]

    def stop(self, request_id: RequestId) -> None:
        """End a request; its output, with the end of its prompt as context, enters shared memory.

        Raises:
            KeyError: the request is not live.

        """
        slot = self._slot(request_id)
        self._flush()
        del self._slots[request_id]
        self._usual_luck += _USUAL_RATE * (float(self._luck[slot]) - self._usual_luck)
        prompt_length = self._prompt_length.pop(request_id)
        if self._share.pop(request_id) and self.memory.capacity and self._end[slot] > prompt_length:
            lo = self._offset[slot]
            self.memory.add(self._live[0][lo + max(0, prompt_length - _PROMPT_TAIL) : lo + self._end[slot]])
        self._release(slot)
        self._end[slot] = 0
        self._free_slots.append(slot)

    def clear(self) -> None:
        """Forget the shared memory and the calibration; live requests go on."""
        self._flush()  # or outcomes from before would be counted after
        self.memory.clear()
        self.calibration.clear()
        self._usual_luck = _LUCK_START

    @property
    def num_live(self) -> int:
        """Number of live requests."""
        return len(self._slots)

    @property
    def num_bytes(self) -> int:
        """Bytes reserved by the shared memory and the live requests together."""
        return self.memory.num_bytes + sum(a.nbytes for a in self._live)

    def _slot(self, request_id: RequestId) -> int:
        try:
            return self._slots[request_id]
        except KeyError:
            raise KeyError(f"request {request_id!r} is not live; start it first") from None

    def _share_of(self, request_ids: Sequence[RequestId]) -> NDArray[np.bool_]:
        return np.fromiter((self._share[r] for r in request_ids), dtype=np.bool_, count=len(request_ids))

    def _run(self, rows: NDArray[np.int64], limits: NDArray[np.int64], share: NDArray[np.bool_]) -> None:
        kernels._propose_batch(
            rows,
            limits,
            share,
            self._live,
            (self._offset, self._capacity),
            self._end,
            self._luck,
            self._anchor,
            self.memory.store,
            self.memory.tail,
            self.memory.end,
            self.calibration.model,
            self.min_reach,
            (self._length, self._ids, self._reach, self._features, self._leader),
        )

    def _flush(self) -> None:
        """Hand the buffered tokens to the kernels in one call."""
        if not self._pending:
            return
        slots = np.fromiter((s for s, _ in self._pending), dtype=np.int64, count=len(self._pending))
        counts = np.fromiter((len(t) for _, t in self._pending), dtype=np.int64, count=len(self._pending))
        needed = self._end.copy()
        np.add.at(needed, slots, counts)
        for slot in np.flatnonzero(needed > self._capacity).tolist():
            self._grow(slot, int(needed[slot]))
        token_ids = np.concatenate([t for _, t in self._pending])
        self._pending.clear()
        kernels._observe_batch(
            slots,
            counts,
            token_ids,
            self._live,
            (self._offset, self._capacity),
            self._end,
            self._luck,
            self._anchor,
            (self._length, self._ids, self._reach, self._features, self._leader),
            self.calibration.model,
            _LUCK_RATE,
        )

    def _new_slot(self) -> int:
        if not self._free_slots:
            old = len(self._end)
            new = max(8, 2 * old)
            for name in (
                "_offset",
                "_capacity",
                "_end",
                "_luck",
                "_length",
                "_ids",
                "_reach",
                "_features",
                "_leader",
                "_anchor",
            ):
                array = getattr(self, name)
                grown = np.zeros((new, *array.shape[1:]), dtype=array.dtype)
                grown[:old] = array
                setattr(self, name, grown)
            self._free_slots.extend(range(new - 1, old - 1, -1))
        return self._free_slots.pop()

    def _reserve(self, slot: int, num_tokens: int) -> None:
        """Give a slot a cleared region of at least num_tokens, a power of two."""
        size = max(_MIN_REGION, 1 << (num_tokens - 1).bit_length())
        free = self._free_regions.get(size)
        if free:
            offset = free.pop()
            self._live[2][:, offset : offset + size] = 0
        else:
            offset = self._used
            self._used += size
            if self._used > len(self._live[0]):
                bigger = new_store(max(self._used, 2 * len(self._live[0])))
                for new, old in zip(bigger, self._live, strict=True):
                    new[..., :offset] = old[..., :offset]
                self._live = bigger
        self._offset[slot], self._capacity[slot] = offset, size

    def _release(self, slot: int) -> None:
        self._free_regions.setdefault(int(self._capacity[slot]), []).append(int(self._offset[slot]))
        self._capacity[slot] = 0

    def _grow(self, slot: int, num_tokens: int) -> None:
        """Move a slot to a larger region and index its text again there."""
        lo, end = self._offset[slot], self._end[slot]
        token_ids = self._live[0][lo : lo + end].copy()
        self._release(slot)
        self._reserve(slot, num_tokens + _MIN_REGION)
        text, prev, head = self._live
        lo, hi = self._offset[slot], self._offset[slot] + self._capacity[slot]
        kernels._append(text[lo:hi], prev[:, lo:hi], head[:, lo:hi], 0, 0, token_ids)

    def _warm_up(self) -> None:
        """Compile (or load) every kernel with the types that serving uses, so that no step ever waits for it."""
        memory, self.memory = self.memory, SharedMemory(1 << 16)
        for request in range(2):
            self.start(request, [1, 2, 3, 1, 2])
            self.propose([request], self.max_n)
            self.observe(request, [3, 1] * _MIN_REGION)  # grows: that has a kernel signature of its own
            self.stop(request)
        self.memory = memory
        self.calibration.clear()
        self._usual_luck = _LUCK_START
