"""Fuzz the suffix-tree drafter against its oracle by sequences of operations.

The unit tests run a few seconds of it. The long run: `python tests/fuzz_suffix_tree.py --ops 100000 --seed 0`
"""

import argparse
import contextlib
import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from naive import NaiveDrafter, Request

import drafters.memory
from drafters import SuffixTreeDrafter, _live_store, _ring, memory_file, suffix_tree
from drafters import _index_kernels as index
from drafters import _reach_kernels as reach_kernels
from drafters import _suffix_tree_kernels as kernels
from drafters.memory import BYTES_PER_TOKEN, MIN_TOKENS

SMALL = MIN_TOKENS * BYTES_PER_TOKEN

NAMESPACES = ("", "", "a", "a", "b", "c", None)
ALPHABETS = (
    [0, 1],
    [5, 6, 7],
    [0, 1, 2, 2**31 - 2],
    list(range(20)),
    list(range(1000, 1500)),
    [n * 7919 % (2**31 - 1) for n in range(5000)],
)


def buckets(tokens: np.ndarray, k: int, mask: int, seed: int = 0) -> np.ndarray:
    """Bucket of the k-token context that ends at each position; -1 where it is shorter."""
    text = tokens.astype(np.int64)
    h = np.full(len(text), seed, dtype=np.int64)
    multiplier = np.int64(index.HASH_MULTIPLIER)
    for d in range(k):
        shifted = np.concatenate([np.zeros(min(d, len(text)), np.int64), text[: max(0, len(text) - d)]])
        h = h * multiplier + shifted + 1
    h = h * multiplier
    b = (h ^ (h >> index.HASH_SHIFT)) & mask
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
    text, prev, head = drafter._live.arrays
    slots = drafter._slots
    claimed: list[tuple[int, int]] = []
    for request in drafter._requests.values():
        slot = request.slot
        lo, size, end = (int(a[slot]) for a in (slots.offset, slots.capacity, slots.end))
        if not size:  # no region before its tokens are indexed
            assert end == 0
            continue
        claimed.append((lo, size))
        assert 0 <= end <= size
        assert size & (size - 1) == 0
        for o, k in enumerate(index.ORDERS):
            b = buckets(text[lo : lo + end], k, size - 1)
            before = latest_earlier(b)
            distance = np.where(before >= 0, np.arange(end) - before, 0)
            assert np.array_equal(prev[o, lo : lo + end], distance)
            assert np.array_equal(head[o, lo : lo + size], latest_in_bucket(b, size))
        assert 0 <= slots.length[slot] <= drafter.max_n
        assert 0.0 <= slots.luck[slot] <= 1.0
    free = [(lo, size) for size, offsets in drafter._live.free.items() for lo in offsets]
    assert not any(text[lo : lo + size].any() for lo, size in free)  # what was said there is gone
    claimed = sorted(claimed + free)
    assert sum(size for _, size in claimed) == drafter._live.used <= len(text)  # disjoint, and nothing leaked
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(claimed))
    live = [request.slot for request in drafter._requests.values()]
    assert sorted([*live, *slots.free]) == list(range(len(slots)))
    assert (slots.source[slots.free] == -1).all()
    check_memory(drafter.memory, sources=slots.source)
    users = Counter(d.namespace for d in drafter.memory._documents if d.is_alive)
    users.update(r.namespace for r in drafter._requests.values() if r.namespace is not None)
    common = drafter.memory.namespaces.get("")
    assert common is not None
    users[common] += 1
    assert dict(users) == {namespace: namespace.num_users for namespace in drafter.memory.namespaces}
    for request in drafter._requests.values():
        tag, seed = int(slots.tag[request.slot]), int(slots.seed[request.slot])
        expected = (request.namespace.tag, request.namespace.seed) if request.namespace else (-1, 0)
        assert (tag, seed) == expected


