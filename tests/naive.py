"""Plain-Python oracle of the suffix-tree drafter: lists, loops and brute force instead of chains, rings and kernels.

Constants are read from `drafters`, so that tuning one breaks no test; code is not. Errors of the contract are
raised where a sequence of valid tokens can meet them; token validation is tested on the drafter itself.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice

from drafters import _prior, memory, suffix_tree
from drafters import _suffix_tree_kernels as kernels

ORDERS = kernels.ORDERS.tolist()
LENGTH_WEIGHT = kernels.LENGTH_WEIGHT.tolist()

Features = list[int]  # of each group the index of the one that a draft token has


def signed(value: int) -> int:
    """Wrap to a signed 64-bit integer, as the kernels' arithmetic does."""
    return (value + 2**63) % 2**64 - 2**63


@lru_cache(maxsize=1 << 18)
def suffix_hash(tokens: tuple[int, ...]) -> int:
    """Hash of a context before it is masked to a bucket."""
    h = 0
    for token in reversed(tokens):
        h = signed(h * kernels.HASH_MULTIPLIER + token + 1)
    h = signed(h * kernels.HASH_MULTIPLIER)
    return h ^ (h >> kernels.HASH_SHIFT)


@dataclass
class Text:
    """Tokens, and for every order the hash of the context that ends at each position (None: too short)."""

    tokens: list[int] = field(default_factory=list)
    hashes: dict[int, list[int | None]] = field(default_factory=lambda: {k: [] for k in ORDERS})

    def extend(self, token_ids: list[int]) -> None:
        for token in token_ids:
            self.tokens.append(token)
            for k in ORDERS:
                long_enough = len(self.tokens) >= k
                self.hashes[k].append(suffix_hash(tuple(self.tokens[-k:])) if long_enough else None)

    def in_bucket(self, k: int, bucket: int, mask: int, before: int) -> Iterator[int]:
        """Positions below `before` whose last k tokens fall into a bucket, newest first."""
        hashes = self.hashes[k]
        return (i for i in range(before - 1, k - 2, -1) if hashes[i] & mask == bucket)


@dataclass
class Request(Text):
    prompt_length: int = 0
    share: bool = True
    capacity: int = 0
    luck: float = 0.0
    draft: list[int] = field(default_factory=list)
    features: list[Features] = field(default_factory=list)
    leader: int | None = None  # where in this text the leading occurrence of the last draft goes on
    anchor: int | None = None


@dataclass
class Voter:
    tokens: list[int]
    start: int
    length: int
    weight: float
    own: bool
    near: bool


def bucket_of(edges: Iterable[float], value: float) -> int:
    return sum(value >= edge for edge in edges)


class Model:
    """Weights of the features by group, and the information that each has seen."""

    def __init__(self) -> None:
        self.weights = [list(group) for group in _prior.WEIGHTS]
        self.information = [[kernels.FIRST_EVIDENCE] * len(group) for group in _prior.WEIGHTS]

    def chance(self, features: Features) -> float:
        z = sum(weights[f] for weights, f in zip(self.weights, features, strict=True))
        return 1.0 / (1.0 + math.exp(-z))

    def learn(self, features: Features, right: bool) -> None:
        chance = self.chance(features)
        for weights, information, f in zip(self.weights, self.information, features, strict=True):
            information[f] = min(information[f] + chance * (1.0 - chance), kernels.MOST_EVIDENCE)
            weights[f] += kernels.LEARNING_RATE * (right - chance) / information[f]


def features_of(winners: list[Voter], losers: list[Voter], share: float, n: int, luck: float) -> Features:
    """Features of the n-th draft token."""
    length = bucket_of(kernels.LENGTH_EDGES, max(v.length for v in winners) + n)
    share_bucket = bucket_of(kernels.SHARE_EDGES, share)
    contested = share_bucket < len(kernels.SHARE_EDGES)
    against = max((v.length for v in losers), default=0)
    return [
        length * (len(kernels.SHARE_EDGES) + 1) + share_bucket,
        bucket_of(kernels.POSITION_EDGES, n),
        bucket_of(kernels.LUCK_EDGES, luck),
        bucket_of(kernels.VOTERS_EDGES, len(winners)) * 2 + (not contested),
        1 + bucket_of(kernels.DISSENT_EDGES, against) if contested else 0,
    ]


def match_length(tokens: list[int], at: int, context: list[int]) -> int:
    n = 0
    while n < min(kernels.MAX_MATCH, at + 1, len(context)) and tokens[at - n] == context[-1 - n]:
        n += 1
    return n


