"""Plain-Python oracle of the suffix-tree drafter: lists, loops and brute force instead of chains, rings and kernels.

Constants are read from `drafters`, so that tuning one breaks no test; code is not. Errors of the contract are
raised where a sequence of valid tokens can meet them; token validation is tested on the drafter itself.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice

from drafters import _index_kernels as index
from drafters import _live_store, _prior, memory, suffix_tree
from drafters import _reach_kernels as reach_kernels
from drafters import _suffix_tree_kernels as kernels

ORDERS = index.ORDERS.tolist()
LENGTH_WEIGHT = index.LENGTH_WEIGHT.tolist()

Features = list[int]  # of each group the index of the one that a draft token has


def signed(value: int) -> int:
    """Wrap to a signed 64-bit integer, as the kernels' arithmetic does."""
    return (value + 2**63) % 2**64 - 2**63


@lru_cache(maxsize=1 << 18)
def suffix_hash(tokens: tuple[int, ...], tag: int, seed: int) -> int:
    """Hash of a context before it is masked to a bucket."""
    h = seed
    for token in reversed(tokens):
        h = signed(h * index.HASH_MULTIPLIER + tag + token + 1)
    h = signed(h * index.HASH_MULTIPLIER)
    return h ^ (h >> index.HASH_SHIFT)


@dataclass(eq=False)
class Text:
    """Tokens, and for every order the hash of the context that ends at each position (None: too short)."""

    tokens: list[int] = field(default_factory=list)
    hashes: dict[int, list[int | None]] = field(default_factory=lambda: {k: [] for k in ORDERS})
    tag: int = 0
    seed: int = 0

    def extend(self, token_ids: list[int]) -> None:
        for token in token_ids:
            self.tokens.append(token)
            for k in ORDERS:
                context = tuple(self.tokens[-k:])
                self.hashes[k].append(
                    suffix_hash(context, self.tag, self.seed) if len(context) == k else None
                )

    def in_bucket(self, k: int, bucket: int, mask: int, before: int) -> Iterator[int]:
        """Positions below `before` whose last k tokens fall into a bucket, newest first."""
        hashes = self.hashes[k]
        return (i for i in range(before - 1, k - 2, -1) if hashes[i] & mask == bucket)


@dataclass(eq=False)
class Document(Text):
    """What the shared memory holds; tokens of a forgotten one are separators, in the buckets that they were in."""

    namespace: str = ""
    birth: float = 0.0
    credit: int = 0
    alive: bool = True


@dataclass(frozen=True)
class Saved:
    """A document as a file has it."""

    tokens: tuple[int, ...]
    namespace: str
    age: float
    credit: int


@dataclass(eq=False)
class Request(Text):
    prompt_length: int = 0
    namespace: str | None = ""
    capacity: int = 0
    luck: float = 0.0
    draft: list[int] = field(default_factory=list)
    features: list[Features] = field(default_factory=list)
    leader: int | None = None  # where in this text the leading occurrence of the last draft goes on
    source: tuple[Document, int] | None = None  # the same if it is in the shared memory
    anchor: int | None = None


@dataclass
class Voter:
    text: Text
    start: int
    length: int
    weight: float
    own: bool
    near: bool = False
    live: bool = False  # reads what another live request said


def bucket_of(edges: Iterable[float], value: float) -> int:
    return sum(value >= edge for edge in edges)


class Model:
    """Weights of the features by group, and the information that each has seen."""

    def __init__(self) -> None:
        self.weights = [list(group) for group in _prior.WEIGHTS]
        self.weights += [[0.0] * (kernels.NUM_TOKEN_BUCKETS + 1) for _ in range(2)]
        self.information = [[reach_kernels.FIRST_EVIDENCE] * len(group) for group in self.weights]

    def chance(self, features: Features) -> float:
        z = sum(weights[f] for weights, f in zip(self.weights, features, strict=True))
        return 1.0 / (1.0 + math.exp(-z))

    def learn(self, features: Features, right: bool) -> None:
        chance = self.chance(features)
        for weights, information, f in zip(self.weights, self.information, features, strict=True):
            information[f] = min(information[f] + chance * (1.0 - chance), reach_kernels.MOST_EVIDENCE)
            weights[f] += reach_kernels.LEARNING_RATE * (right - chance) / information[f]