def check_memory(memory: drafters.memory.SharedMemory, sources: Any = ()) -> None:
    """Check the ring: documents lie one after the other, what was forgotten is overwritten and has no credit,
    chains lead to the latest earlier position that lives, over positions of forgotten documents at most.
    """
    ring = memory.ring
    text, prev, head = ring.store
    capacity, tail, end = ring.capacity, ring.tail, ring.end
    assert 0 <= tail <= end <= tail + capacity
    if not capacity:
        assert memory.num_tokens == end == 0
        return
    mask = capacity - 1
    at = np.arange(tail, end) & mask
    is_alive = np.zeros(end - tail, dtype=bool)
    position = tail
    for document in memory._documents:
        assert document.start == position
        span = np.arange(position - tail, document.end - tail)
        position = document.end + 1
        assert text[document.end & mask] == index.SEPARATOR
        is_alive[span] = document.is_alive
        if document.is_alive:
            tags = text[at[span]] & ~0xFFFFFFFF
            assert (tags == document.namespace.tag).all()
            twin = memory._by_key[document.key]
            assert twin.is_alive
            assert twin.key == document.key
    assert position == end
    assert len(memory._documents) <= memory._max_documents
    assert len(memory._by_key) <= memory.num_documents
    lives = np.zeros(capacity, dtype=bool)
    lives[at[is_alive]] = True
    assert (text[~lives] <= 0).all()  # a separator, or never written
    assert (text[at[~is_alive]] == index.SEPARATOR).all()
    assert not ring.credit[~lives].any()
    assert (ring.credit >= 0).all()
    for source in np.asarray(sources, dtype=np.int64).tolist():
        assert source == -1 or (tail <= source < end and is_alive[source - tail])
    for o, k in enumerate(index.ORDERS):
        b = np.full(end - tail, -1)
        for document in memory._documents:
            if document.is_alive:
                span = np.arange(document.start, document.end)
                b[span - tail] = buckets(text[span & mask], k, mask, document.namespace.seed)
        assert (prev[o, at] >= 0).all()
        assert not prev[o, at[is_alive & (b < 0)]].any()

        def living(positions: np.ndarray, links: np.ndarray = prev[o]) -> np.ndarray:
            """Follow links from forgotten positions to one that lives; -1 where they lead to none."""
            positions = np.where(positions >= tail, positions, -1)
            while True:
                lost = np.flatnonzero((positions >= 0) & ~lives[positions & mask])
                if not lost.size:
                    return positions
                step = links[positions[lost] & mask]
                positions[lost] = np.where(step > 0, positions[lost] - step, -1)
                positions[positions < tail] = -1

        before = latest_earlier(b)
        step = prev[o, at].astype(np.int64)
        found = living(np.where(step > 0, np.arange(tail, end) - step, -1))
        linked = is_alive & (b >= 0)
        assert np.array_equal(found[linked], np.where(before >= 0, before + tail, -1)[linked])
        expected = latest_in_bucket(b, capacity)
        latest = living(head[o].astype(np.int64) - 1)
        assert np.array_equal(latest, np.where(expected > 0, expected + tail - 1, -1))


OPERATIONS = {
    "start": 14,
    "observe": 42,
    "propose": 34,
    "stop": 8,
    "add_document": 1.5,
    "wait": 5,
    "purge": 0.4,
    "save": 0.3,
    "load": 0.3,
    "clear": 0.1,
}


