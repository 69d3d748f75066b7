"""Fuzz the suffix-tree drafter against its oracle by sequences of operations.

The unit tests run a few seconds of it. The long run: `python tests/fuzz_suffix_tree.py --ops 100000 --seed 0`
"""

import argparse
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from naive import NaiveDrafter, Request

import drafters.memory
from drafters import SuffixTreeDrafter
from drafters import _suffix_tree_kernels as kernels

ALPHABETS = (
    [0, 1],
    [5, 6, 7],
    [0, 1, 2, 2**31 - 2],
    list(range(20)),
    list(range(1000, 1500)),
    [n * 7919 % (2**31 - 1) for n in range(5000)],
)


def buckets(tokens: np.ndarray, k: int, mask: int) -> np.ndarray:
    """Bucket of the k-token context that ends at each position; -1 where it is shorter."""
    text = tokens.astype(np.int64)
    h = np.zeros(len(text), dtype=np.int64)
    multiplier = np.int64(kernels.HASH_MULTIPLIER)
    for d in range(k):
        shifted = np.concatenate([np.zeros(min(d, len(text)), np.int64), text[: max(0, len(text) - d)]])
        h = h * multiplier + shifted + 1
    h = h * multiplier
    b = (h ^ (h >> kernels.HASH_SHIFT)) & mask
    b[: k - 1] = -1
    return b


def latest_earlier(b: np.ndarray) -> np.ndarray:
    """For each position the latest earlier one in the same bucket, -1 if there is none."""
    order = np.argsort(b, kind="stable")
    out = np.full(len(b), -1)
    same = b[order][1:] == b[order][:-1]
    out[order[1:][same]] = order[:-1][same]
    out[b < 0] = -1
    return out


def latest_in_bucket(b: np.ndarray, num_buckets: int) -> np.ndarray:
    """1 + the latest position of each bucket, 0 if it has none."""
    head = np.zeros(num_buckets, dtype=np.int64)
    where = np.flatnonzero(b >= 0)
    np.maximum.at(head, b[where], where + 1)
    return head


def check_integrity(drafter: SuffixTreeDrafter) -> None:
    """Recompute every index from the texts and compare; check that regions are disjoint and budgets are kept.

    Buffered tokens are not indexed yet; what is checked is the state that the kernels left.
    """
    text, prev, head = drafter._live
    claimed: list[tuple[int, int]] = []
    for slot in drafter._slots.values():
        lo, size, end = (int(a[slot]) for a in (drafter._offset, drafter._capacity, drafter._end))
        claimed.append((lo, size))
        assert 0 <= end <= size
        assert size & (size - 1) == 0
        for o, k in enumerate(kernels.ORDERS):
            b = buckets(text[lo : lo + end], k, size - 1)
            before = latest_earlier(b)
            distance = np.where(before >= 0, np.arange(end) - before, 0)
            assert np.array_equal(prev[o, lo : lo + end], distance)
            assert np.array_equal(head[o, lo : lo + size], latest_in_bucket(b, size))
        assert 0 <= drafter._length[slot] <= drafter.max_n
        assert 0.0 <= drafter._luck[slot] <= 1.0
    claimed += [(lo, size) for size, offsets in drafter._free_regions.items() for lo in offsets]
    claimed.sort()
    assert sum(size for _, size in claimed) == drafter._used <= len(text)  # disjoint, and nothing leaked
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(claimed))
    slots = [*drafter._slots.values(), *drafter._free_slots]
    assert sorted(slots) == list(range(len(drafter._end)))
    check_memory(drafter.memory)


def check_memory(memory: drafters.memory.SharedMemory) -> None:
    """Check the ring: documents are contiguous, chains descend to the latest earlier position that still lives."""
    text, prev, head = memory.store
    capacity, tail, end = memory.capacity, memory.tail, memory.end
    assert 0 <= tail <= end <= tail + capacity
    if not capacity:
        assert memory.num_tokens == end == 0
        return
    positions = np.arange(tail, end)
    at = positions & (capacity - 1)
    separators = [document_end for _, document_end in memory._documents]
    assert [tail, *(s + 1 for s in separators)] == [*(start for start, _ in memory._documents), end]
    assert np.array_equal(positions[text[at] == kernels.SEPARATOR], separators)
    for o, k in enumerate(kernels.ORDERS):
        b = np.full(end - tail, -1)
        for start, stop in memory._documents:
            tokens = text[np.arange(start, stop) & (capacity - 1)]
            b[start - tail : stop - tail] = buckets(tokens, k, capacity - 1)
        before = latest_earlier(b)
        step = prev[o, at].astype(np.int64)
        assert (step >= 0).all()
        linked = before >= 0
        assert np.array_equal(step[linked], (np.arange(end - tail) - before)[linked])
        ends_here = (step == 0) | (positions - step < tail)  # no link, or one into what was evicted
        assert ends_here[~linked].all()
        expected = latest_in_bucket(b, capacity)
        assert np.array_equal(head[o][expected > 0], expected[expected > 0] + tail)
        assert (head[o][expected == 0] <= tail).all()


