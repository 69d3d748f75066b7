"""Long random lives of every drafter, and texts that are made to be hard: what holds of any draft, time, and bytes.

`fuzz_suffix_tree.py` compares one drafter with an oracle after every operation; this goes on for millions of them.
"""

from __future__ import annotations

import gc
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import numpy as np
from fuzz_suffix_tree import check_integrity

import drafters.memory
from drafters import FallbackDrafter, LookaheadDrafter, SuffixTreeDrafter, memory_file
from drafters.memory import BYTES_PER_TOKEN, MIN_TOKENS

KINDS: Final = ("suffix tree", "Lookahead", "both")
SMALL: Final = MIN_TOKENS * BYTES_PER_TOKEN
TENANTS: Final = ("", "a", "b", None)
SPAN: Final = 2**29  # ids of each tenant, up to the largest there is
OPERATIONS: Final = {
    "start": 10, "observe": 44, "propose": 36, "stop": 8, "wrong": 1, "wait": 1, "purge": 0.2, "document": 0.4,
    "clear": 0.02, "save": 0.03, "load": 0.03,
}  # fmt: skip
_LIVE_BYTES: Final = 36  # of a token of room in a live request
_FIXED_BYTES: Final = 24 << 20  # slab and index before any request; see SuffixTreeDrafter
STREAM: Final = 1 << 15  # tokens
WINDOW: Final = 1 << 12


# Texts.


def repeated(length: int) -> list[int]:
    """One token over and over."""
    return [7] * length


def de_bruijn(length: int, alphabet: int = 2) -> list[int]:
    """Every word of some length exactly once: no context says what comes (Fredricksen, Kessler and Maiorana)."""
    n = 1
    while alphabet**n < length:
        n += 1
    word, out = [0] * (alphabet * n + 1), []

    def extend(t: int, p: int) -> None:
        stack = [(t, p, -1)]
        while stack:
            t, p, value = stack.pop()
            if t > n:
                if n % p == 0:
                    out.extend(word[1 : p + 1])
                continue
            if value < 0:
                word[t] = word[t - p]
                stack.append((t, p, word[t - p] + 1))
                stack.append((t + 1, p, -1))
            elif value < alphabet:
                word[t] = value
                stack.append((t, p, value + 1))
                stack.append((t + 1, t, -1))

    extend(1, 1)
    return out[:length]


def fibonacci(length: int) -> list[int]:
    """The Fibonacci word: no period, and as many repetitions as a text without one can have."""
    a, b = [0], [0, 1]
    while len(b) < length:
        a, b = b, b + a
    return b[:length]


STREAMS: Final = {
    "one token": repeated,
    "de Bruijn of 2": de_bruijn,
    "de Bruijn of 32": lambda length: de_bruijn(length, 32),
    "Fibonacci": fibonacci,
}


# Lives.


