"""Lookahead drafter: n-grams of the target's own Jacobi trajectory, without any draft weights.

Lookahead decoding (Fu et al. 2024) runs a branch of guesses beside the text and keeps the n-grams that it passes
through. Here the branch is the draft itself: what the target says at the positions of a draft, those after the first
wrong token included, is the next Jacobi iterate, and it is there already, in the pass that verified the draft.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from drafters import _lookahead_kernels as kernels
from drafters._lookahead_prior import WEIGHTS
from drafters._namespaces import COMMON, check_name
from drafters._tokens import Pending, as_token_ids
from drafters.calibration import Calibration
from drafters.contract import Draft, RequestId, checked_limits, made_drafts

MAX_WINDOW: Final = 128
MAX_NGRAM: Final = 16
MAX_CANDIDATES: Final = 64
_FIRST_SLOTS: Final = 8
_LUCK_RATE: Final = 0.15
_LUCK_START: Final = 0.4
_USUAL_RATE: Final = 0.1
_NOTHING: Final = -1
_MAX_SEEDS: Final = 1024  # namespaces; with one that comes back later, calibration learns its tokens anew


class LookaheadDrafter:
    """Draft the best continuation in a pool of n-grams, else what the last Jacobi iterate guessed.

    A pool holds the n-grams of a request's answer and those of its rejected branches; each bucket of it is an LRU list.
    What is learned from outcomes is one for all: it holds statistics of acceptance and no text.

    Args:
        max_n: most tokens in a draft.
        window: W of the paper: most tokens of a guess that are carried on.
        ngram: N of the paper: tokens of an n-gram, its (shortest) key of one token included.
        candidates: G of the paper: n-grams kept for a key at most.
        shared: one pool for all requests of a namespace instead of one for each request.
        from_prompt: prompts enter the pool too.
        pool_ngrams: room of a pool, shared among its keys; rounded up so that the buckets are a power of two.
        max_pools: shared pools kept while no request uses them; the one that was idle longest goes.
        min_reach: a draft ends where its reach falls below this.
        new_seed: returns an int within [0, 2**63) for each new namespace; secret ones unless given (for tests).

    Raises:
        ValueError: an argument out of range.

    Not thread-safe. Memory: 4 * (N + 4) bytes for each n-gram of room in each pool, of which there is one for each live
    request that shares none.

    """

    def __init__(
        self,
        *,
        max_n: int = 16,
        window: int = 15,
        ngram: int = 5,
        candidates: int = 8,
        shared: bool = False,
        from_prompt: bool = False,
        pool_ngrams: int = 8192,
        max_pools: int = 64,
        min_reach: float = 0.003,
        new_seed: Callable[[], int] | None = None,
    ) -> None:
        """Reserve memory and compile the kernels."""
        for name, value, low, high in (
            ("max_n", max_n, 1, None),
            ("window", window, 1, MAX_WINDOW),
            ("ngram", ngram, 2, MAX_NGRAM),
            ("candidates", candidates, 1, MAX_CANDIDATES),
            ("pool_ngrams", pool_ngrams, 1, 1 << 24),
            ("max_pools", max_pools, 1, None),
        ):
            if not low <= value <= (value if high is None else high):
                most = "" if high is None else f" and at most {high}"
                raise ValueError(f"{name} must be at least {low}{most}, got {value}")
        if not 0.0 <= min_reach <= 1.0:
            raise ValueError(f"min_reach must be within [0, 1], got {min_reach}")
        self.max_n = max_n
        self.min_reach = min_reach
        self.calibration = Calibration(WEIGHTS, kernels.NUM_FEATURES)
        self._is_shared, self._from_prompt, self._max_pools = shared, from_prompt, max_pools
        self._new_seed = new_seed or (lambda: secrets.randbits(62))
        self._usual_luck = _LUCK_START  # of the requests that ended lately: what a new one is taken to have
        self._slot_of: dict[RequestId, int] = {}
        self._space_of: dict[int, str] = {}  # namespace of each slot that uses a shared pool
        self._shared: OrderedDict[str, int] = OrderedDict()  # pool by namespace, the longest unused first
        self._users: dict[str, int] = {}
        self._pending = Pending()
        self._choices = Pending()
        buckets = 1 << max(0, -(-pool_ngrams // candidates) - 1).bit_length()
        self._make_slots(window, ngram)
        self._tables = np.zeros((0, buckets, candidates, kernels.RECORD + ngram - 1), dtype=np.int32)
        self._clocks = np.zeros(0, dtype=np.int64)
        self._seeds: OrderedDict[str, int] = OrderedDict()  # of namespaces, the longest unused first
        self._free_pools: list[int] = []
        self._warm_up()

    def start(self, request_id: RequestId, prompt_ids: ArrayLike, *, namespace: str | None = COMMON) -> None:
        """Begin a request.

        Args:
            request_id: any hashable; must not be live.
            prompt_ids: integers, shape (n,); n may be 0.
            namespace: it shares a pool with the requests of this namespace, if pools are shared; None: with none.

        Raises:
            ValueError, TypeError: the id is live, the tokens are not valid (see `as_token_ids`), or the namespace
                is not a str.

        """
        if request_id in self._slot_of:
            raise ValueError(f"request {request_id!r} is already live; stop it first")
        ids = as_token_ids(prompt_ids)
        name = None if namespace is None else check_name(namespace)
        slot = self._take_slot()
        try:
            pool = self._take_pool(slot, name if self._is_shared else None)
        except MemoryError:
            self._free.append(slot)
            raise
        self._slot_of[request_id] = slot
        self._pool[slot] = pool
        self._seed[slot] = self._new_seed() if name is None else self._seed_of(name)
        self._tag[slot] = -1 if name is None else 0
        self._luck[slot] = self._usual_luck
        self._tail[slot] = _NOTHING
        for array in (self._tail_length, self._length, self._choice_length, self._guess_length):
            array[slot] = 0
        if not self._from_prompt:  # its end is the context of what comes, and nothing else of it is needed
            ids = ids[-self._tail.shape[1] :]
        self._prompt_left[slot] = 0 if self._from_prompt else len(ids)
        self._pending.add(slot, ids)

    def verified(self, request_id: RequestId, choice_ids: ArrayLike) -> None:
        """Say what the target chose by itself in the last step, before `observe` says what was committed.

        Args:
            request_id: must be live, else nothing is done.
            choice_ids: integers, shape (n+1,): its most probable token at each of the n verified positions of the
                request's last draft, and after these.

        """
        slot = self._slot_of.get(request_id)
        if slot is None:
            return
        self._choices.add(slot, choice_ids)

    def observe(self, request_id: RequestId, token_ids: ArrayLike) -> None:
        """Append the tokens that the target committed; they also judge the request's last draft.

        Raises:
            KeyError: the request is not live.
            ValueError, TypeError: the tokens are not valid.

        """
        self._pending.add(self._slot(request_id), token_ids)

    def propose(self, request_ids: Sequence[RequestId], max_n: int | ArrayLike) -> list[Draft]:
        """Draft for every request, in order; see `Drafter.propose`.

        Raises:
            KeyError: a request is not live.
            ValueError: a negative max_n or one whose entries are not one per request, or a repeated request id.

        """
        rows = np.fromiter((self._slot(r) for r in request_ids), dtype=np.int64, count=len(request_ids))
        limits = checked_limits(request_ids, max_n, self.max_n)
        if rows.size == 0:
            return []
        self._flush()
        kernels._propose_batch(
            rows,
            limits,
            self._pools,
            self._tail,
            self._tail_length,
            self._luck,
            (self._tag, self._seed),
            self._guesses,
            self.calibration.model,
            self.min_reach,
            self._drafts,
        )
        return made_drafts(rows, self._length, self._token_ids, self._reach)

    def stop(self, request_id: RequestId) -> None:
        """End a request; its pool goes with it unless it is shared.

        Raises:
            KeyError: the request is not live.

        """
        slot = self._slot(request_id)
        self._flush()
        del self._slot_of[request_id]
        self._usual_luck += _USUAL_RATE * (float(self._luck[slot]) - self._usual_luck)
        name = self._space_of.pop(slot, None)
        if name is None:
            self._free_pools.append(int(self._pool[slot]))
        else:
            self._users[name] -= 1
            self._shared.move_to_end(name)
        self._free.append(slot)

    def purge(self, namespace: str) -> int:
        """Overwrite the shared pool of a namespace; return how many pools that were. Live requests go on.

        Raises:
            TypeError: the namespace is not a str.

        """
        name = check_name(namespace)
        self._flush()
        pool = self._shared.get(name)
        if pool is None:
            return 0
        self._tables[pool] = 0
        if not self._users.get(name):
            self._drop_pool(name)
        return 1

    def clear(self) -> None:
        """Forget what requests that ended have said, and the calibration; live requests go on."""
        for name in list(self._shared):
            self.purge(name)
        self._flush()
        self.calibration.clear()
        self._usual_luck = _LUCK_START

    @property
    def num_live(self) -> int:
        """Number of live requests."""
        return len(self._slot_of)

    @property
    def num_documents(self) -> int:
        """Number of shared pools."""
        return len(self._shared)

    @property
    def namespaces(self) -> list[str]:
        """Names of the namespaces that have a pool."""
        return list(self._shared)

    @property
    def num_bytes(self) -> int:
        """Bytes reserved by all pools together."""
        return self._tables.nbytes

    @property
    def _pools(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        return self._tables, self._clocks, self._pool

    @property
    def _guesses(self) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        return self._guess_length, self._guess_ids, self._guess_trails

    @property
    def _drafts(
        self,
    ) -> tuple[
        NDArray[np.int64], NDArray[np.int32], NDArray[np.float64], NDArray[np.int16], NDArray[np.int32]
    ]:
        return self._length, self._token_ids, self._reach, self._features, self._trails

    def _slot(self, request_id: RequestId) -> int:
        try:
            return self._slot_of[request_id]
        except KeyError:
            raise KeyError(f"request {request_id!r} is not live; start it first") from None

    def _make_slots(self, window: int, ngram: int) -> None:
        """Arrays with a row per slot; rows keep what their last user left."""
        n, trail = self.max_n, ngram - 2 + kernels.ORDERS
        self._pool = np.zeros(0, dtype=np.int64)
        self._seed = np.zeros(0, dtype=np.int64)  # of its pool
        self._tag = np.zeros(0, dtype=np.int64)  # -1: its token ids are no feature
        self._luck = np.zeros(0)  # how often its drafts began rightly of late
        self._prompt_left = np.zeros(0, dtype=np.int64)
        self._tail = np.zeros((0, trail + 1), dtype=np.int32)  # the end of its text
        self._tail_length = np.zeros(0, dtype=np.int64)
        self._length = np.zeros(0, dtype=np.int64)  # of its last draft, 0 once that was judged
        self._token_ids = np.zeros((0, n), dtype=np.int32)
        self._reach = np.zeros((0, n))
        self._features = np.zeros((0, n, kernels.NUM_GROUPS), dtype=np.int16)
        self._trails = np.zeros((0, n, trail), dtype=np.int32)  # what came before each draft token
        self._choice_length = np.zeros(0, dtype=np.int64)
        self._choice_ids = np.zeros((0, n + 1), dtype=np.int32)
        self._guess_length = np.zeros(0, dtype=np.int64)
        self._guess_ids = np.zeros((0, window), dtype=np.int32)
        self._guess_trails = np.zeros((0, window, trail), dtype=np.int32)
        self._arrays = [name for name, value in vars(self).items() if isinstance(value, np.ndarray)]
        self._free: list[int] = []

    def _take_slot(self) -> int:
        if not self._free:
            old = len(self._pool)
            new = max(_FIRST_SLOTS, 2 * old)
            for name, array in {name: _grown(getattr(self, name), new) for name in self._arrays}.items():
                setattr(self, name, array)  # all of them, or none where there is no memory for all
            self._free.extend(range(new - 1, old - 1, -1))
        return self._free.pop()

    def _take_pool(self, slot: int, namespace: str | None) -> int:
        """A pool of the request's own, or that of its namespace."""
        if namespace is None:
            return self._new_pool()
        if namespace not in self._shared:
            idle = [name for name in self._shared if not self._users.get(name)]
            for name in idle[: len(idle) - self._max_pools + 1]:
                self._drop_pool(name)
            self._shared[namespace] = self._new_pool()
        self._space_of[slot] = namespace
        self._users[namespace] = self._users.get(namespace, 0) + 1
        return self._shared[namespace]

    def _new_pool(self) -> int:
        if not self._free_pools:
            old = len(self._tables)
            new = max(1, 2 * old)
            self._tables, self._clocks = _grown(self._tables, new), _grown(self._clocks, new)
            self._free_pools.extend(range(new - 1, old - 1, -1))
        pool = self._free_pools.pop()
        self._tables[pool] = 0
        self._clocks[pool] = 0
        return pool

    def _seed_of(self, namespace: str) -> int:
        if namespace not in self._seeds:
            if len(self._seeds) == _MAX_SEEDS and (
                gone := next((name for name in self._seeds if name not in self._shared), None)
            ):
                del self._seeds[gone]
            self._seeds[namespace] = self._new_seed()
        self._seeds.move_to_end(namespace)
        return self._seeds[namespace]

    def _drop_pool(self, namespace: str) -> None:
        pool = self._shared.pop(namespace)
        self._users.pop(namespace, None)
        self._tables[pool] = 0
        self._free_pools.append(pool)

    def _flush(self) -> None:
        """Hand the buffered tokens to the kernel in one call."""
        if self._choices:
            kernels._note_choices(*self._choices.take(), self._length, self._choice_length, self._choice_ids)
        if not self._pending:
            return
        rows, counts, token_ids = self._pending.take()
        kernels._observe_batch(
            rows,
            counts,
            token_ids,
            self._pools,
            self._tail,
            self._tail_length,
            self._prompt_left,
            self._luck,
            (self._tag, self._seed),
            self._guesses,
            (self._choice_length, self._choice_ids),
            self._drafts,
            self.calibration.model,
            _LUCK_RATE,
        )

    def _warm_up(self) -> None:
        """Compile (or load) every kernel with the types that serving uses, so that no step ever waits for it."""
        self.start(0, [1, 2, 1, 2], namespace=None)
        self.observe(0, [3, 1, 2, 3, 1])
        self.propose([0], self.max_n)
        self.verified(0, [2, 3])
        self.observe(0, [2])
        self.propose([0], self.max_n)
        self.stop(0)
        self.calibration.clear()
        self._usual_luck = _LUCK_START


def _grown(array: NDArray[Any], rows: int) -> NDArray[Any]:
    grown = np.zeros((rows, *array.shape[1:]), dtype=array.dtype)
    grown[: len(array)] = array
    return grown