class Fuzzer:
    """Drives a drafter and its oracle through one random life, comparing after every operation."""

    def __init__(self, rng: random.Random, alphabet: list[int] | None = None, **options: Any) -> None:
        self.rng = rng
        self.alphabet = alphabet or rng.choice(ALPHABETS)
        options = {
            "max_n": rng.choice([1, 3, 8, 32]),
            "memory_bytes": rng.choice([0, 9216, 9216, 20_000, 40_000]),
            "min_reach": rng.choice([0.0, 0.02, 0.3]),
        } | options
        self.fast = SuffixTreeDrafter(**options)
        self.slow = NaiveDrafter(**options)
        self.texts: list[list[int]] = [[rng.choice(self.alphabet) for _ in range(30)]]  # to copy from
        self.last_draft: dict[int, list[int]] = {}
        self.counts: Counter[str] = Counter()
        self.max_live = rng.choice([1, 4, 10])
        if rng.random() < 0.3:  # weights that have seen almost all they remember
            evidence = kernels.MOST_EVIDENCE - 1.0
            self.fast.calibration.model[1] = evidence
            self.slow.model.information = [[evidence] * size for size in kernels.GROUP_SIZES]
        self.longest = 40 if rng.random() < 0.7 else 400

    def tokens(self, most: int) -> list[int]:
        """A span that looks like language: copied, noisy, periodic or new."""
        rng = self.rng
        kind = rng.random()
        n = rng.randint(0, most)
        if kind < 0.55:
            source = rng.choice(self.texts)
            at = rng.randrange(len(source))
            span = source[at : at + n]
            if span and rng.random() < 0.4:
                span[rng.randrange(len(span))] = rng.choice(self.alphabet)
            return span
        if kind < 0.7:
            period = [rng.choice(self.alphabet) for _ in range(rng.randint(1, 6))]
            return (period * (n // len(period) + 1))[:n]
        return [rng.choice(self.alphabet) for _ in range(n)]

    def both(self, call: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Ask both; they must agree also in what they refuse."""
        results = []
        for drafter in (self.fast, self.slow):
            try:
                results.append(call(drafter))
            except (KeyError, ValueError) as error:
                results.append(type(error))
        refused = [isinstance(r, type) for r in results]
        assert refused[0] == refused[1], results
        if refused[0]:
            assert results[0] is results[1]
            self.counts["refused"] += 1
        return results[0], results[1]

    def start(self) -> None:
        if len(self.slow.requests) >= self.max_live and self.rng.random() < 0.95:
            return
        idle = [r for r in range(14) if r not in self.slow.requests]
        request = self.rng.choice(idle) if self.rng.random() < 0.95 else self.rng.randrange(14)
        prompt, share = self.tokens(self.longest), self.rng.random() < 0.8
        self.both(lambda d: d.start(request, prompt, share=share))

    def observe(self) -> None:
        rng = self.rng
        live = list(self.slow.requests)
        request = rng.choice(live) if live and rng.random() < 0.99 else rng.randrange(14)
        draft = self.last_draft.get(request, [])
        if draft and rng.random() < 0.6:  # what a target does: keep a prefix, add a token of its own
            accepted = rng.randint(0, len(draft))
            new = draft[:accepted] + ([rng.choice(self.alphabet)] if rng.random() < 0.9 else [])
        else:
            new = self.tokens(self.longest if rng.random() < 0.25 else 6)
        self.last_draft.pop(request, None)
        self.both(lambda d: d.observe(request, new))
        if request in self.slow.requests and len(self.slow.requests[request].tokens) > 1:
            self.texts = [*self.texts[-8:], list(self.slow.requests[request].tokens)]

    def propose(self) -> None:
        rng = self.rng
        live = list(self.slow.requests)
        rows = rng.sample(live, rng.randint(0, len(live))) if rng.random() < 0.6 else live
        if rng.random() < 0.01:
            rows = [*rows, rng.randrange(14)]  # repeated, not live, or fine
        limits: Any = (
            [rng.choice([0, 1, 2, 5, 40]) for _ in rows] if rng.random() < 0.5 else rng.choice([0, 4, 40])
        )
        if rng.random() < 0.01:
            limits = [*limits, 3, 3] if isinstance(limits, list) else -1
        fast, slow = self.both(lambda d: d.propose(rows, limits))
        if isinstance(fast, type):
            return
        assert len(fast) == len(slow) == len(rows)
        for request, draft, (token_ids, reach) in zip(rows, fast, slow, strict=True):
            assert draft.token_ids.tolist() == token_ids
            assert draft.token_ids.dtype == np.int32
            assert draft.reach.dtype == np.float64
            assert np.allclose(draft.reach, reach, rtol=0.0, atol=1e-9)
            self.last_draft[request] = token_ids
            self.counts["drafts"] += bool(token_ids)
            self.counts["tokens"] += len(token_ids)
        self.compare_calibration()

    def stop(self) -> None:
        live = list(self.slow.requests)
        request = self.rng.choice(live) if live and self.rng.random() < 0.98 else self.rng.randrange(14)
        self.last_draft.pop(request, None)
        evicting = len(self.slow.documents)
        self.both(lambda d: d.stop(request))
        self.counts["evictions"] += len(self.slow.documents) < evicting
        self.compare_calibration()

    def clear(self) -> None:
        self.both(lambda d: d.clear())

    def step(self) -> str:
        """One random operation, then every comparison that the state allows."""
        names = ("start", "observe", "propose", "stop", "clear")
        (name,) = self.rng.choices(names, weights=(14, 43, 34, 8.8, 0.2))
        getattr(self, name)()
        assert self.fast.num_live == len(self.slow.requests)
        mask = self.fast.memory.capacity - 1
        documents = [
            self.fast.memory.store[0][np.arange(a, b) & mask].tolist() for a, b in self.fast.memory._documents
        ]
        assert documents == [d.tokens for d in self.slow.documents]
        for request, slot in self.fast._slots.items():
            if not self.fast._pending:
                lo, end = self.fast._offset[slot], self.fast._end[slot]
                assert self.fast._live[0][lo : lo + end].tolist() == self.slow.requests[request].tokens
                self.compare_slot(slot, self.slow.requests[request])
        check_integrity(self.fast)
        self.counts[name] += 1
        return name

    def compare_slot(self, slot: int, request: Request) -> None:
        """Compare what is kept for a request between steps, apart from its text."""
        fast = self.fast
        length = len(request.draft)
        assert fast._luck[slot] == request.luck
        assert fast._anchor[slot] == (-1 if request.anchor is None else request.anchor)
        assert fast._length[slot] == length
        if length:
            assert fast._leader[slot] == (-1 if request.leader is None else request.leader)
            assert (fast._features[slot, :length] - kernels.OFFSETS).tolist() == request.features
            self.counts["led by own text"] += request.leader is not None
            self.counts["led by memory"] += request.leader is None
        self.counts["anchored"] += request.anchor is not None
        self.counts["in large regions"] += int(fast._capacity[slot]) > 512

    def compare_calibration(self) -> None:
        """Compare the weight and the information of every feature."""
        if self.fast._pending:
            return
        slow = self.slow.model
        information = list(itertools.chain(*slow.information))
        self.counts["sated"] += max(information) == kernels.MOST_EVIDENCE
        expected = [list(itertools.chain(*slow.weights)), information]
        assert np.allclose(self.fast.calibration.model, expected, rtol=0.0, atol=1e-9)


def fuzz(ops: int, seed: int, ops_per_life: int = 400, **options: Any) -> Counter[str]:
    """Run `ops` operations over as many lives as it takes; return how often what happened."""
    counts: Counter[str] = Counter()
    for life in range(0, ops, ops_per_life):
        rng = random.Random(f"{seed}-{life}")
        fuzzer = Fuzzer(rng, **options)
        for op in range(min(ops_per_life, ops - life)):
            try:
                fuzzer.step()
            except Exception as error:
                error.add_note(f"seed {seed}, life {life}, operation {op}")
                raise
        counts += fuzzer.counts
        counts["near votes"] += fuzzer.slow.near_votes
    return counts


@contextlib.contextmanager
def rebase_at(position: int) -> Iterator[list[int]]:
    """Make positions of the shared memory shift down early; yield the list of shifts that happened."""
    memory = drafters.memory
    old, original = memory._REBASE_AT, memory.SharedMemory._rebase
    shifts: list[int] = []

    def rebase(self: memory.SharedMemory) -> None:
        before = self.end
        original(self)
        shifts.append(before - self.end)

    memory._REBASE_AT, memory.SharedMemory._rebase = position, rebase
    try:
        yield shifts
    finally:
        memory._REBASE_AT, memory.SharedMemory._rebase = old, original


def main() -> None:
    """Run the long fuzz from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rebase-at", type=int, default=1 << 30, help="shift memory positions down from here on"
    )
    args = parser.parse_args()
    with np.errstate(over="ignore"), rebase_at(args.rebase_at) as shifts:
        counts = fuzz(args.ops, args.seed)
    print(dict(counts), f"rebases: {sum(s > 0 for s in shifts)}")


if __name__ == "__main__":
    main()
