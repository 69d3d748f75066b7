"""Shared draft memory: the token text of finished requests, bounded in bytes, what is of use kept longest.

Documents lie one after the other in a ring, each followed by a separator. A document earns credit when a draft that it
led is accepted: a point for each accepted token. To make room, the oldest document is looked at ("clock with credit"):

- one that was purged or has expired is already overwritten, and goes;
- one that leads the last draft of a live request is pinned: it is appended again at the head;
- one whose credit is at least a `CREDIT_SHARE`-th of its tokens is appended again too, with half its credit left, so
  that what has not been of use lately goes in the end; but no more than about twice the new document's tokens are moved
  for their credit, which bounds the work of an addition;
- any other goes.

If the pinned ones alone leave no room, it is the new document that is not kept. A document that says exactly what
one of its namespace says already is not added: the older one is credited with its tokens and counts as young again.
"""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from secrets import randbits
from typing import Final

import numpy as np
from numpy.typing import NDArray

from drafters._index_kernels import SEPARATOR
from drafters._namespaces import COMMON, Namespace, Namespaces
from drafters._ring import BYTES_PER_TOKEN, Ring
from drafters.memory_file import MAX_CREDIT, Snapshot

MIN_TOKENS: Final = 256
MAX_BYTES: Final = (1 << 29) * BYTES_PER_TOKEN  # more tokens, and rebasing could not keep positions small
# Chosen among 1 to 64 by replay with room for a fifth of the outputs: no worse than FIFO, up to 2 % better.
CREDIT_SHARE: Final = 16
# There are at most capacity / 16 documents, as each has a record beside its text.
_TOKENS_PER_DOCUMENT: Final = 16
_EXPIRY_PERIOD: Final = 1.0  # seconds between two looks at the documents' ages
_NO_SOURCES: Final = np.empty(0, dtype=np.int64)

Int64s = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Document:
    """A document's record; its tokens are at positions start..end-1 of the ring, a separator is at `end`."""

    start: int
    end: int
    namespace: Namespace
    birth: float  # of the clock
    credit: int  # beside what the ring holds for its positions
    key: int  # hash of its namespace and text
    is_alive: bool = True  # otherwise overwritten, gone when the oldest

    @property
    def size(self) -> int:
        """Positions that it takes, its separator included."""
        return self.end + 1 - self.start


