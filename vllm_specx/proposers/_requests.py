"""Keep a drafter's requests in step with the model runner's.

Rows move, requests are preempted, resumed, aborted, and ids come back. So a request is known by its id alone,
and what it has said is read from the runner's token buffer from where the drafter's knowledge ends, whatever
happened in between.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from drafters import SuffixTreeDrafter
from vllm_specx.config import MAX_SPECULATIVE_TOKENS
from vllm_specx.memory.namespaces import namespace_of
from vllm_specx.request_options import RequestOptionError, RequestOptions

_NO_LIMIT: Final = 1 << 62


@dataclass(slots=True)
class _Known:
    namespace: str | None  # of shared memory; None shares nothing
    num_tokens: int  # read from the token buffer so far
    num_output: int  # of these, passed on as output
    max_n: int  # most draft tokens that the request wants
    max_tokens: int  # of its output
    stops: frozenset[int]  # tokens that end it
    ended: bool = False  # a stop token or max_tokens was reached: the rest is not part of the answer
    stopped: bool = False  # and the drafter knows


class RequestTracker:
    """Translate one step of the batch into the drafter's verbs.

    Args:
        drafter: told about starts, tokens and ends.
        log_once: told, once per reason, why a request gets no draft.

    """

    def __init__(self, drafter: SuffixTreeDrafter, log_once: Callable[[str], None]) -> None:
        self._drafter = drafter
        self._log_once = log_once
        self.num_ended = 0  # requests that were passed on to the drafter and ended
        self._known: dict[str, _Known] = {}
        self._new: dict[str, Any] = {}  # NewRequestData of requests that have not sampled a token yet

    def sync(
        self, context: Any, sampled_token_ids: Sequence[Sequence[int]], num_tokens: Any, token_ids: Any
    ) -> list[int]:
        """Bring the drafter up to date; return the rows that may draft.

        Args:
            context: ProposerContext of the step.
            sampled_token_ids: what each row sampled; empty for a partial prefill, which drafts nothing.
            num_tokens: int array, tokens of each row in `token_ids`, drafts not counted.
            token_ids: int array (rows, max_model_len).

        """
        for new in context.scheduler_output.scheduled_new_reqs:
            self._drop(new.req_id)  # an id that comes back is another request
            self._new[new.req_id] = new
        if len(self._known) + len(self._new) > len(context.requests):
            for gone in (self._known.keys() | self._new.keys()) - context.requests.keys():
                self._drop(gone)
        rows = []
        requests, counts = context.requests, np.asarray(num_tokens).tolist()
        for row, (request_id, sampled) in enumerate(zip(context.req_ids, sampled_token_ids, strict=True)):
            if not sampled:
                continue
            known, num, fresh = self._known.get(request_id), counts[row], list(sampled)
            request = requests[request_id]
            if known is None or known.num_tokens + len(fresh) != num:
                known, fresh = self._catch_up(known, request_id, request, token_ids[row, :num])
            if known is None or known.ended:
                continue
            known.num_tokens = num
            answer = self._answer(fresh, known)
            known.num_output += len(answer)
            self._drafter.observe(request_id, answer)
            if not known.ended:
                rows.append(row)
        return rows

    def stop_ended(self) -> None:
        """Let the drafter know at once which answers are complete; an engine that has nothing to do tells no more."""
        for request_id, known in self._known.items():
            if known.ended and not known.stopped:
                known.stopped = True
                self.num_ended += 1
                self._drafter.stop(request_id)

    def max_draft(self, request_id: str, max_model_len: int) -> int:
        """Return how many draft tokens the request may have by itself; at most 0: none.

        Args:
            request_id: of a row that `sync` returned.
            max_model_len: none of its tokens may lie beyond it.

        """
        known = self._known[request_id]
        # A draft of n yields n+1 tokens, the bonus included: leave room for it.
        return min(known.max_n, known.max_tokens - known.num_output - 1, max_model_len - known.num_tokens - 1)

    def clear(self) -> None:
        """End every request for the drafter. One that goes on is read anew, and shares nothing from then on."""
        for request_id in list(self._known):
            self._drop(request_id)
        self._new.clear()

    def clear_namespaces(self, is_meant: Callable[[str], bool]) -> None:
        """Like `clear`, for the requests of some namespaces."""
        for request_id, known in list(self._known.items()):
            if known.namespace is not None and is_meant(known.namespace):
                self._drop(request_id)

    def _catch_up(
        self, known: _Known | None, request_id: str, request: Any, token_ids: Any
    ) -> tuple[_Known | None, list[int]]:
        """A request that is new to the drafter, or goes on elsewhere than where it was left, and what is new of it."""
        if known is None or known.num_tokens > len(token_ids):
            known = self._start(request_id, request, token_ids)
        return known, [] if known is None else token_ids[known.num_tokens :].tolist()

    def _start(self, request_id: str, request: Any, token_ids: Any) -> _Known | None:
        new = self._new.pop(request_id, None)
        self._drop(request_id)
        if request.prompt_token_ids is None or request.prompt_embeds is not None:
            self._log_once("requests with prompt embeddings get no draft: their prompt has no token ids")
            return None
        # The salt of a request whose arrival went unnoticed is not known: it must share nothing.
        namespace = None if new is None else namespace_of(new.cache_salt, request.lora_request)
        self._drafter.start(request_id, _text_of(request, token_ids), namespace=namespace)
        params = request.sampling_params
        limit = None if params is None else params.max_tokens
        ends = () if params is None else (params.eos_token_id, *(params.stop_token_ids or ()))
        known = self._known[request_id] = _Known(
            namespace,
            num_tokens=request.num_prompt_tokens,
            num_output=0,
            max_n=self._max_n(params),
            max_tokens=_NO_LIMIT if limit is None else limit,
            stops=frozenset(token for token in ends if token is not None),
        )
        return known

    def _max_n(self, params: Any) -> int:
        try:
            options = RequestOptions.from_extra_args(None if params is None else params.extra_args)
        except RequestOptionError:  # vLLM does not check a ready-made EngineCoreRequest
            self._log_once("requests whose options were not checked and are wrong get no draft")
            return 0
        return MAX_SPECULATIVE_TOKENS if options.max_n is None else options.max_n

    @staticmethod
    def _answer(token_ids: list[int], known: _Known) -> list[int]:
        """Cut what the scheduler will not keep: beyond max_tokens and after a stop token (its rule)."""
        if known.num_output + len(token_ids) >= known.max_tokens:
            token_ids = token_ids[: known.max_tokens - known.num_output]
            known.ended = True
        if not known.stops.isdisjoint(token_ids):
            known.ended = True
            return token_ids[: 1 + next(i for i, token in enumerate(token_ids) if token in known.stops)]
        return token_ids

    def _drop(self, request_id: str) -> None:
        self._new.pop(request_id, None)
        known = self._known.pop(request_id, None)
        if known is not None and not known.stopped:
            self.num_ended += 1
            self._drafter.stop(request_id)


def _text_of(request: Any, token_ids: Any) -> Any:
    """The prompt without the placeholders of images and the like: one id over and over, which nobody says."""
    prompt = token_ids[: request.num_prompt_tokens]
    places = [feature.mm_position for feature in getattr(request, "mm_features", None) or ()]
    if not places:
        return prompt
    is_text = np.ones(len(prompt), dtype=np.bool_)
    for place in places:
        is_text[place.offset : place.offset + place.length] = False
    return prompt[is_text]