def token_bucket(token: int, key: tuple[int, int] | None) -> int:
    """Feature of a token id under a namespace's tag and seed."""
    if key is None:
        return 0
    h = signed(signed(key[1] + token) * index.HASH_MULTIPLIER)
    return 1 + ((h ^ (h >> index.HASH_SHIFT)) & (kernels.NUM_TOKEN_BUCKETS - 1))


def features_of(
    request: Request,
    winners: list[Voter],
    losers: list[Voter],
    share: float,
    draft: list[int],
    best: int,
    key: tuple[int, int] | None,
) -> Features:
    """Features of the next draft token, `best`."""
    n = len(draft)
    leader = max(winners, key=lambda v: v.length)  # the first of equals
    from_prompt = leader.own and leader.start < request.prompt_length
    before = bucket_of(kernels.PROMPT_END_EDGES, request.prompt_length - leader.start - n)
    source = 1 if from_prompt else 2 if leader.own else 0
    previous = [0, *request.tokens, *draft][-1]
    length = bucket_of(kernels.LENGTH_EDGES, max(v.length for v in winners) + n)
    share_bucket = bucket_of(kernels.SHARE_EDGES, share)
    contested = share_bucket < len(kernels.SHARE_EDGES)
    against = max((v.length for v in losers), default=0)
    return [
        length * (len(kernels.SHARE_EDGES) + 1) + share_bucket,
        bucket_of(kernels.POSITION_EDGES, n),
        bucket_of(kernels.LUCK_EDGES, request.luck),
        bucket_of(kernels.VOTERS_EDGES, len(winners)) * 2 + (not contested),
        1 + bucket_of(kernels.DISSENT_EDGES, against) if contested else 0,
        before if from_prompt else len(kernels.PROMPT_END_EDGES) + 1,
        source * (len(kernels.LENGTH_EDGES) + 1) + length,
        token_bucket(previous, key),
        token_bucket(best, key),
    ]


def match_length(tokens: list[int], at: int, context: list[int]) -> int:
    n = 0
    while n < min(index.MAX_MATCH, at + 1, len(context)) and tokens[at - n] == context[-1 - n]:
        n += 1
    return n


def find_voters(
    context: Text,
    texts: list[Text],
    mask: int,
    *,
    own: bool,
    key: tuple[int, int] = (0, 0),
    anchor: int | None = None,
) -> list[Voter]:
    """Occurrences of the context's suffixes in `texts` (newest last), longest order first, newest first.

    key: tag and seed of the namespace to look in.
    """
    voters: list[Voter] = []
    above = float("inf")
    for k in ORDERS:
        if len(context.tokens) < k:
            continue
        bucket = suffix_hash(tuple(context.tokens[-k:]), *key) & mask
        walk = (
            (text, i)
            for text in reversed(texts)
            for i in text.in_bucket(k, bucket, mask, len(text.tokens) - own)
        )
        recency, found = 1.0, 0
        for text, i in islice(walk, index.MAX_STEPS):
            if found == index.MAX_PER_ORDER or len(voters) == index.MAX_OCCURRENCES:
                break
            n = match_length(text.tokens, i, context.tokens) if text.tag == key[0] else 0
            if k <= n < above:
                near = anchor is not None and abs(i + 1 - anchor) <= index.NEAR
                weight = LENGTH_WEIGHT[n] * recency * (index.NEAR_BONUS if near else 1.0)
                voters.append(Voter(text, i + 1, n, weight, own, near))
                recency *= index.RECENCY
                found += 1
        above = k
    return voters


@dataclass(eq=False)
class Entry:
    """A token of an answer, after which others may look for what comes next."""

    request: Request
    position: int


