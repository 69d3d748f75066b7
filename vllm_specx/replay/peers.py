"""Draft sources to compare with, behind the contract of our own drafters. None of them has a reach."""

from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np
from numpy.typing import ArrayLike

from drafters.contract import Draft, RequestId
from vllm_specx.bench.errors import BenchError


class Arctic:
    """Arctic Inference's suffix cache, called as vLLM's method "suffix" calls it.

    Args:
        depth: longest context that is matched, and the depth of its trees.
        factor: a draft is no longer than this times the matched context.
        min_prob: a draft ends before a token whose share among the continuations is below this.
        max_spec: most tokens in a draft.
        cached: most answers kept; 0 shares nothing between requests, -1 keeps all.

    Raises:
        BenchError: arctic_inference is not installed.

    """

    def __init__(self, *, depth: int, factor: float, min_prob: float, max_spec: int, cached: int) -> None:
        try:
            from arctic_inference.suffix_decoding import SuffixDecodingCache
        except ImportError as error:
            raise BenchError(
                f"--drafter arctic needs the package arctic-inference, which cannot be imported ({error}); "
                "`make arctic` installs it"
            ) from error
        self._cache = SuffixDecodingCache(max_tree_depth=depth, max_cached_requests=cached)
        self._depth, self._max_spec = depth, max_spec
        self._factor, self._min_prob = factor, min_prob
        self._context: dict[RequestId, list[int]] = {}

    def start(self, request_id: RequestId, prompt_ids: ArrayLike) -> None:
        """Begin a request."""
        prompt = np.asarray(prompt_ids, dtype=np.int32)
        self._cache.start_request(request_id, prompt)
        self._context[request_id] = prompt[-self._depth :].tolist()

    def observe(self, request_id: RequestId, token_ids: ArrayLike) -> None:
        """Append committed tokens."""
        committed = np.asarray(token_ids, dtype=np.int32)
        self._cache.add_active_response(request_id, committed)
        context = self._context[request_id]
        context += committed.tolist()
        del context[: -self._depth]

    def propose(self, request_ids: Sequence[RequestId], max_n: int | ArrayLike) -> list[Draft]:
        """Draft for every request; one call each, the cache has no other."""
        return [
            _draft(
                self._cache.speculate(
                    request_id,
                    np.array(self._context[request_id], dtype=np.int32),
                    max_spec_tokens=min(self._max_spec, limit),
                    max_spec_factor=self._factor,
                    min_token_prob=self._min_prob,
                ).token_ids
            )
            for request_id, limit in _limited(request_ids, max_n)
        ]

    def stop(self, request_id: RequestId) -> None:
        """End a request; its answer stays cached."""
        self._cache.stop_request(request_id)
        del self._context[request_id]


class PromptLookup:
    """Prompt lookup: what followed the *first* time that the last `hi` tokens were seen, else `hi` - 1, ... `lo`.

    Args:
        lo: shortest context.
        hi: longest context.
        n: most tokens in a draft.

    Raises:
        BenchError: lo is above hi.

    """

    def __init__(self, *, lo: int, hi: int, n: int) -> None:
        if lo > hi:
            raise BenchError(f"--options: lo must not be above hi, got lo {lo} and hi {hi}")
        self._sizes, self._n = range(hi, lo - 1, -1), n
        self._text: dict[RequestId, list[int]] = {}
        self._first: dict[RequestId, dict[tuple[int, ...], int]] = {}

    def start(self, request_id: RequestId, prompt_ids: ArrayLike) -> None:
        """Begin a request."""
        self._text[request_id], self._first[request_id] = [], {}
        self.observe(request_id, prompt_ids)

    def observe(self, request_id: RequestId, token_ids: ArrayLike) -> None:
        """Append committed tokens."""
        text, first = self._text[request_id], self._first[request_id]
        for token_id in np.asarray(token_ids, dtype=np.int32).tolist():
            # Indexed only once something follows: the last tokens must not find themselves.
            for size in self._sizes:
                if size <= len(text):
                    first.setdefault(tuple(text[-size:]), len(text))
            text.append(token_id)

    def propose(self, request_ids: Sequence[RequestId], max_n: int | ArrayLike) -> list[Draft]:
        """Draft for every request."""
        drafts = []
        for request_id, limit in _limited(request_ids, max_n):
            text, first = self._text[request_id], self._first[request_id]
            found = (first.get(tuple(text[-size:])) for size in self._sizes)
            at = next((at for at in found if at is not None), len(text))
            drafts.append(_draft(text[at : at + min(self._n, limit)]))
        return drafts

    def stop(self, request_id: RequestId) -> None:
        """End a request and forget it."""
        del self._text[request_id], self._first[request_id]


class Oracle:
    """Always right: the next n tokens of outputs that it was given, no further than their end.

    Args:
        n: most tokens in a draft.
        outputs: in the order in which the requests will start.

    """

    def __init__(self, *, n: int, outputs: Iterable[Sequence[int]]) -> None:
        self._n, self._outputs = n, iter(outputs)
        self._left: dict[RequestId, Sequence[int]] = {}

    def start(self, request_id: RequestId, prompt_ids: ArrayLike) -> None:
        """Begin the next request."""
        self._left[request_id] = next(self._outputs)

    def observe(self, request_id: RequestId, token_ids: ArrayLike) -> None:
        """Move on by the committed tokens."""
        self._left[request_id] = self._left[request_id][np.size(token_ids) :]

    def propose(self, request_ids: Sequence[RequestId], max_n: int | ArrayLike) -> list[Draft]:
        """Draft the truth for every request."""
        return [
            _draft(self._left[request_id][: min(self._n, limit)])
            for request_id, limit in _limited(request_ids, max_n)
        ]

    def stop(self, request_id: RequestId) -> None:
        """End a request."""
        del self._left[request_id]


def _limited(request_ids: Sequence[RequestId], max_n: int | ArrayLike) -> Iterable[tuple[RequestId, int]]:
    if isinstance(max_n, int):  # the common case, without numpy's microseconds: drafting is timed
        return zip(request_ids, repeat(max_n))
    return zip(request_ids, np.broadcast_to(max_n, len(request_ids)).tolist(), strict=True)


def _draft(token_ids: Sequence[int]) -> Draft:
    # Nothing is promised: a rule that goes by reach offers none of it.
    return Draft(np.asarray(token_ids, dtype=np.int32), np.zeros(len(token_ids)))