def find_voters(
    context: Text, texts: list[Text], mask: int, own: bool, anchor: int | None = None
) -> list[Voter]:
    """Occurrences of the context's suffixes in `texts` (newest last), longest order first, newest first."""
    voters: list[Voter] = []
    above = float("inf")
    for k in ORDERS:
        if len(context.tokens) < k:
            continue
        bucket = context.hashes[k][-1] & mask
        walk = (
            (text.tokens, i)
            for text in reversed(texts)
            for i in text.in_bucket(k, bucket, mask, len(text.tokens) - own)
        )
        recency, found = 1.0, 0
        for tokens, i in islice(walk, kernels.MAX_STEPS):
            if found == kernels.MAX_PER_ORDER or len(voters) == kernels.MAX_OCCURRENCES:
                break
            n = match_length(tokens, i, context.tokens)
            if k <= n < above:
                near = anchor is not None and abs(i + 1 - anchor) <= kernels.NEAR
                weight = LENGTH_WEIGHT[n] * recency * (kernels.NEAR_BONUS if near else 1.0)
                voters.append(Voter(tokens, i + 1, n, weight, own, near))
                recency *= kernels.RECENCY
                found += 1
        above = k
    return voters


class NaiveDrafter:
    """The same verbs, drafts and reach as `drafters.SuffixTreeDrafter`."""

    def __init__(self, *, max_n: int = 32, memory_bytes: int = 256 << 20, min_reach: float = 0.02) -> None:
        self.max_n, self.min_reach = max_n, min_reach
        self.room = 0  # tokens of shared memory, a power of two
        if memory_bytes:
            self.room = 1
            while 2 * self.room * memory.BYTES_PER_TOKEN <= memory_bytes:
                self.room *= 2
        self.requests: dict[object, Request] = {}
        self.documents: list[Text] = []
        self.model = Model()
        self.near_votes = 0
        self.usual_luck = suffix_tree._LUCK_START

    def clear(self) -> None:
        self._grow()
        self.documents = []
        self.model = Model()
        self.usual_luck = suffix_tree._LUCK_START

    def start(self, request_id: object, prompt_ids: list[int], *, share: bool = True) -> None:
        if request_id in self.requests:
            raise ValueError(request_id)
        capacity = self._region(len(prompt_ids))
        request = Request(prompt_length=len(prompt_ids), share=share, capacity=capacity, luck=self.usual_luck)
        request.extend(prompt_ids)
        self.requests[request_id] = request

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
        if request.draft and request.leader is not None:
            request.anchor = request.leader
        if request.anchor is not None:
            request.anchor += len(token_ids)
        request.draft, request.features = [], []
        request.extend(token_ids)

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
        return [self._draft(r, min(n, self.max_n)) for r, n in zip(requests, limits, strict=True)]

    def stop(self, request_id: object) -> None:
        self._grow()
        request = self.requests.pop(request_id)
        self.usual_luck += suffix_tree._USUAL_RATE * (request.luck - self.usual_luck)
        if not (request.share and self.room and len(request.tokens) > request.prompt_length):
            return
        tail = max(0, request.prompt_length - suffix_tree._PROMPT_TAIL)
        document = Text()
        document.extend(request.tokens[tail:][-(self.room - 1) :])
        if len(document.tokens) < 2:
            return
        self.documents.append(document)
        while sum(len(d.tokens) + 1 for d in self.documents) > self.room:
            self.documents.pop(0)

    def _draft(self, request: Request, max_n: int) -> tuple[list[int], list[float]]:
        alive = find_voters(request, [request], request.capacity - 1, own=True, anchor=request.anchor)
        self.near_votes += sum(v.near for v in alive)
        if request.share:
            alive += find_voters(request, self.documents, self.room - 1, own=False)
        draft: list[int] = []
        features: list[Features] = []
        reach: list[float] = []
        request.leader = None
        so_far = 1.0
        while len(draft) < max_n:
            # A voter on the request's own text reads on into the draft; one on a document ends with it.
            texts = [v.tokens + draft if v.own else v.tokens for v in alive]
            ballots = [
                (v, text[v.start + len(draft)])
                for v, text in zip(alive, texts, strict=True)
                if v.start + len(draft) < len(text)
            ]
            if not ballots:
                break
            total, weights = 0.0, {}
            for voter, token in ballots:
                total += voter.weight
                weights[token] = weights.get(token, 0.0) + voter.weight
            best = max(weights, key=weights.__getitem__)  # the first of equals
            alive = [v for v, token in ballots if token == best]
            losers = [v for v, token in ballots if token != best]
            leader = max(alive, key=lambda v: v.length)  # the first of equals
            if not draft and leader.own:
                request.leader = leader.start
            found = features_of(alive, losers, weights[best] / total, len(draft), request.luck)
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
        size = suffix_tree._MIN_REGION
        while size < num_tokens + suffix_tree._MIN_REGION:
            size *= 2
        return size

    def _grow(self) -> None:
        for request in self.requests.values():
            if len(request.tokens) > request.capacity:
                request.capacity = self._region(len(request.tokens))