class Entries:
    """The latest tokens of answers, and what of them a live request finds again in those of others."""

    def __init__(self, room: int, requests: dict[object, Request]) -> None:
        self.room, self.requests = room, requests
        self.latest: list[Entry | None] = []  # the oldest first; None: forgotten
        self.hashes: list[dict[int, int]] = []

    def enter(self, request: Request, begin: int, key: tuple[int, int]) -> None:
        if not self.room:
            return
        for p in range(max(begin, request.prompt_length - 1, 0), len(request.tokens)):
            text = request.tokens[: p + 1]
            self.latest.append(Entry(request, p))
            self.hashes.append({k: suffix_hash(tuple(text[-k:]), *key) for k in ORDERS if k <= len(text)})
        del self.latest[: -self.room], self.hashes[: -self.room]

    def forget(self, namespace: str | None = None) -> None:
        self.latest = [
            None if e is None or namespace in (None, e.request.namespace) else e for e in self.latest
        ]

    def find(self, request: Request, key: tuple[int, int]) -> list[Voter]:
        voters: list[Voter] = []
        above = float("inf")
        alive = set(map(id, self.requests.values()))
        for k in ORDERS:
            if len(request.tokens) < k:
                continue
            bucket = suffix_hash(tuple(request.tokens[-k:]), *key) & (self.room - 1)
            walk = (
                entry
                for entry, hashes in zip(reversed(self.latest), reversed(self.hashes), strict=True)
                if k in hashes and hashes[k] & (self.room - 1) == bucket
            )
            recency, found = 1.0, 0
            for entry in islice(walk, index.MAX_STEPS):
                if found == index.MAX_PER_ORDER or len(voters) == index.MAX_OCCURRENCES:
                    break
                if entry is None or id(entry.request) not in alive or entry.request is request:
                    continue
                other, p = entry.request, entry.position
                if other.namespace != request.namespace or p + 1 >= len(other.tokens):
                    continue
                n = match_length(other.tokens, p, request.tokens)
                n = min(n, p + 1 - max(0, other.prompt_length - index.PROMPT_TAIL))
                if k <= n < above:
                    voters.append(Voter(other, p + 1, n, LENGTH_WEIGHT[n] * recency, own=False, live=True))
                    recency *= index.RECENCY
                    found += 1
            above = k
        return voters


