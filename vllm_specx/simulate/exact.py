"""Drafts of the real drafter: each replica has a `SuffixTreeDrafter` and a `Tuner`, over the traces' token ids."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from drafters import SuffixTreeDrafter
from drafters.replay import num_right
from vllm_specx.simulate.state import World
from vllm_specx.simulate.texts import Texts
from vllm_specx.tuner import CostModel, CostTable, Step, Tuner

_MEMORY_BYTES: Final = 64 << 20

# When the store has it, its request, the replica and which life of that, the tokens, the namespace.
_Text = tuple[float, int, tuple[int, int], NDArray[np.int32], str]


class ExactDrafting:
    """See `loop.Drafting`. Tuners start from the table and learn from the steps.

    Args:
        texts: what is said.
        world: `row` and `tenant` of each request are read.
        table: step times.
        max_n: most tokens of a draft.
        seed: of the namespaces.

    """

    def __init__(self, texts: Texts, world: World, table: CostTable, *, max_n: int, seed: int) -> None:
        self._texts, self._table, self._max_n = texts, table, max_n
        self._random = np.random.default_rng((seed, 7))
        num_replicas = len(world.shift)
        self._row, self._tenant = world.row.tolist(), world.tenant.tolist()
        self._store: list[_Text] = []
        self._said: list[tuple[NDArray[np.int32], str]] = []
        self._drafters = [self._new_drafter() for _ in range(num_replicas)]
        self._tuners = [self._new_tuner() for _ in range(num_replicas)]
        self._num_heard = [0] * num_replicas
        self._life = [0] * num_replicas

    def hear(self, r: int, until: float) -> None:
        """Give a replica what others told the store."""
        store, at = self._store, self._num_heard[r]
        while at < len(store) and store[at][0] <= until:
            _, _, said_by, token_ids, namespace = store[at]
            if said_by != (r, self._life[r]):  # what it said before a restart comes back, too
                self._drafters[r].add_document(token_ids, namespace)
            at += 1
        self._num_heard[r] = at

    def start(self, r: int, q: int, seen: int) -> None:
        """Begin a request."""
        namespace = str(self._tenant[q])
        self._drafters[r].start(q, self._texts.traces[self._row[q]].prompt_ids, namespace=namespace)

    def decode(self, r: int, requests: Sequence[int], known: Sequence[int]) -> tuple[list[int], list[int]]:
        """Draft, choose lengths, verify."""
        drafts = self._drafters[r].propose(requests, self._max_n)
        lengths = self._tuners[r].choose([draft.reach for draft in drafts])
        commits = []
        for q, at, draft, n in zip(requests, known, drafts, lengths, strict=True):
            output = self._texts.traces[self._row[q]].output_ids
            right = num_right(draft.token_ids[:n].tolist(), output[at : at + n])
            commits.append(min(right + 1, len(output) - at))
        return lengths, commits

    def observe(self, r: int, q: int, begin: int, end: int) -> None:
        """Tell the drafter."""
        self._drafters[r].observe(q, self._texts.traces[self._row[q]].output_ids[begin:end])

    def stop(self, r: int, q: int, stored: float) -> None:
        """Let the drafter remember the answer, and the store have it."""
        self._drafters[r].stop(q)
        for token_ids, namespace in self._said:
            insort(self._store, (stored, q, (r, self._life[r]), token_ids, namespace))
        self._said.clear()

    def account(self, r: int, step: Step) -> None:
        """Let the tuner learn."""
        if step.num_requests:
            self._tuners[r].update(step)

    def restart(self, r: int) -> None:
        """Begin anew."""
        self._drafters[r], self._tuners[r] = self._new_drafter(), self._new_tuner()
        self._num_heard[r] = 0
        self._life[r] += 1

    def _new_drafter(self) -> SuffixTreeDrafter:
        drafter = SuffixTreeDrafter(
            max_n=self._max_n,
            memory_bytes=_MEMORY_BYTES,
            new_seed=lambda: int(self._random.integers(1 << 63)),  # or no run would be like another
        )
        drafter.on_answer = lambda token_ids, namespace: self._said.append((token_ids.copy(), namespace))
        return drafter

    def _new_tuner(self) -> Tuner:
        return Tuner(CostModel(self._table), max_n=self._max_n)