class Fuzzer:
    """Drives a drafter and its oracle through one random life, comparing after every operation."""

    def __init__(
        self, rng: random.Random, folder: Path, alphabet: list[int] | None = None, **options: Any
    ) -> None:
        self.rng = rng
        self.alphabet = alphabet or rng.choice(ALPHABETS)
        options = {
            "max_n": rng.choice([1, 3, 8, 32]),
            "memory_bytes": rng.choice([0, SMALL, SMALL, 2 * SMALL, 4 * SMALL]),
            "min_reach": rng.choice([0.0, 0.02, 0.3]),
            "ttl": rng.choice([None, None, 30.0, 4.0]),
        } | options
        self.time = 0.0
        seeds = [rng.getrandbits(63) for _ in range(100)]
        with mock.patch.object(suffix_tree, "NUM_ENTRIES", rng.choice([64, 256, 1 << 16])):
            self.fast, self.slow = (
                kind(**options, clock=lambda: self.time, new_seed=itertools.cycle(seeds).__next__)
                for kind in (SuffixTreeDrafter, NaiveDrafter)
            )
        self.saved: list[tuple[Path, Any]] = []  # file, and what the oracle made of it
        self.folder = folder
        self.texts: list[list[int]] = [[rng.choice(self.alphabet) for _ in range(30)]]  # to copy from
        self.last_draft: dict[int, list[int]] = {}
        self.counts: Counter[str] = Counter()
        self.max_live = rng.choice([1, 4, 10])
        if rng.random() < 0.3:  # weights that have seen almost all they remember
            evidence = reach_kernels.MOST_EVIDENCE - 1.0
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
        prompt, namespace = self.tokens(self.longest), self.rng.choice(NAMESPACES)
        self.both(lambda d: d.start(request, prompt, namespace=namespace))

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
        self.both(lambda d: d.stop(request))
        self.compare_calibration()

    def add_document(self) -> None:
        text, namespace = self.tokens(self.longest), self.rng.choice(NAMESPACES[:-1])
        living = self.slow.memory.living()
        if living and self.rng.random() < 0.3:  # one that is there, in its namespace mostly
            text = self.rng.choice(living).tokens
            namespace = self.rng.choice([namespace, *(d.namespace for d in living if d.tokens == text)])
        self.agree(lambda d: d.add_document(text, namespace))

    def purge(self) -> None:
        namespace = self.rng.choice(["", "a", "b", "c", "unknown"])
        self.agree(lambda d: d.purge(namespace))

    def wait(self) -> None:
        self.time += self.rng.choice([0.25, 1.0, 3.0])

    def save(self) -> None:
        path = self.folder / str(self.rng.randrange(3))
        self.fast.save(path, fingerprint="fuzz")
        self.saved = [(p, s) for p, s in self.saved if p != path] + [(path, self.slow.save())]
        assert [p.name for p in self.folder.iterdir() if p.name.startswith(".")] == []

    def load(self) -> None:
        if not self.saved:
            return
        path, saved = self.rng.choice(self.saved)
        if self.rng.random() < 0.7:
            self.clear()
        loaded = self.fast.load(path, fingerprint="fuzz")
        assert loaded == self.slow.load(saved)
        self.counts["loaded"] += loaded

    def clear(self) -> None:
        self.both(lambda d: d.clear())

    def agree(self, call: Callable[[Any], Any]) -> None:
        fast, slow = self.both(call)
        assert fast == slow

    def step(self) -> str:
        """One random operation, then every comparison that the state allows."""
        (name,) = self.rng.choices([*OPERATIONS], weights=[*OPERATIONS.values()])
        getattr(self, name)()
        fast = self.fast
        assert fast.num_live == len(self.slow.requests)
        self.compare_memory()
        for request_id, request in fast._requests.items():
            if not fast._pending:
                lo, end = fast._slots.offset[request.slot], fast._slots.end[request.slot]
                text = fast._live.arrays[0][lo : lo + end]
                assert text.tolist() == self.slow.requests[request_id].tokens
                self.compare_slot(request.slot, self.slow.requests[request_id])
        self.counts[name] += 1
        return name

    def compare_memory(self) -> None:
        """Compare the documents, what they have earned, and the namespaces."""
        fast, slow = self.fast.memory, self.slow.memory
        assert [d.is_alive for d in fast._documents] == [d.alive for d in slow.documents]
        mask = fast.capacity - 1
        for document, expected in zip(fast._documents, slow.documents, strict=True):
            at = np.arange(document.start, document.end) & mask
            if not document.is_alive:
                assert len(at) == len(expected.tokens)
                continue
            assert (fast.ring.store[0][at] - document.namespace.tag).tolist() == expected.tokens
            assert document.namespace.name == expected.namespace
            assert document.birth == expected.birth
            if not self.fast._pending:
                assert document.credit + fast.ring.credit[at].sum() == expected.credit
        assert {n.name: (n.tag, n.seed) for n in fast.namespaces} == slow.namespaces
        assert fast.num_refused == slow.num_refused

    def compare_slot(self, slot: int, request: Request) -> None:
        """Compare what is kept for a request between steps, apart from its text."""
        slots = self.fast._slots
        length = len(request.draft)
        assert slots.luck[slot] == request.luck
        assert slots.anchor[slot] == (-1 if request.anchor is None else request.anchor)
        assert slots.length[slot] == length
        source = -1
        if request.source:
            document, offset = request.source
            where = self.slow.memory.documents.index(document)
            source = self.fast.memory._documents[where].start + offset
        assert slots.source[slot] == source
        if length:
            assert slots.leader[slot] == (-1 if request.leader is None else request.leader)
            assert (slots.features[slot, :length] - kernels.OFFSETS).tolist() == request.features
            self.counts["led by own text"] += request.leader is not None
            self.counts["led by memory"] += request.source is not None
        self.counts["anchored"] += request.anchor is not None
        self.counts["in large regions"] += int(slots.capacity[slot]) > 512

    def compare_calibration(self) -> None:
        """Compare the weight and the information of every feature."""
        if self.fast._pending:
            return
        slow = self.slow.model
        information = list(itertools.chain(*slow.information))
        self.counts["sated"] += max(information) == reach_kernels.MOST_EVIDENCE
        expected = [list(itertools.chain(*slow.weights)), information]
        assert np.allclose(self.fast.calibration.model, expected, rtol=0.0, atol=1e-9)


