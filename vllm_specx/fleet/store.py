"""Finished answers of a fleet, or of one shard of it: deduplicated, bounded in bytes, what is of use kept longest.

Every text has a sequence number, the store's time in microseconds when it came, so that numbers go on rising when a
store is made anew. The oldest text goes first, unless it has earned a sixteenth of its length: then it counts as new,
with half of that; but no more than about twice the new text's bytes are kept for that, which bounds the work of an
addition (the rule of `drafters.memory`).
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from drafters.memory import CREDIT_SHARE
from drafters.memory_file import MAX_CREDIT, Snapshot
from vllm_specx.fleet.texts import Text
from vllm_specx.memory.namespaces import has_parts

ENTRY_BYTES: Final = (
    640  # of a text beside its tokens: its record, two places in tables, three objects' heads
)
_MAX_PURGES: Final = 1024  # remembered, for replicas that have not heard of them
_EXPIRY_PERIOD: Final = 1.0  # seconds
_SPARE_NAMES: Final = 64


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 by the clock as it is now, going on evenly whatever it is set to later."""
    start = time.time() - time.monotonic()
    return lambda: start + time.monotonic()


@dataclass(slots=True)
class _Entry:
    text: Text
    key: bytes
    origin: str  # the replica that said it
    born: float  # when it was said last
    credit: int

    @property
    def num_tokens(self) -> int:
        return len(self.text.token_ids) // 4

    @property
    def num_bytes(self) -> int:
        return len(self.text.token_ids) + ENTRY_BYTES


class Purge(NamedTuple):
    """Texts of namespaces with these parts were forgotten."""

    seq: int
    parts: tuple[str, ...]
    origin: str


class Page(NamedTuple):
    """Texts of the store, the oldest of them first, and where those before them are."""

    texts: list[Text]
    ages: list[float]
    credits: list[int]
    more: int