class Life:
    """One drafter, and what is done to it, from a seed."""

    def __init__(self, kind: str, rng: random.Random, folder: Path) -> None:
        self.rng, self.folder, self.kind = rng, folder, kind
        self.now = 0.0
        self.max_n = rng.choice([1, 4, 16, 32])
        seeds = iter(range(1, 1 << 40))
        self.tree = self.lookahead = None
        if kind != "Lookahead":
            self.tree = SuffixTreeDrafter(
                max_n=self.max_n,
                memory_bytes=rng.choice([0, SMALL, 8 * SMALL, 64 * SMALL]),
                min_reach=rng.choice([0.0, 0.003, 0.3]),
                ttl=rng.choice([None, None, 30.0]),
                clock=lambda: self.now,
                new_seed=lambda: next(seeds),
            )
        if kind != "suffix tree":
            self.lookahead = LookaheadDrafter(
                max_n=self.max_n,
                window=rng.choice([1, 15]),
                ngram=rng.choice([2, 5, 8]),
                candidates=rng.choice([1, 8]),
                shared=rng.random() < 0.5,
                from_prompt=rng.random() < 0.5,
                pool_ngrams=rng.choice([16, 1024]),
                max_pools=rng.choice([1, 4]),
                min_reach=rng.choice([0.0, 0.003]),
                new_seed=lambda: next(seeds),
            )
        self.drafter: Any = (
            FallbackDrafter(self.tree, self.lookahead) if kind == "both" else self.tree or self.lookahead
        )
        self.live: dict[int, int] = {}  # tenant of each
        self.room: dict[int, int] = {}  # tokens of each
        self.most_room = self.most_live = 0
        self.max_live = rng.choice([1, 4, 16, 64])
        self.longest = rng.choice([30, 300, 2000])
        size = rng.choice([2, 3, 50, 5000])
        self.alphabet = [rng.randrange(SPAN - 1) for _ in range(size)]
        self.texts = [rng.choices(self.alphabet, k=200) for _ in range(3)]
        self.texts += [[self.alphabet[t % size] for t in make(2000)] for make in STREAMS.values()]
        self.reading: dict[int, tuple[list[int], int]] = {}  # what a request reads aloud, and where it is
        self.last: dict[int, list[int]] = {}
        self.next_id = 0
        self.counts: Counter[str] = Counter()

    def step(self) -> str:
        """One operation."""
        name: str = self.rng.choices(list(OPERATIONS), weights=list(OPERATIONS.values()))[0]
        getattr(self, name)()
        self.counts[name] += 1
        return name

    def said(self, tenant: int, most: int) -> list[int]:
        """Part of a text, in the tenant's own ids."""
        text = self.rng.choice(self.texts)
        at = self.rng.randrange(len(text))
        return [tenant * SPAN + token for token in text[at : at + self.rng.randint(0, most)]]

    def start(self) -> None:
        if len(self.live) >= self.max_live:
            return
        tenant = self.rng.randrange(len(TENANTS))
        prompt = self.said(tenant, self.longest)
        self.drafter.start(self.next_id, prompt, namespace=TENANTS[tenant])
        self.live[self.next_id], self.room[self.next_id] = tenant, len(prompt)
        self.reading[self.next_id] = self.rng.choice(self.texts), self.rng.randrange(200)
        self.next_id += 1
        self.grown()

    def observe(self) -> None:
        """A target that reads a text aloud: of a draft it keeps what the text says, and goes on by a token."""
        if not self.live:
            return
        request = self.rng.choice(list(self.live))
        tenant, (text, at) = self.live[request], self.reading[request]
        new = 1
        for token in self.last.pop(request, ()):
            if token != tenant * SPAN + text[(at + new - 1) % len(text)]:
                break
            new += 1
        if self.rng.random() < 0.02:
            new = self.rng.randint(0, 200)
        tokens = [tenant * SPAN + text[(at + i) % len(text)] for i in range(new)]
        if self.rng.random() < 0.05:
            at = self.rng.randrange(len(text))
        self.reading[request] = text, at + new
        if self.lookahead is not None and self.rng.random() < 0.5:
            self.drafter.verified(request, [*tokens, tenant * SPAN])
        self.drafter.observe(request, tokens)
        self.room[request] += new
        self.counts["tokens observed"] += new
        self.grown()

    def propose(self) -> None:
        rows = list(self.live)
        if self.rng.random() < 0.5:
            rows = self.rng.sample(rows, self.rng.randint(0, len(rows)))
        limits: Any = self.rng.choice([0, 1, 8, 40])
        if self.rng.random() < 0.3:
            limits = [self.rng.choice([0, 2, 40]) for _ in rows]
        drafts = self.drafter.propose(rows, limits)
        assert len(drafts) == len(rows)
        most = limits if isinstance(limits, list) else [limits] * len(rows)
        for request, draft, limit in zip(rows, drafts, most, strict=True):
            ids, reach = draft.token_ids.tolist(), draft.reach.tolist()
            assert len(ids) == len(reach) <= min(limit, self.max_n)
            tenant = self.live[request]
            assert all(token // SPAN == tenant for token in ids), "a token of another tenant"
            assert all(1.0 >= a >= b >= 0.0 for a, b in zip([1.0, *reach], reach, strict=False))
            self.last[request] = ids
            self.counts["tokens drafted"] += len(ids)

    def stop(self) -> None:
        if self.live:
            request = self.rng.choice(list(self.live))
            self.drafter.stop(request)
            for known in (self.live, self.room, self.reading):
                del known[request]
            self.last.pop(request, None)

    def wrong(self) -> None:
        """Calls that the contract refuses; nothing changes."""
        live = next(iter(self.live), None)
        calls: list[tuple[type[Exception], Any]] = [
            (KeyError, lambda: self.drafter.stop("nobody")),
            (KeyError, lambda: self.drafter.observe("nobody", [1])),
            (KeyError, lambda: self.drafter.propose(["nobody"], 4)),
            (ValueError, lambda: self.drafter.start("new", [1, -1], namespace="")),
            (TypeError, lambda: self.drafter.start("new", [1.5], namespace="")),
        ]
        if live is not None:
            calls += [
                (ValueError, lambda: self.drafter.start(live, [1], namespace="")),
                (ValueError, lambda: self.drafter.propose([live, live], 4)),
                (ValueError, lambda: self.drafter.propose([live], -1)),
                (ValueError, lambda: self.drafter.observe(live, [2**31])),
            ]
        kind, call = self.rng.choice(calls)
        try:
            call()
        except kind:
            return
        raise AssertionError("not refused")

    def wait(self) -> None:
        self.now += self.rng.choice([0.2, 1.0, 5.0])

    def purge(self) -> None:
        self.drafter.purge(self.rng.choice(["", "a", "b", "nobody"]))

    def document(self) -> None:
        if self.tree is not None:
            tenant = self.rng.randrange(3)
            self.tree.add_document(self.said(tenant, self.longest), TENANTS[tenant])

    def clear(self) -> None:
        self.drafter.clear()

    def save(self) -> None:
        if self.tree is not None:
            self.tree.save(self.folder / "memory", fingerprint="f")

    def load(self) -> None:
        if self.tree is not None and (self.folder / "memory").exists():
            self.tree.load(self.folder / "memory", fingerprint="f")

    def grown(self) -> None:
        """Note the most room that requests had at a time: powers of two, with 256 tokens beyond the text."""
        self.most_live = max(self.most_live, len(self.live))
        self.most_room = max(self.most_room, sum(2 * n + 1024 for n in self.room.values()))

    def check(self) -> None:
        """What holds of the whole, at the end of a life."""
        for part in (self.tree, self.lookahead):
            assert part is None or part.num_live == len(self.live)
        if self.tree is not None:
            if self.tree.memory.capacity <= 8 * MIN_TOKENS:
                check_integrity(self.tree)
            # Regions come in sizes, each of which is used again: at most so many as were needed of each at a time.
            sizes = self.longest.bit_length() + 2
            ring = max(self.tree.memory.capacity, 1) * BYTES_PER_TOKEN
            assert self.tree.num_bytes <= _FIXED_BYTES + ring + 2 * _LIVE_BYTES * sizes * self.most_room
        if self.lookahead is not None:
            pools = 2 * (self.most_live + 4 + len(TENANTS))
            assert self.lookahead.num_bytes <= max(1, pools) * self.lookahead._tables[0].nbytes


def lives(
    kind: str, operations: int, seed: int, first: int = 0, length: int = 5000
) -> Iterator[tuple[Counter[str], dict[str, float]]]:
    """Give what was done, and milliseconds of CPU time of the slowest of each, life by life.

    An error names the life that repeats it.
    """
    for life in range(first, first + max(1, -(-operations // length))):
        with (
            tempfile.TemporaryDirectory() as folder,
            # Files carry the time of day: it must not pass, or a seed would not repeat a life.
            mock.patch.object(memory_file, "time", SimpleNamespace(time=lambda: 1e9)),
            mock.patch.object(drafters.memory, "time", SimpleNamespace(time=lambda: 1e9, monotonic=None)),
        ):
            made = Life(kind, random.Random(f"{seed} {kind} {life}"), Path(folder))
            slowest = dict.fromkeys(OPERATIONS, 0.0)
            for at in range(min(length, operations)):
                begin = time.thread_time()
                try:
                    name = made.step()
                except BaseException as error:
                    error.add_note(f"--drafter {kind!r} --seed {seed} --life {life}: operation {at}")
                    raise
                slowest[name] = max(slowest[name], 1e3 * (time.thread_time() - begin))
            try:
                made.check()
            except BaseException as error:
                error.add_note(f"--drafter {kind!r} --seed {seed} --life {life}: the end")
                raise
        yield made.counts, slowest
        del made
        gc.collect()  # a life and its clock hold one another


# Hard texts.


def read_aloud(kind: str, text: list[int], tenants: int = 1) -> dict[str, Any]:
    """A target that says a text while its drafts are verified; with several tenants, each in turn says its own.

    Returns microseconds of CPU time for each token, by window of the text, bytes at the end, and tokens drafted. What
    takes ten times as long in the last windows as in the first ones, and more bytes than tokens explain, is an error.
    """
    tree = None if kind == "Lookahead" else SuffixTreeDrafter(max_n=32, memory_bytes=1 << 20)
    lookahead = None if kind == "suffix tree" else LookaheadDrafter(max_n=16, from_prompt=True)
    drafter: Any = FallbackDrafter(tree, lookahead) if tree and lookahead else tree or lookahead
    names = list(range(tenants))
    for name in names:
        drafter.start(name, [t + name * SPAN for t in text[:16]], namespace=str(name))
    at = dict.fromkeys(names, 16)
    begin, windows, drafted, said, due = time.thread_time(), [], 0, 0, WINDOW
    while at[names[-1]] < len(text):
        drafts = drafter.propose(names, 32)
        for name, draft in zip(names, drafts, strict=True):
            ids, start = draft.token_ids.tolist(), at[name]
            own = [t + name * SPAN for t in text[start : start + len(ids) + 1]]
            right = next(
                (i for i, (a, b) in enumerate(zip(ids, own, strict=False)) if a != b),
                min(len(ids), len(own) - 1),
            )
            drafter.observe(name, own[: right + 1])
            at[name] += right + 1
            said += right + 1
            drafted += len(ids)
        if said >= due * tenants:
            now = time.thread_time()
            windows.append(1e6 * (now - begin) / (WINDOW * tenants))
            begin, due = now, due + WINDOW
    for name in names:
        drafter.stop(name)
    begin = time.thread_time()
    drafter.start("prompt", text, namespace="prompt")
    drafter.propose(["prompt"], 32)
    prompt = 1e6 * (time.thread_time() - begin) / len(text)
    drafter.stop("prompt")
    num_bytes = sum(part.num_bytes for part in (tree, lookahead) if part)
    early, late = np.median(windows[:3]), np.median(windows[-3:])
    assert late <= 10 * early + 50, f"{late:.0f} us a token at the end, {early:.0f} at the beginning"
    room = (0 if tree is None else _FIXED_BYTES + 8 * _LIVE_BYTES * len(text) * tenants + (1 << 20)) + (
        0 if lookahead is None else 4 * tenants * lookahead._tables[0].nbytes
    )
    assert num_bytes <= room, f"{num_bytes} bytes"
    return {
        "us_per_token": [round(window, 2) for window in windows],
        "prompt_us_per_token": round(prompt, 2),
        "bytes": num_bytes,
        "tokens": said,
        "drafted": drafted,
    }