class SharedMemory:
    """A ring of documents with the chains that find contexts in it.

    Methods that move or forget documents take `sources`: for each live request the position that led its last
    draft, -1 for none. A source moves along with its document and becomes -1 when that is forgotten.

    Args:
        max_bytes: budget; what fits is rounded down to a power of two tokens. 0 keeps nothing.
        ttl: seconds after which a document is not drafted from any more (at most a second late); None: no limit.
        clock: returns seconds that never go back.
        new_seed: returns the seed of a new namespace, see `Namespaces`; a secret one unless given.

    Raises:
        ValueError: a budget too small for `MIN_TOKENS` tokens or beyond `MAX_BYTES`, or a ttl that is not positive.

    """

    def __init__(
        self,
        max_bytes: int,
        *,
        ttl: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        new_seed: Callable[[], int] | None = None,
    ) -> None:
        """Reserve the ring; pages are touched as it fills."""
        smallest = MIN_TOKENS * BYTES_PER_TOKEN
        if max_bytes != 0 and not smallest <= max_bytes <= MAX_BYTES:
            raise ValueError(
                f"max_bytes must be 0 (share nothing) or within [{smallest}, {MAX_BYTES}], got {max_bytes}"
            )
        if ttl is not None and not ttl > 0:
            raise ValueError(f"ttl must be None (no limit) or above 0 seconds, got {ttl}")
        capacity = 1 << ((max_bytes // BYTES_PER_TOKEN).bit_length() - 1) if max_bytes else 0
        self.ring = Ring(capacity)
        self.ttl = ttl
        self.namespaces = Namespaces(new_seed or (lambda: randbits(63)))
        self.num_documents = 0  # held
        self.num_refused = 0  # for which pinned ones left no room
        self.num_evicted = 0  # that made room for others, ever
        self._clock = clock
        self._next_expiry = -np.inf
        self._max_documents = capacity // _TOKENS_PER_DOCUMENT
        self._documents: deque[Document] = deque()  # the oldest first, dead ones included, without gaps
        self._by_key: dict[int, Document] = {}
        self._longest = 0  # size of the largest document so far

    @property
    def capacity(self) -> int:
        """Tokens that there is room for, separators included."""
        return self.ring.capacity

    @property
    def num_bytes(self) -> int:
        """Bytes reserved for the ring; the records of the documents come on top."""
        return self.ring.num_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens held, separators not counted."""
        return sum(d.end - d.start for d in self._documents if d.is_alive)

    def add(
        self,
        token_ids: NDArray[np.int32],
        namespace: str = COMMON,
        *,
        sources: Int64s = _NO_SOURCES,
        credit: int = 0,
        birth: float | None = None,
    ) -> Document | None:
        """Append a document, for which others may have to go; return its record, or None if it is not kept.

        If its namespace holds the same text already, that one is credited and returned instead. Of a text that is
        larger than the ring its end is kept; one of less than two tokens, in which nothing could follow a match, is
        not.

        Args:
            token_ids: int32, shape (n,).
            namespace: whose requests may read it.
            sources: see the class.
            credit: to begin with, of a document that is restored.
            birth: of such a document, the time of the clock that its age is counted from.

        """
        room = self.capacity - 1
        token_ids = token_ids[-room:] if room > 0 else token_ids[:0]
        if len(token_ids) < 2:
            return None
        space = self.namespaces.acquire(namespace)
        key = hash((space.tag, token_ids.tobytes()))
        twin = self._by_key.get(key)
        if twin is not None and np.array_equal(self._text(twin), space.tag + token_ids.astype(np.int64)):
            self.namespaces.release(space)
            if birth is None:  # said again
                twin.birth = self._clock()
                twin.credit += len(token_ids)
            else:
                twin.birth = max(twin.birth, birth)
                twin.credit = max(self._earn(twin), credit)
            return twin
        if not self._make_room(len(token_ids) + 1, sources):
            self.num_refused += 1
            self.namespaces.release(space)
            return None
        document = Document(0, 0, space, self._clock() if birth is None else birth, credit, key)
        self._append(document, token_ids, sources)
        self.num_documents += 1
        return document

    def find(self, position: int) -> tuple[NDArray[np.int32], int, str, int]:
        """Return the document at a position: its tokens, the place in it, its namespace and its credit."""
        document = self._at(position)
        start, end = document.start, document.end
        earned = int(self.ring.credits(start, end).sum(dtype=np.int64))
        return (
            self._text(document).astype(np.int32),
            position - start,
            document.namespace.name,
            document.credit + earned,
        )

    def purge(self, namespace: str, *, sources: Int64s = _NO_SOURCES) -> int:
        """Overwrite every document of a namespace; return how many there were."""
        space = self.namespaces.get(namespace)
        return self._forget((d for d in self._documents if d.is_alive and d.namespace is space), sources)

    def expire(self, *, sources: Int64s = _NO_SOURCES, at_once: bool = False) -> int:
        """Overwrite what is older than `ttl`; return how many documents. Does nothing more than once a second.

        Args:
            sources: see the class.
            at_once: look at the ages although the last look was less than a second ago.

        """
        if self.ttl is None:
            return 0
        now = self._clock()
        if now < self._next_expiry and not at_once:
            return 0
        self._next_expiry = now + _EXPIRY_PERIOD
        born = now - self.ttl
        return self._forget((d for d in self._documents if d.is_alive and d.birth < born), sources)

    def clear(self, *, sources: Int64s = _NO_SOURCES) -> None:
        """Forget every document. Raises MemoryError; nothing is changed then."""
        ring = Ring(self.capacity)  # fresh pages, not yet resident
        for document in self._documents:
            if document.is_alive:
                document.is_alive = False
                self.namespaces.release(document.namespace)
        self._documents.clear()
        self._by_key.clear()
        self.num_documents = self.num_refused = self._longest = 0
        self.ring = ring
        sources[:] = -1

    def snapshot(self) -> Snapshot:
        """Copy what is held, in the order of the ring; what has expired should be forgotten before."""
        now = self._clock()
        alive = [d for d in self._documents if d.is_alive]
        indices: dict[Namespace, int] = {}
        namespaces = [indices.setdefault(d.namespace, len(indices)) for d in alive]
        starts = np.array([d.start for d in alive], dtype=np.int64)
        ends = np.array([d.end for d in alive], dtype=np.int64)
        ring = self.ring
        token_ids = ring.text(ring.tail, ring.end).astype(np.int32)
        credits = np.array([d.credit for d in alive], dtype=np.int64)
        if alive:
            earned = ring.credits(ring.tail, ring.end)
            credits += np.add.reduceat(earned, starts - ring.tail, dtype=np.int64)
        return Snapshot(
            token_ids[token_ids != SEPARATOR],
            ends - starts,
            tuple(namespace.name for namespace in indices),
            np.array(namespaces, dtype=np.int64),
            np.maximum(now - np.array([d.birth for d in alive], dtype=np.float64), 0.0),
            np.minimum(credits, MAX_CREDIT),
            time.time(),
        )

    def restore(self, snapshot: Snapshot, *, sources: Int64s = _NO_SOURCES) -> int:
        """Add the documents of a snapshot to what is held, with their ages and credits; return how many.

        Expired ones are left out. If they do not all fit, those of value and then the newest are taken.
        """
        now = self._clock()
        sizes = np.minimum(snapshot.lengths + 1, self.capacity)
        is_valued = snapshot.credits >= -(-snapshot.lengths // CREDIT_SHARE)
        by_value = np.lexsort((np.arange(len(sizes)), is_valued))[::-1]
        if self.ttl is not None:
            by_value = by_value[snapshot.ages[by_value] <= self.ttl]
        by_value = by_value[: self._max_documents]
        taken = np.sort(by_value[np.cumsum(sizes[by_value]) <= self.capacity]).tolist()
        ends = np.cumsum(snapshot.lengths)
        held = [
            self.namespaces.acquire(name) for name in snapshot.names
        ]  # or one might be dropped on the way
        added = {
            self.add(
                snapshot.token_ids[ends[i] - snapshot.lengths[i] : ends[i]],
                snapshot.names[snapshot.namespaces[i]],
                sources=sources,
                credit=int(snapshot.credits[i]),
                birth=now - float(snapshot.ages[i]),
            )
            for i in taken
        }
        for namespace in held:
            self.namespaces.release(namespace)
        return sum(document is not None and document.is_alive for document in added)

    def _lacks(self, num_positions: int) -> bool:
        is_full = self.ring.end + num_positions - self.ring.tail > self.capacity
        return is_full or len(self._documents) >= self._max_documents

    def _make_room(self, num_positions: int, sources: Int64s) -> bool:
        """Make room for one more document; return False, and do nothing, if the pinned ones leave none."""
        if not self._lacks(num_positions):
            return True
        if not self._fits_beside_pinned(num_positions, sources):
            return False
        allowance = 2 * num_positions
        while self._lacks(num_positions):
            document = self._documents.popleft()
            start = document.start
            if not document.is_alive:
                self._advance_tail()
            elif _is_within(document, sources).any():
                self._move(document, sources)
            elif allowance > 0 and self._earn(document) * CREDIT_SHARE >= document.end - start:
                allowance -= document.size
                self._move(document, sources)
            else:
                self._drop(document)
                self._advance_tail()
                self.num_evicted += 1
        return True

    def _fits_beside_pinned(self, num_positions: int, sources: Int64s) -> bool:
        positions = np.unique(sources[sources >= 0]).tolist()
        most = len(positions)
        if most < self._max_documents and num_positions + most * self._longest <= self.capacity:
            return True
        pinned = {self._at(position) for position in positions}
        taken = sum(document.size for document in pinned)
        return len(pinned) < self._max_documents and num_positions + taken <= self.capacity

    def _at(self, position: int) -> Document:
        """Return the document that holds a position."""
        return self._documents[bisect_right(self._documents, position, key=lambda d: d.start) - 1]

    def _move(self, document: Document, sources: Int64s) -> None:
        """Append again, with half its credit, the document that was just taken from the oldest end."""
        token_ids = self._text(document).astype(np.int32)
        credit = self._earn(document) // 2
        is_source = _is_within(document, sources)
        from_start = sources[is_source] - document.start
        self.ring.wipe(document.start, document.end)
        self._advance_tail()
        document.credit = credit
        self._append(document, token_ids, sources)
        sources[is_source] = document.start + from_start

    def _append(self, document: Document, token_ids: NDArray[np.int32], sources: Int64s) -> None:
        shift = self.ring.rebase(len(token_ids) + 1)
        if shift:
            for other in self._documents:
                other.start -= shift
                other.end -= shift
            sources[sources >= 0] -= shift
        document.start, document.end = self.ring.append(token_ids, document.namespace)
        self._documents.append(document)
        self._by_key[document.key] = document
        self._longest = max(self._longest, document.size)

    def _earn(self, document: Document) -> int:
        """Book what a document has earned since it was appended; return its credit."""
        document.credit += self.ring.take_credit(document.start, document.end)
        return document.credit

    def _forget(self, documents: Iterable[Document], sources: Int64s) -> int:
        """Overwrite documents; their records stay until they are the oldest."""
        gone = list(documents)
        for document in gone:
            self._drop(document)
            sources[_is_within(document, sources)] = -1
        return len(gone)

    def _drop(self, document: Document) -> None:
        self._earn(document)
        self.ring.wipe(document.start, document.end)
        document.is_alive = False
        self.num_documents -= 1
        if self._by_key.get(document.key) is document:
            del self._by_key[document.key]
        self.namespaces.release(document.namespace)

    def _advance_tail(self) -> None:
        self.ring.tail = self._documents[0].start if self._documents else self.ring.end

    def _text(self, document: Document) -> Int64s:
        return self.ring.text(document.start, document.end)


def _is_within(document: Document, sources: Int64s) -> NDArray[np.bool_]:
    return (sources >= document.start) & (sources < document.end)