class Store:
    """Texts in the order in which they came.

    Args:
        max_bytes: budget, records included.
        ttl: seconds after which a text is forgotten; 0: never.
        clock: seconds since 1970; those of a `steady_clock` unless given.

    """

    def __init__(self, max_bytes: int, *, ttl: float = 0.0, clock: Callable[[], float] | None = None) -> None:
        """Start empty."""
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_tokens = 0
        self._clock = clock or steady_clock()
        self.last = int(1e6 * self._clock())  # sequence number
        self._ttl = ttl
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._by_key: dict[bytes, int] = {}
        self._names: dict[str, str] = {}  # one object for each
        self._purges: deque[Purge] = deque(maxlen=_MAX_PURGES)
        self._next_expiry = 0.0

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._entries)

    def add(
        self, text: Text, origin: str = "", *, age: float = 0.0, credit: int = 0, heard: int | None = None
    ) -> bool:
        """Take in a text; return whether it is new. One that is there is credited with its tokens.

        Args:
            text: said by a replica.
            origin: that replica, which is not told of it.
            age: seconds since it was said.
            credit: what it has earned already.
            heard: the sequence number up to which that replica had heard of purges when it sent this.

        """
        if heard is not None and any(p.seq > heard and has_parts(text.name, p.parts) for p in self._purges):
            return False
        key, born = text.key, self._clock() - age
        seq = self._by_key.get(key)
        if seq is not None:
            twin = self._entries[seq]
            twin.born = max(twin.born, born)
            twin.credit = min(twin.credit + max(credit, twin.num_tokens), MAX_CREDIT)
            return False
        text = Text(self._shared(text.name), text.token_ids)
        entry = _Entry(text, key, origin, born, credit)
        if entry.num_bytes > self.max_bytes:
            return False
        self._insert(self._next_seq(), entry)
        self._make_room(2 * entry.num_bytes)
        return True

    def raise_credit(self, key: bytes, credit: int) -> None:
        """Take account of what a text has earned with a replica."""
        seq = self._by_key.get(key)
        if seq is not None:
            entry = self._entries[seq]
            entry.credit = min(max(entry.credit, credit), MAX_CREDIT)

    def since(self, after: int, before: int, replica: str, max_bytes: int) -> Page:
        """Return the newest texts with a sequence number in after+1 .. before-1 that are not of `replica`.

        Args:
            after: see above.
            before: see above; 0: no limit.
            replica: who asks.
            max_bytes: of tokens, at most (one text may go beyond).

        """
        found: list[_Entry] = []
        size = more = lowest = 0
        for seq, entry in self._backwards(after):
            if (before and seq >= before) or entry.origin == replica:
                continue
            if size >= max_bytes:
                more = lowest
                break
            found.append(entry)
            size += len(entry.text.token_ids)
            lowest = seq
        found.reverse()
        now = self._clock()
        return Page(
            [e.text for e in found], [max(0.0, now - e.born) for e in found], [e.credit for e in found], more
        )

    def _backwards(self, after: int) -> Iterator[tuple[int, _Entry]]:
        for seq in reversed(self._entries):
            if seq <= after:
                return
            yield seq, self._entries[seq]

    def purge(self, parts: Sequence[str], origin: str = "") -> int:
        """Forget all texts of namespaces with these parts; return how many. No parts: of all namespaces."""
        purge = Purge(self._next_seq(), tuple(parts), origin)
        self._purges.append(purge)
        return self._forget([s for s, e in self._entries.items() if has_parts(e.text.name, purge.parts)])

    def purges(self, after: int, replica: str) -> tuple[tuple[str, ...], ...]:
        """What others than `replica` had forgotten since."""
        return tuple(p.parts for p in self._purges if p.seq > after and p.origin != replica)

    def expire(self) -> int:
        """Forget what is older than the time to live; return how many texts. Does nothing more than once a second."""
        now = self._clock()
        if not self._ttl or now < self._next_expiry:
            return 0
        self._next_expiry = now + _EXPIRY_PERIOD
        return self._forget([s for s, e in self._entries.items() if e.born < now - self._ttl])

    def snapshot(self) -> Snapshot:
        """Copy everything."""
        entries, now = list(self._entries.values()), self._clock()
        indices: dict[str, int] = {}
        namespaces = [indices.setdefault(e.text.name, len(indices)) for e in entries]
        blob = b"".join(e.text.token_ids for e in entries)
        return Snapshot(
            np.frombuffer(blob, dtype="<i4"),
            np.array([e.num_tokens for e in entries], dtype=np.int64),
            tuple(indices),
            np.array(namespaces, dtype=np.int64),
            np.array([max(0.0, now - e.born) for e in entries], dtype=np.float64),
            np.array([e.credit for e in entries], dtype=np.int64),
            now,
        )

    @property
    def all_purges(self) -> tuple[Purge, ...]:
        """The latest ones, in order."""
        return tuple(self._purges)

    def restore(self, texts: Iterable[tuple[Text, float, int]], purges: Iterable[Purge] = ()) -> None:
        """Add (text, age, credit)s of a store that was; its numbers come back with their times."""
        self._purges.extend(purges)
        now = self._clock()
        entries = [_Entry(text, text.key, "", now - age, credit) for text, age, credit in texts]
        seq = 0
        for entry in sorted(entries, key=lambda e: e.born):
            if entry.key not in self._by_key:
                seq = max(seq + 1, int(1e6 * entry.born))
                self._insert(seq, entry)
        self.last = max(self.last, seq)
        self._make_room(2 * self.num_bytes)

    def _next_seq(self) -> int:
        self.last = max(self.last + 1, int(1e6 * self._clock()))
        return self.last

    def _insert(self, seq: int, entry: _Entry) -> None:
        self._entries[seq] = entry
        self._by_key[entry.key] = seq
        self.num_bytes += entry.num_bytes
        self.num_tokens += entry.num_tokens

    def _remove(self, seq: int) -> _Entry:
        entry = self._entries.pop(seq)
        del self._by_key[entry.key]
        self.num_bytes -= entry.num_bytes
        self.num_tokens -= entry.num_tokens
        return entry

    def _forget(self, seqs: Sequence[int]) -> int:
        for seq in seqs:
            self._remove(seq)
        return len(seqs)

    def _shared(self, name: str) -> str:
        """One object for all texts of a name; names that no text has any more are forgotten, some at a time."""
        if len(self._names) > 2 * len(self._entries) + _SPARE_NAMES:
            self._names = {entry.text.name: entry.text.name for entry in self._entries.values()}
        return self._names.setdefault(name, name)

    def _make_room(self, allowance: int) -> None:
        """Forget texts until the others fit; keep up to about `allowance` bytes for what they have earned."""
        while self.num_bytes > self.max_bytes:
            entry = self._remove(next(iter(self._entries)))
            if allowance > 0 and entry.credit and entry.credit * CREDIT_SHARE >= entry.num_tokens:
                allowance -= entry.num_bytes
                entry.credit //= 2
                self._insert(self._next_seq(), entry)
