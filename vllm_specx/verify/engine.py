"""The bench's engine, asked for what a verification needs (vllm is imported inside)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from vllm_specx.bench.engine import BenchEngine, EngineSpec, answer, settle
from vllm_specx.bench.loop import CellResult, Counters, Job, drive

NUM_TOPS: Final = 4  # of plain decoding's log-probabilities, so that ties of more than two are seen
NUM_SAMPLED: Final = 3  # tokens whose law is tested
# One more is generated: no draft is longer than what is to come but one, and two tokens are to be drafted.
_NUM_GENERATED: Final = NUM_SAMPLED + 1
Tops = Mapping[int, float]
"""Token -> log-probability, of the most likely ones."""


@dataclass(frozen=True)
class VerifySpec:
    """How to build an engine. `drafts`: "own" leaves lengths to the engine, "full" and "random" see `lengths`."""

    engine: EngineSpec
    drafts: str = "own"


@dataclass(frozen=True)
class Greedy:
    """Tokens of each prompt, the most likely ones at each position (if asked for), and what was drafted."""

    tokens: list[list[int]]
    tops: list[list[Tops]]
    counters: Counters


@dataclass(frozen=True)
class Sampling:
    """`num_samples` requests of one prompt. `first_seed` is that of the first; each has its own.

    `is_broken` draws the token after a rejected draft from the target as if nothing had been rejected.
    """

    prompt: Sequence[int]
    num_samples: int
    concurrency: int
    temperature: float
    top_p: float
    top_k: int
    first_seed: int
    is_broken: bool = False


@dataclass(frozen=True)
class Sampled:
    """How often each output came, and what was drafted."""

    counts: Counter[tuple[int, ...]]
    counters: Counters


class VerifyEngine(BenchEngine):
    """Greedy runs with log-probabilities, and sampled ones."""

    def __init__(self, spec: VerifySpec) -> None:
        super().__init__(spec.engine)
        self._make_params: Callable[[], dict[str, Any]] = super()._how_to_sample
        self._tops: dict[str, list[Tops]] = {}
        if spec.drafts != "own":
            from vllm_specx.verify.lengths import force

            length = self._engine.vllm_config.speculative_config.num_speculative_tokens
            force(self._draft_source, length, is_random=spec.drafts == "random")

    def greedy(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, concurrency: int, num_tops: int = 0
    ) -> Greedy:
        """Run all prompts with so many in flight, on empty memory."""
        self.reset()
        self._make_params = lambda: {"temperature": 0.0, "logprobs": num_tops or None}
        result = self._drive(prompts, num_tokens, concurrency)
        tops = [self._tops[f"verify-{number}"] for number in range(len(prompts))] if num_tops else []
        return Greedy([trace.token_ids for trace in result.traces], tops, result.counters)

    def sample(self, plan: Sampling) -> Sampled:
        """Draw, on empty memory."""
        self.reset()
        seeds = iter(range(plan.first_seed, plan.first_seed + plan.num_samples))
        self._make_params = lambda: {
            "temperature": plan.temperature,
            "top_p": plan.top_p,
            "top_k": plan.top_k,
            "seed": next(seeds),
        }
        with broken_sampler() if plan.is_broken else nullcontext():
            result = self._drive([plan.prompt] * plan.num_samples, _NUM_GENERATED, plan.concurrency)
        counts = Counter(tuple(trace.token_ids[:NUM_SAMPLED]) for trace in result.traces)
        return Sampled(counts, result.counters)

    def reset(self) -> None:
        """See `BenchEngine.reset`."""
        self._make_params = super()._how_to_sample
        super().reset()

    def _how_to_sample(self) -> dict[str, Any]:
        return self._make_params()

    def _news(self, output: Any) -> tuple[str, list[int], bool]:
        for tops in output.outputs[0].logprobs or ():
            known = {token: entry.logprob for token, entry in tops.items()}
            self._tops.setdefault(output.request_id, []).append(known)
        return super()._news(output)

    def _drive(self, prompts: Sequence[Sequence[int]], num_tokens: int, concurrency: int) -> CellResult:
        self._tops.clear()
        return drive(self, Job("verify", prompts, [num_tokens] * len(prompts), concurrency))


@contextmanager
def broken_sampler() -> Iterator[None]:
    """Take the residual out of vLLM's rejection sampler: what replaces a rejected draft may be that draft again."""
    from vllm.v1.sample import rejection_sampler

    right = rejection_sampler.sample_recovered_tokens

    def without_residual(
        max_spec_len: int,
        num_draft_tokens: Any,
        cu_num_draft_tokens: Any,
        draft_token_ids: Any,
        draft_probs: Any,
        target_probs: Any,
        *rest: Any,
    ) -> Any:
        # As if a token had been drafted that the target never says.
        impossible = target_probs.argmin(dim=-1).to(draft_token_ids.dtype)
        return right(
            max_spec_len, num_draft_tokens, cu_num_draft_tokens, impossible, None, target_probs, *rest
        )

    rejection_sampler.sample_recovered_tokens = without_residual
    try:
        yield
    finally:
        rejection_sampler.sample_recovered_tokens = right


def serve(connection: Connection, spec: VerifySpec, log_path: str) -> None:
    """Worker process of a verification: see `answer`."""
    settle(log_path, spec.engine.kv_cache_gib)
    answer(connection, lambda: VerifyEngine(spec), ("greedy", "sample"))
