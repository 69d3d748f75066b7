"""What others said, from the thread that hears it to the step that takes it in, within a budget of CPU time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from drafters import SuffixTreeDrafter
from drafters.memory_file import Snapshot
from vllm_specx.memory.namespaces import has_parts

Parts = tuple[str, ...]
_FIRST_COST: Final = 0.25e-6  # seconds of a token, until measured
_COST_RATE: Final = 0.05
_TEXT_TOKENS: Final = 64  # tokens that the work for a text as such is worth


class _Waiting:
    """Texts of one message, and how many of them were taken in."""

    def __init__(self, texts: Snapshot) -> None:
        self.texts = texts
        self.arrived = time.monotonic()
        self.names: list[str | None] = list(texts.names)  # None: to be left out
        self.lengths = texts.lengths.tolist()
        self.next = self.at = 0

    def forget(self, parts: Parts) -> None:
        self.names = [None if n is None or has_parts(n, parts) else n for n in self.names]


class Inbox:
    """A queue between two threads, bounded in bytes: the oldest messages go first.

    Args:
        max_bytes: of tokens.
        cpu_clock: seconds of this thread's CPU time.

    """

    def __init__(self, max_bytes: int, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        """Start empty."""
        self._max_bytes = max_bytes
        self._cpu_clock = cpu_clock
        self._lock = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        self._num_bytes = 0
        self._current: _Waiting | None = None
        self._purges: list[Parts] = []
        self._cost = _FIRST_COST
        self._debt = 0.0
        self.num_absorbed = 0  # texts
        self.num_dropped = 0  # messages that came faster than they could be taken in

    def __len__(self) -> int:
        """Return the number of messages that wait."""
        return len(self._queue) + (self._current is not None)

    def put(self, texts: Snapshot, *, is_older: bool = False) -> None:
        """Add what others said; what is older than that which waits goes before it."""
        waiting = _Waiting(texts)
        with self._lock:
            (self._queue.appendleft if is_older else self._queue.append)(waiting)
            self._num_bytes += texts.token_ids.nbytes
            while self._num_bytes > self._max_bytes and len(self._queue) > 1:
                self._num_bytes -= self._queue.popleft().texts.token_ids.nbytes
                self.num_dropped += 1

    def put_purge(self, parts: Parts) -> None:
        """Add what others had forgotten; of what waits here it is left out."""
        with self._lock:
            self._purges.append(parts)
            self._forget(parts)

    def forget(self, parts: Parts) -> None:
        """Leave out what waits of namespaces with these parts."""
        with self._lock:
            self._forget(parts)

    def clear(self) -> None:
        """Leave out all that waits."""
        with self._lock:
            self._queue.clear()
            self._num_bytes = 0
            self._current = None

    def take_purges(self) -> list[Parts]:
        """Return what others had forgotten, in order."""
        if not self._purges:
            return []
        with self._lock:
            purges, self._purges = self._purges, []
        return purges

    def absorb(self, drafter: SuffixTreeDrafter, budget: float = float("inf")) -> None:
        """Give the drafter's shared memory what waits, as long as that may take.

        A text is begun if its expected time fits, or it is the first one; what was taken beyond the budget is taken off
        the next one. Where time is short the newest message goes first, as more may come than can be taken in; else the
        oldest, so that the memory has them in their order.

        Args:
            drafter: whose thread this is.
            budget: seconds of CPU time.

        """
        if self._debt >= budget:
            self._debt -= budget
            return
        if not len(self):
            self._debt = 0.0
            return
        was_owed = self._debt > 0
        begin, budget, self._debt = self._cpu_clock(), budget - self._debt, 0.0
        now, spent = time.monotonic(), 0.0
        is_short = budget != float("inf")
        while (waiting := self._next(is_newest=is_short)) is not None:
            length = waiting.lengths[waiting.next]
            if spent + self._cost * (length + _TEXT_TOKENS) > budget and (spent or was_owed):
                break
            texts, i = waiting.texts, waiting.next
            name = waiting.names[int(texts.namespaces[i])]
            if name is not None:
                drafter.add_document(
                    texts.token_ids[waiting.at : waiting.at + length],
                    name,
                    credit=int(texts.credits[i]),
                    age=float(texts.ages[i]) + now - waiting.arrived,
                )
                self.num_absorbed += 1
            waiting.next += 1
            waiting.at += length
            total = self._cpu_clock() - begin
            self._cost += _COST_RATE * ((total - spent) / (length + _TEXT_TOKENS) - self._cost)
            spent = total
        self._debt = max(0.0, spent - budget)

    def _next(self, *, is_newest: bool) -> _Waiting | None:
        current = self._current
        if current is not None and current.next < len(current.lengths):
            return current
        with self._lock:
            take = self._queue.pop if is_newest else self._queue.popleft
            self._current = take() if self._queue else None
            if self._current is not None:
                self._num_bytes -= self._current.texts.token_ids.nbytes
        return self._current

    def _forget(self, parts: Parts) -> None:
        for waiting in (*self._queue, *([] if self._current is None else [self._current])):
            waiting.forget(parts)
