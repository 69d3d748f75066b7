"""What a sleeping head has not read yet: the target's states, kept until it is woken, within a budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Unread:
    """Tokens that the target has read and the head has not, request after request.

    Attributes:
        starts: where each request's tokens begin, and where the last one's end: (requests + 1,).
        token_ids, positions, slots: (tokens,); slots are places in the head's KV cache.
        states: (tokens, layers * hidden), the target's.

    """

    starts: list[int]
    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    states: torch.Tensor

    def part(self, row: int) -> Unread:
        rows = slice(self.starts[row], self.starts[row + 1])
        return Unread(
            [0, rows.stop - rows.start],
            self.token_ids[rows],
            self.positions[rows],
            self.slots[rows],
            self.states[rows],
        )


@dataclass
class Backlog:
    """Steps that the head slept through.

    A request some of whose tokens had to be forgotten has a hole in the head's KV cache, for good: what the head
    drafts for it is worth nothing.

    Attributes:
        max_tokens: how many tokens are kept.
        lost: requests with a hole.
        num_tokens: kept.

    """

    max_tokens: int
    lost: set[str] = field(default_factory=set)
    num_tokens: int = 0
    _steps: deque[tuple[list[str], Unread]] = field(default_factory=deque)

    def put(self, request_ids: Sequence[str], unread: Unread) -> None:
        """Keep a step; the oldest ones go where they do not all fit."""
        self._steps.append((list(request_ids), unread))
        self.num_tokens += unread.starts[-1]
        while self.num_tokens > self.max_tokens:
            gone, oldest = self._steps.popleft()
            self.lost.update(gone)
            self.num_tokens -= oldest.starts[-1]

    def prune(self, live: Container[str]) -> None:
        """Forget about requests that have ended."""
        self.lost = {name for name in self.lost if name in live}

    def take(self, request_ids: Sequence[str], now: Unread, room: int) -> Unread:
        """Return all that the head has to read for a batch, and keep nothing.

        Args:
            request_ids: of the batch.
            now: what the step that has just been run adds.
            room: most tokens; requests with the longest backlog are given up first.

        """
        parts: dict[str, list[Unread]] = {name: [] for name in request_ids}
        for names, step in self._steps:
            for row, name in enumerate(names):
                if name in parts and name not in self.lost:
                    parts[name].append(step.part(row))
        self.lost.update(name for names, _ in self._steps for name in names if name not in parts)
        self._steps.clear()
        self.num_tokens = 0
        for row, name in enumerate(request_ids):
            parts[name] = _consecutive([*parts[name], now.part(row)])
        total = sum(part.starts[-1] for own in parts.values() for part in own)
        for name in sorted(request_ids, key=lambda name: -len(parts[name])):
            if total <= room:
                break
            if len(parts[name]) > 1:
                total -= sum(part.starts[-1] for part in parts[name][:-1])
                parts[name] = parts[name][-1:]
                self.lost.add(name)
        return _joined([parts[name] for name in request_ids])


def _consecutive(parts: list[Unread]) -> list[Unread]:
    """Leave out what was computed again later (a request that was preempted starts over)."""
    kept: list[Unread] = []
    for part in parts:
        if part.starts[-1] == 0:
            continue
        while kept and int(kept[-1].positions[-1]) >= int(part.positions[0]):
            kept.pop()
        kept.append(part)
    return kept


def _joined(rows: Sequence[list[Unread]]) -> Unread:
    starts = [0]
    for own in rows:
        starts.append(starts[-1] + sum(part.starts[-1] for part in own))
    flat = [part for own in rows for part in own]

    def cat(name: str) -> Any:
        return torch.cat([getattr(part, name) for part in flat])

    return Unread(starts, cat("token_ids"), cat("positions"), cat("slots"), cat("states"))