class Memory:
    """Documents, the oldest first, the dead ones among them, and which namespaces are in use."""

    def __init__(
        self,
        memory_bytes: int,
        ttl: float | None,
        clock: Callable[[], float],
        new_seed: Callable[[], int],
        requests: dict[object, Request],
    ) -> None:
        self.room = 0  # tokens, a power of two
        if memory_bytes:
            self.room = 1
            while 2 * self.room * memory.BYTES_PER_TOKEN <= memory_bytes:
                self.room *= 2
        self.ttl, self.clock, self.new_seed, self.requests = ttl, clock, new_seed, requests
        self.next_expiry = -math.inf
        self.documents: list[Document] = []
        self.namespaces = {"": (0, 0)}
        self.num_namespaces = 0
        self.num_refused = 0
        self.events = {"twins": 0, "moved": 0, "pinned": 0, "dropped": 0, "expired": 0, "purged": 0}

    def key_of(self, name: str) -> tuple[int, int]:
        """Tag and seed."""
        if name not in self.namespaces:
            self.num_namespaces += 1
            self.namespaces[name] = (self.num_namespaces << 32, self.new_seed())
        return self.namespaces[name]

    def sweep(self) -> None:
        """Forget the namespaces that nobody uses."""
        used = {"", *(d.namespace for d in self.living())} | {r.namespace for r in self.requests.values()}
        self.namespaces = {name: key for name, key in self.namespaces.items() if name in used}

    def living(self) -> list[Document]:
        return [d for d in self.documents if d.alive]

    def pinned(self) -> set[Document]:
        return {r.source[0] for r in self.requests.values() if r.source}

    def lacks(self, size: int) -> bool:
        full = sum(len(d.tokens) + 1 for d in self.documents) + size > self.room
        return full or len(self.documents) + 1 > self.room // memory._TOKENS_PER_DOCUMENT

    def add(
        self, tokens: list[int], namespace: str, credit: int = 0, birth: float | None = None
    ) -> Document | None:
        tokens = tokens[-(self.room - 1) :] if self.room else []
        if len(tokens) < 2:
            return None
        for twin in self.living():
            if twin.namespace == namespace and twin.tokens == tokens:
                twin.credit = twin.credit + len(tokens) if birth is None else max(twin.credit, credit)
                twin.birth = self.clock() if birth is None else max(twin.birth, birth)
                self.events["twins"] += 1
                return twin
        key = self.key_of(namespace)
        if not self.make_room(len(tokens) + 1):
            self.num_refused += 1
            return None
        new = Document(tag=key[0], seed=key[1], namespace=namespace, credit=credit)
        new.birth = self.clock() if birth is None else birth
        new.extend(tokens)
        self.documents.append(new)
        return new

    def make_room(self, size: int) -> bool:
        pinned = self.pinned()
        taken = sum(len(d.tokens) + 1 for d in pinned)
        many = len(pinned) + 1 > self.room // memory._TOKENS_PER_DOCUMENT
        if self.lacks(size) and (many or taken + size > self.room):
            return False
        allowance = 2 * size
        while self.lacks(size):
            oldest = self.documents.pop(0)
            if not oldest.alive:
                continue
            valued = allowance > 0 and oldest.credit >= len(oldest.tokens) / memory.CREDIT_SHARE
            if oldest in pinned or valued:
                if oldest not in pinned:
                    allowance -= len(oldest.tokens) + 1
                oldest.credit //= 2
                self.documents.append(oldest)
                self.events["pinned" if oldest in pinned else "moved"] += 1
            else:
                oldest.alive = False
                self.events["dropped"] += 1
        return True

    def forget(self, gone: list[Document], why: str) -> int:
        for document in gone:
            document.alive = False
            document.tokens = [index.SEPARATOR] * len(document.tokens)
        for request in self.requests.values():
            if request.source and not request.source[0].alive:
                request.source = None
        self.events[why] += len(gone)
        return len(gone)

    def expire(self, *, at_once: bool = False) -> None:
        if self.ttl is None or (self.clock() < self.next_expiry and not at_once):
            return
        self.next_expiry = self.clock() + memory._EXPIRY_PERIOD
        self.forget([d for d in self.living() if self.clock() - d.birth > self.ttl], "expired")

    def save(self) -> list[Saved]:
        return [Saved(tuple(d.tokens), d.namespace, self.clock() - d.birth, d.credit) for d in self.living()]

    def load(self, saved: list[Saved]) -> int:
        fresh = [(i, s) for i, s in enumerate(saved) if self.ttl is None or s.age <= self.ttl]
        # Those of value first, then the newest, until the first that does not fit.
        fresh.sort(key=lambda x: (x[1].credit < len(x[1].tokens) / memory.CREDIT_SHARE, -x[0]))
        chosen, left = [], self.room
        for i, document in fresh[: self.room // memory._TOKENS_PER_DOCUMENT]:
            left -= min(len(document.tokens) + 1, self.room)
            if left < 0:
                break
            chosen.append((i, document))
        for document in saved:
            if document.namespace not in self.namespaces:
                self.key_of(document.namespace)
        added = {
            self.add(list(s.tokens), s.namespace, s.credit, self.clock() - s.age)
            for _, s in sorted(chosen, key=lambda x: x[0])
        }
        return sum(d is not None and d.alive for d in added)


class NaiveDrafter:
    """The same verbs, drafts and reach as `drafters.SuffixTreeDrafter`."""

    def __init__(
        self,
        *,
        max_n: int = 32,
        memory_bytes: int = 256 << 20,
        min_reach: float = 0.02,
        ttl: float | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        new_seed: Callable[[], int] = lambda: 1,
    ) -> None:
        self.max_n, self.min_reach = max_n, min_reach
        self.requests: dict[object, Request] = {}
        self.memory = Memory(memory_bytes, ttl, clock, new_seed, self.requests)
        self.entries = Entries(suffix_tree.NUM_ENTRIES if memory_bytes else 0, self.requests)
        self.model = Model()
        self.near_votes = self.live_votes = 0
        self.usual_luck = suffix_tree._LUCK_START

    def clear(self) -> None:
        self._grow()
        self.memory.forget(self.memory.living(), "purged")
        self.memory.documents = []
        self.memory.num_refused = 0
        self.memory.sweep()
        self.entries.forget()
        self.model = Model()
        self.usual_luck = suffix_tree._LUCK_START

    def start(self, request_id: object, prompt_ids: list[int], *, namespace: str | None = "") -> None:
        if request_id in self.requests:
            raise ValueError(request_id)
        request = Request(prompt_length=len(prompt_ids), namespace=namespace, luck=self.usual_luck)
        if namespace is not None:
            self.memory.key_of(namespace)
        request.extend(prompt_ids)
        self.requests[request_id] = request
        if namespace is not None:
            self.entries.enter(request, 0, self.memory.key_of(namespace))

    def observe(self, request_id: object, token_ids: list[int]) -> None:
        request = self.requests[request_id]
        if request.draft and token_ids:
            right = 0
            for draft, features, token in zip(request.draft, request.features, token_ids, strict=False):
                self.model.learn(features, draft == token)
                if draft != token:
                    break
                right += 1
            request.luck += suffix_tree._LUCK_RATE * ((1 if right else 0) - request.luck)
            if request.source:
                request.source[0].credit += right
        if request.draft and request.leader is not None:
            request.anchor = request.leader
        if request.anchor is not None:
            request.anchor += len(token_ids)
        request.draft, request.features = [], []
        begin = len(request.tokens)
        request.extend(token_ids)
        if request.namespace is not None:
            self.entries.enter(request, begin, self.memory.key_of(request.namespace))

    def propose(
        self, request_ids: list[object], max_n: int | list[int]
    ) -> list[tuple[list[int], list[float]]]:
        """Return (token_ids, reach) per request."""
        requests = [self.requests[r] for r in request_ids]
        limits = [max_n] * len(requests) if isinstance(max_n, int) else max_n
        if (
            len(limits) != len(requests)
            or len(set(request_ids)) != len(requests)
            or any(n < 0 for n in limits)
        ):
            raise ValueError(max_n)
        if not requests:
            return []
        self._grow()
        self.memory.expire()
        self.memory.sweep()
        return [self._draft(r, min(n, self.max_n)) for r, n in zip(requests, limits, strict=True)]

    def stop(self, request_id: object) -> None:
        self._grow()
        request = self.requests.pop(request_id)
        self.usual_luck += suffix_tree._USUAL_RATE * (request.luck - self.usual_luck)
        self.memory.expire()
        if request.namespace is not None and len(request.tokens) > request.prompt_length:
            tail = max(0, request.prompt_length - index.PROMPT_TAIL)
            self.memory.add(request.tokens[tail:], request.namespace)
        self.memory.sweep()

    def add_document(self, token_ids: list[int], namespace: str = "") -> bool:
        self._grow()
        added = self.memory.add(list(token_ids), namespace)
        self.memory.sweep()
        return added is not None

    def purge(self, namespace: str) -> int:
        self._grow()
        self.entries.forget(namespace)
        count = self.memory.forget([d for d in self.memory.living() if d.namespace == namespace], "purged")
        self.memory.sweep()
        return count

    def save(self) -> list[Saved]:
        self._grow()
        self.memory.expire(at_once=True)
        self.memory.sweep()
        return self.memory.save()

    def load(self, saved: list[Saved]) -> int:
        self._grow()
        count = self.memory.load(saved)
        self.memory.sweep()
        return count

    def _draft(self, request: Request, max_n: int) -> tuple[list[int], list[float]]:
        alive = find_voters(request, [request], request.capacity - 1, own=True, anchor=request.anchor)
        self.near_votes += sum(v.near for v in alive)
        key = None
        if request.namespace is not None:
            shared, key = self.memory.documents, self.memory.key_of(request.namespace)
            alive += self.entries.find(request, key)
            self.live_votes += sum(v.live for v in alive)
            alive += find_voters(request, shared, self.memory.room - 1, own=False, key=key)
        draft: list[int] = []
        features: list[Features] = []
        reach: list[float] = []
        request.leader = request.source = None
        so_far = 1.0
        while len(draft) < max_n:
            # A voter on the request's own text reads on into the draft; one on a document ends with it.
            texts = [v.text.tokens + draft if v.own else v.text.tokens for v in alive]
            ballots = [
                (v, text[v.start + len(draft)])
                for v, text in zip(alive, texts, strict=True)
                if v.start + len(draft) < len(text)
            ]
            if not ballots:
                break
            # Where a document ends, its voter votes for no token.
            ended = [
                v
                for v, text in zip(alive, texts, strict=True)
                if not (v.own or v.live) and v.start + len(draft) == len(text)
            ]
            total, weights = sum(v.weight for v in ended), {}
            for voter, token in ballots:
                total += voter.weight
                weights[token] = weights.get(token, 0.0) + voter.weight
            best = max(weights, key=weights.__getitem__)  # the first of equals
            alive = [v for v, token in ballots if token == best]
            losers = [v for v, token in ballots if token != best] + ended
            leader = max(alive, key=lambda v: v.length)  # the first of equals
            if not draft and leader.own:
                request.leader = leader.start
            elif not draft and not leader.live:
                request.source = (leader.text, leader.start)
            found = features_of(request, alive, losers, weights[best] / total, draft, best, key)
            so_far *= self.model.chance(found)
            if so_far < self.min_reach:
                break
            draft.append(best)
            features.append(found)
            reach.append(so_far)
        request.draft, request.features = draft, features
        return list(draft), reach

    def _region(self, num_tokens: int) -> int:
        """Room given to a request: it only shows in which contexts share a bucket."""
        size = _live_store.MIN_REGION
        while size < num_tokens + _live_store.MIN_REGION:
            size *= 2
        return size

    def _grow(self) -> None:
        for request in self.requests.values():
            if not request.capacity or len(request.tokens) > request.capacity:
                request.capacity = self._region(len(request.tokens))