def fuzz(ops: int, seed: int, ops_per_life: int = 400, check_every: int = 1, **options: Any) -> Counter[str]:
    """Run `ops` operations over as many lives as it takes; return how often what happened.

    Drafts, texts, documents and calibration are compared after every operation; every index is recomputed after each
    `check_every`-th and the last of a life.
    """
    counts: Counter[str] = Counter()
    for life in range(0, ops, ops_per_life):
        rng = random.Random(f"{seed}-{life}")
        # Files carry the time of day; it must not pass, or ages would not be the oracle's.
        standstill = SimpleNamespace(time=lambda: 1e9, monotonic=None)
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(memory_file, "time", standstill),
            mock.patch.object(drafters.memory, "time", standstill),
            mock.patch.object(_live_store, "FIRST_TOKENS", 1024),  # so that it grows
        ):
            fuzzer = Fuzzer(rng, Path(folder), **options)
            length = min(ops_per_life, ops - life)
            for op in range(length):
                try:
                    fuzzer.step()
                    if (op + 1) % check_every == 0 or op + 1 == length:
                        check_integrity(fuzzer.fast)
                except Exception as error:
                    error.add_note(f"seed {seed}, life {life}, operation {op}")
                    raise
        counts += fuzzer.counts
        counts.update(fuzzer.slow.memory.events)
        counts["doc refused"] += fuzzer.slow.memory.num_refused
        counts["near votes"] += fuzzer.slow.near_votes
        counts["live votes"] += fuzzer.slow.live_votes
    return counts


@contextlib.contextmanager
def rebase_at(position: int) -> Iterator[list[int]]:
    """Make positions of the shared memory shift down early; yield the list of shifts that happened."""
    original = _ring.Ring.rebase
    shifts: list[int] = []

    def rebase(self: _ring.Ring, num_positions: int) -> int:
        shifts.append(original(self, num_positions))
        return shifts[-1]

    with mock.patch.object(_ring, "_REBASE_AT", position), mock.patch.object(_ring.Ring, "rebase", rebase):
        yield shifts


def main() -> None:
    """Run the long fuzz from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rebase-at", type=int, default=1 << 30, help="shift memory positions down from here on"
    )
    parser.add_argument("--check-every", type=int, default=1, help="operations between two integrity checks")
    args = parser.parse_args()
    with np.errstate(over="ignore"), rebase_at(args.rebase_at) as shifts:
        counts = fuzz(args.ops, args.seed, check_every=args.check_every)
    print(dict(counts), f"rebases: {sum(s > 0 for s in shifts)}")


if __name__ == "__main__":
    main()
