"""Suffix-tree drafter: what followed the last times this context was seen, here or in earlier answers.

The idea is SuffixDecoding's (Oliaro et al. 2024): match the end of a request's text against everything it
has said and everything that was answered before, and draft what came next. Instead of nodes it keeps hash
chains over the text itself, which visit the same occurrences (see `_suffix_tree_kernels`).
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from drafters import _suffix_tree_kernels as kernels
from drafters import memory_file
from drafters._index_kernels import PROMPT_TAIL
from drafters._live_index import NUM_ENTRIES, LiveIndex
from drafters._live_store import MIN_REGION, LiveStore
from drafters._namespaces import COMMON, Namespace, check_name
from drafters._prior import WEIGHTS
from drafters._slots import Slots
from drafters._tokens import NOTHING, Pending, as_token_ids
from drafters.calibration import Calibration
from drafters.contract import Draft, RequestId, checked_limits, made_drafts
from drafters.memory import SharedMemory
from drafters.memory_file import Snapshot

_LUCK_RATE: Final = 0.15
_LUCK_START: Final = 0.5
_USUAL_RATE: Final = 0.1


@dataclass(slots=True)
class _Request:
    slot: int
    prompt_length: int
    namespace: Namespace | None  # None: it shares nothing


class SuffixTreeDrafter:
    """Draft from a request's own text and from the answers of its namespace, finished ones and those under way.

    Namespaces keep texts apart. What is learned from outcomes, the weights of reach and the luck that a new request is
    taken to have, is one for all: it holds statistics of acceptance and no text. Those of single tokens are hashed by
    the namespace's seed.

    Args:
        max_n: most tokens in a draft.
        memory_bytes: budget of the shared memory; 0 shares nothing between requests.
        min_reach: a draft ends where its reach falls below this.
        ttl: seconds after which an answer is not drafted from any more (at most a second late); None: no limit.
        clock: returns seconds that never go back.
        new_seed: returns an int within [0, 2**63) for each new namespace; secret ones unless given (for tests).

    Raises:
        ValueError: an argument out of range.

    Not thread-safe. Memory: `memory_bytes` and the records of up to one document per 16 tokens of it (about 400 bytes
    each), plus 36 bytes for each token of room in live requests, 9 MiB of which are there from the start, and 4 MiB to
    find what they say.

    """

    def __init__(
        self,
        *,
        max_n: int = 32,
        memory_bytes: int = 256 << 20,
        min_reach: float = 0.003,
        ttl: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        new_seed: Callable[[], int] | None = None,
    ) -> None:
        """Reserve memory and compile the kernels."""
        if max_n < 1:
            raise ValueError(f"max_n must be at least 1, got {max_n}")
        if not 0.0 <= min_reach <= 1.0:
            raise ValueError(f"min_reach must be within [0, 1], got {min_reach}")
        self.max_n = max_n
        self.min_reach = min_reach
        self.memory = SharedMemory(memory_bytes, ttl=ttl, clock=clock, new_seed=new_seed)
        self._clock = clock
        self.calibration = Calibration(WEIGHTS, kernels.NUM_FEATURES)
        self._requests: dict[RequestId, _Request] = {}
        self._slots = Slots(max_n)
        self._live = LiveStore()
        self._index = LiveIndex(NUM_ENTRIES if memory_bytes else 0)
        self._pending = Pending()
        self.num_hits = 0  # drafts that were led by an earlier answer
        # Told of each answer that `stop` shares: a view of its tokens, to be copied, and its namespace.
        self.on_answer: Callable[[NDArray[np.int32], str], None] | None = None
        self._usual_luck = _LUCK_START  # of the requests that ended lately: what a new one is taken to have
        self._warm_up()

    def start(self, request_id: RequestId, prompt_ids: ArrayLike, *, namespace: str | None = COMMON) -> None:
        """Begin a request.

        Args:
            request_id: any hashable; must not be live.
            prompt_ids: integers, shape (n,); n may be 0.
            namespace: it reads what requests of this namespace said, and they what it will have said; None: it
                neither reads nor writes shared memory.

        Raises:
            ValueError, TypeError: the id is live, the tokens are not valid (see `as_token_ids`), or the namespace
                is not a str.

        """
        if request_id in self._requests:
            raise ValueError(f"request {request_id!r} is already live; stop it first")
        ids = as_token_ids(prompt_ids)
        name = None if namespace is None else check_name(namespace)
        slots = self._slots
        slot = slots.take()
        space = None if name is None else self.memory.namespaces.acquire(name)
        slots.prompt_end[slot] = len(ids)
        slots.luck[slot] = self._usual_luck
        slots.anchor[slot] = -1
        slots.tag[slot], slots.seed[slot] = (-1, 0) if space is None else (space.tag, space.seed)
        self._requests[request_id] = _Request(slot, len(ids), space)
        self._pending.add(slot, ids)

    def observe(self, request_id: RequestId, token_ids: ArrayLike) -> None:
        """Append the tokens that the target committed; they also judge the request's last draft.

        Raises:
            KeyError: the request is not live.
            ValueError, TypeError: the tokens are not valid.

        """
        self._pending.add(self._request(request_id).slot, token_ids)

    def propose(self, request_ids: Sequence[RequestId], max_n: int | ArrayLike) -> list[Draft]:
        """Draft for every request, in order; see `Drafter.propose`.

        Raises:
            KeyError: a request is not live.
            ValueError: a negative max_n or one whose entries are not one per request, or a repeated request id.

        """
        rows = np.fromiter(
            (self._request(r).slot for r in request_ids), dtype=np.int64, count=len(request_ids)
        )
        limits = checked_limits(request_ids, max_n, self.max_n)
        if rows.size == 0:
            return []
        if self.memory.ttl is not None:
            self._flush()  # what is led by a text that goes now was told before
            self.memory.expire(sources=self._slots.source)
        self._run(rows, limits)
        return made_drafts(rows, self._slots.length, self._slots.token_ids, self._slots.reach)

    def stop(self, request_id: RequestId) -> None:
        """End a request; its output, with the end of its prompt as context, enters shared memory.

        Raises:
            KeyError: the request is not live.

        """
        request = self._request(request_id)
        self._flush()
        del self._requests[request_id]
        slots, slot = self._slots, request.slot
        self._usual_luck += _USUAL_RATE * (float(slots.luck[slot]) - self._usual_luck)
        offset, size, end = int(slots.offset[slot]), int(slots.capacity[slot]), int(slots.end[slot])
        slots.give_back(slot)  # before the document is added: it pins nothing any more
        self.memory.expire(sources=slots.source)
        if request.namespace is not None:
            if end > request.prompt_length:
                begin = offset + max(0, request.prompt_length - PROMPT_TAIL)
                answer, name = self._live.arrays[0][begin : offset + end], request.namespace.name
                self.memory.add(answer, name, sources=slots.source)
                if self.on_answer is not None:
                    self.on_answer(answer, name)
            self.memory.namespaces.release(request.namespace)
        self._live.release(offset, size, end)

    def add_document(
        self, token_ids: ArrayLike, namespace: str = COMMON, *, credit: int = 0, age: float | None = None
    ) -> bool:
        """Add a text to shared memory, as if a request had said it; return whether it is held.

        Args:
            token_ids: integers, shape (n,). Of a text that is larger than the memory its end is kept.
            namespace: whose requests may read it.
            credit: what it has earned elsewhere.
            age: seconds since it was said elsewhere; None: it is said now. See `SharedMemory.add`.

        Raises:
            ValueError, TypeError: the tokens are not valid, or the namespace is not a str.

        """
        ids = as_token_ids(token_ids)
        name = check_name(namespace)
        self._flush()
        birth = None if age is None else self._clock() - age
        return self.memory.add(ids, name, sources=self._slots.source, credit=credit, birth=birth) is not None

    def leading(self, turn: int) -> tuple[NDArray[np.int32], int, str, int] | None:
        """What a live request's last draft was led by: see `SharedMemory.find`; None if by nothing shared.

        Args:
            turn: which request; those that are live take turns.

        """
        source = self._slots.source
        position = int(source[turn % len(source)]) if len(source) else -1
        return None if position < 0 else self.memory.find(position)

    def purge(self, namespace: str) -> int:
        """Overwrite all that the shared memory holds of a namespace; return how many documents.

        Live requests go on. What they have said is their own until they end, and is shared then: to forget that too,
        purge again.

        Raises:
            TypeError: the namespace is not a str.

        """
        name = check_name(namespace)
        self._flush()
        space = self.memory.namespaces.get(name)
        if space is not None:
            self._index.forget(self._slots.tag == space.tag)
        return self.memory.purge(name, sources=self._slots.source)

    def clear(self) -> None:
        """Forget the shared memory and the calibration; live requests go on."""
        self._flush()  # or outcomes from before would be counted after
        self.memory.clear(sources=self._slots.source)
        self._index.forget()
        self.calibration.clear()
        self._usual_luck = _LUCK_START

    def snapshot(self) -> Snapshot:
        """Copy what the shared memory holds, for `memory_file.write`, which needs nothing else of the drafter."""
        self._flush()  # or credits would lag behind
        self.memory.expire(sources=self._slots.source, at_once=True)
        return self.memory.snapshot()

    def save(self, path: str | os.PathLike[str], *, fingerprint: str = "") -> None:
        """Write the shared memory to a file, readable by its owner only.

        Args:
            path: of the file; one that is there already is replaced once the new one is complete.
            fingerprint: of the vocabulary that the token ids belong to.

        Raises:
            OSError: it could not be written; an older file is as it was.

        """
        memory_file.write(path, self.snapshot(), fingerprint)

    def load(self, path: str | os.PathLike[str], *, fingerprint: str = "") -> int:
        """Add a saved shared memory to this one, with its ages and credits; return how many documents.

        What has expired is left out, and if not all fits, what is of value and then the newest is taken.

        Args:
            path: of the file.
            fingerprint: must be the one that the file was saved with.

        Raises:
            MemoryFileError: it is not a memory file, damaged or for another fingerprint; the memory is as it was.
            OSError: it cannot be read.

        """
        snapshot = memory_file.read(path, fingerprint)
        self._flush()
        return self.memory.restore(snapshot, sources=self._slots.source)

    @property
    def num_live(self) -> int:
        """Number of live requests."""
        return len(self._requests)

    @property
    def num_documents(self) -> int:
        """Number of answers in shared memory."""
        return self.memory.num_documents

    @property
    def namespaces(self) -> list[str]:
        """Names of all namespaces in use."""
        return [namespace.name for namespace in self.memory.namespaces]

    @property
    def num_bytes(self) -> int:
        """Bytes reserved by the shared memory and the live requests together."""
        return self.memory.num_bytes + self._live.num_bytes + self._index.num_bytes

    def _request(self, request_id: RequestId) -> _Request:
        try:
            return self._requests[request_id]
        except KeyError:
            raise KeyError(f"request {request_id!r} is not live; start it first") from None

    def _run(self, rows: NDArray[np.int64], limits: NDArray[np.int64]) -> None:
        """Hand the buffered tokens to the kernels, and draft, in one call if there is room for them."""
        pending = self._pending.take()
        num_led = self._step(pending, rows, limits)
        if num_led < 0:
            self._observe(*pending)
            num_led = self._step(NOTHING, rows, limits)
        self.num_hits += num_led

    def _step(
        self,
        pending: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]],
        rows: NDArray[np.int64],
        limits: NDArray[np.int64],
    ) -> int:
        slots, ring = self._slots, self.memory.ring
        num_led: int = kernels._step(
            pending,
            rows,
            limits,
            self._live.arrays,
            slots.region,
            slots.end,
            slots.prompt_end,
            slots.luck,
            slots.anchor,
            slots.namespace,
            slots.generation,
            self._index.entries,
            ring.store,
            ring.tail,
            ring.end,
            ring.credit,
            self.calibration.model,
            _LUCK_RATE,
            self.min_reach,
            slots.drafts,
        )
        return num_led

    def _flush(self) -> None:
        """Hand the buffered tokens to the kernels. Raises as `_observe` does."""
        if self._pending:
            self._observe(*self._pending.take())

    def _observe(
        self, rows: NDArray[np.int64], counts: NDArray[np.int64], token_ids: NDArray[np.int32]
    ) -> None:
        """Append tokens, `counts[i]` of them to slot `rows[i]`, in one call.

        Raises MemoryError where a request's have no room; those of the others are taken.
        """
        slots = self._slots
        room = slots.capacity[rows]
        homeless: list[int] = []
        if (
            not room.all() or (slots.end[rows] + len(token_ids) > room).any()
        ):  # at most so many go to one slot
            needed = slots.end.copy()
            np.add.at(needed, rows, counts)
            homeless = self._grow(needed, rows)
            if homeless:
                kept = ~np.isin(rows, homeless)
                token_ids = token_ids[np.repeat(kept, counts)]
                rows, counts = rows[kept], counts[kept]
        kernels._observe_batch(
            rows,
            counts,
            token_ids,
            self._live.arrays,
            slots.region,
            slots.end,
            slots.prompt_end,
            slots.luck,
            slots.anchor,
            slots.namespace,
            slots.generation,
            self._index.entries,
            slots.drafts,
            self.memory.ring.credit,
            self.calibration.model,
            _LUCK_RATE,
        )
        if homeless:
            raise MemoryError(f"no room for the tokens of {len(homeless)} requests")

    def _grow(self, needed: NDArray[np.int64], rows: NDArray[np.int64]) -> list[int]:
        """Give a region to each slot of `rows` that has none, or none for `needed` (by slot) tokens.

        Returns the slots for which there is no memory.
        """
        slots = self._slots
        room = slots.capacity[rows]
        short = np.unique(rows[(needed[rows] > room) | (room == 0)]).tolist()
        try:
            self._move(short, needed)
            return []
        except MemoryError:
            homeless = []
            for slot in short:
                try:
                    self._move([slot], needed)
                except MemoryError:
                    homeless.append(slot)
            return homeless

    def _move(self, short: Sequence[int], needed: NDArray[np.int64]) -> None:
        """Give each of these slots a region with room. Raises MemoryError; nothing is changed then."""
        slots = self._slots
        regions = self._live.reserve([int(needed[s]) + MIN_REGION for s in short])
        for slot, region in zip(short, regions, strict=True):
            if slots.capacity[slot]:
                old = int(slots.offset[slot]), int(slots.capacity[slot])
                self._live.move(old, int(slots.end[slot]), region)
            slots.offset[slot], slots.capacity[slot] = region

    def _warm_up(self) -> None:
        """Compile (or load) every kernel with the types that serving uses, so that no step ever waits for it."""
        memory, self.memory = self.memory, SharedMemory(1 << 16)
        for request in range(2):
            self.start(request, [1, 2, 3, 1, 2])
            self.propose([request], self.max_n)
            self.observe(request, [3, 1] * MIN_REGION)  # grows: that has a kernel signature of its own
            self.stop(request)
        self.memory = memory
        self._index.forget()
        self.calibration.clear()
        self._usual_luck = _LUCK_START
