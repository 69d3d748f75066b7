"""Faults of other engines, tried on EAGLE-3: at the end of the longest text, and with prompts from the prefix cache.

The numbers are those of docs/trust.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_prompts import token_prompts
from engines import MAX_MODEL_LEN, make_engine, proposer_of, scheduler_of
from vllm import SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, detokenize=False)
N = 3
_ALIVE: list[Any] = []  # an engine that goes takes what others of the process need along


@pytest.fixture(scope="module", params=["in the worker", "in the scheduler", "hybrid"])
def engine(request: pytest.FixtureRequest, model_dir: Path) -> Any:
    """EAGLE-3 with three tokens for every request at every step, by no clock."""
    name = "Hybrid" if request.param == "hybrid" else "AdaptiveEagle3"
    options: dict[str, Any] = {}
    if request.param == "in the scheduler":
        options["scheduler_cls"] = "vllm_specx.AdaptiveScheduler"
    llm = make_engine(
        model_dir,
        num_gpu_blocks_override=100,
        speculative_config={"model": f"vllm_specx.{name}Proposer", "num_speculative_tokens": N},
        **options,
    )
    _ALIVE.append(llm)
    if options:
        scheduler_of(llm).controller.tuner.choose = lambda num_requests: N
    else:
        drafter = proposer_of(llm).specx
        drafter._depth.choose = lambda policy, times, others, expected, can, backlog: min(N, len(expected))
        drafter._policy.choose = lambda reaches: list(map(len, reaches))
    return llm


def run(llm: Any, prompts: Any) -> tuple[list[list[int]], int]:
    """Tokens, and how many of the prompts' came from the prefix cache."""
    outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
    return [list(o.outputs[0].token_ids) for o in outputs], sum(o.num_cached_tokens or 0 for o in outputs)


@pytest.mark.runs(
    "EAGLE-3 in the worker, EAGLE-3 with AdaptiveScheduler, hybrid",
    "vLLM 0.32, V1 on the CPU",
    "requests that end at max_model_len",
)
def test_3_near_max_model_len(engine: Any, plain: Any) -> None:
    """Rows that end at the edge, beside one that has room: all tokens of plain decoding, none beyond."""
    filler = token_prompts(plain)[8]["prompt_token_ids"] * 10
    prompts = [{"prompt_token_ids": filler[: MAX_MODEL_LEN - room]} for room in (26, 5, 2, 1)]
    prompts.append(token_prompts(plain)[10])
    tokens, _ = run(engine, prompts)
    assert tokens == run(plain, prompts)[0]
    assert [len(row) for row in tokens] == [26, 5, 2, 1, 48]


@pytest.mark.runs(
    "EAGLE-3 in the worker, EAGLE-3 with AdaptiveScheduler, hybrid",
    "vLLM 0.32, V1 on the CPU",
    "prompts from the prefix cache",
)
def test_25_a_cached_prompt_is_drafted_for_as_a_new_one(
    engine: Any, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same long prompt twice: its blocks are found again, the head's among them, and as much is accepted."""
    scheduler = scheduler_of(engine)
    judge, judged = scheduler.make_spec_decoding_stats, [0, 0]

    def recording(
        stats: Any, num_draft_tokens: int, num_accepted_tokens: int, *args: Any, **more: Any
    ) -> Any:
        judged[0] += num_draft_tokens
        judged[1] += num_accepted_tokens
        return judge(stats, num_draft_tokens, num_accepted_tokens, *args, **more)

    monkeypatch.setattr(scheduler, "make_spec_decoding_stats", recording)
    prompts = token_prompts(plain)[16:19]
    engine.reset_prefix_cache()
    wanted, found = run(plain, prompts)[0], []
    for _ in range(2):
        if hasattr(proposer_of(engine), "specx"):
            proposer_of(
                engine
            ).specx.forget()  # the suffix tree's drafts are those of a new engine both times
        judged[:] = 0, 0
        tokens, num_cached = run(engine, prompts)
        assert tokens == wanted
        found.append((num_cached, judged[1] / judged[0]))
    (_, cold), (num_cached, warm) = found
    assert num_cached > 300
    assert cold > 0.1
    assert warm > 0.9 * cold
