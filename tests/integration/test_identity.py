"""Greedy decoding in float32: the same tokens as plain vLLM, whatever is drafted."""

from __future__ import annotations

import pytest
from engine_prompts import NUM_PROMPTS, token_prompts
from engines import accepted, proposer_of, scheduler_of
from vllm import SamplingParams

MAX_TOKENS = 64


@pytest.fixture(scope="module")
def expected(plain):
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    outputs = plain.generate(token_prompts(plain), params, use_tqdm=False)
    return [list(o.outputs[0].token_ids) for o in outputs]


def generate(llm, prompts) -> list[list[int]]:
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=MAX_TOKENS), use_tqdm=False)
    return [list(o.outputs[0].token_ids) for o in outputs]


def test_there_are_enough_prompts(plain):
    lengths = [len(p["prompt_token_ids"]) for p in token_prompts(plain)]
    assert NUM_PROMPTS == len(lengths) >= 24
    assert min(lengths) == 1
    assert max(lengths) > 200  # several chunks of 96


@pytest.mark.runs(
    "suffix tree", "vLLM 0.32, V1 on the CPU", "greedy identity in float32 in batches and alone"
)
def test_batch_of_eight_with_chunked_prefill_and_prefix_caching(specx, expected):
    before, faults = accepted(specx), proposer_of(specx).faults
    assert generate(specx, token_prompts(specx)) == expected
    assert accepted(specx) - before > 300  # else nothing was tested
    assert generate(specx, token_prompts(specx)) == expected  # now with a warm prefix cache and warm memory
    assert proposer_of(specx).faults == faults  # tests of faults share this engine


def test_one_at_a_time(specx, expected):
    for prompt, tokens in zip(token_prompts(specx), expected, strict=True):
        assert generate(specx, [prompt]) == [tokens]


@pytest.mark.runs("suffix tree", "vLLM 0.32, V1 on the CPU", "preemption")
def test_without_prefix_caching_and_with_preemption(specx_tight, expected, monkeypatch):
    scheduler, preempted = scheduler_of(specx_tight), []
    preempt = scheduler._preempt_request

    def recording(request, *args, **kwargs):
        preempted.append(request.request_id)
        preempt(request, *args, **kwargs)

    monkeypatch.setattr(scheduler, "_preempt_request", recording)
    faults = proposer_of(specx_tight).faults
    assert generate(specx_tight, token_prompts(specx_tight)) == expected
    assert preempted
    assert proposer_of(specx_tight).faults == faults


def test_memory_makes_the_second_run_accept_more(specx):
    """The shared memory is really used: with it cold, fewer tokens are accepted than with it warm."""
    proposer_of(specx).reset_memory()
    gains = []
    for _ in range(2):
        before = accepted(specx)
        generate(specx, token_prompts(specx)[:8])
        gains.append(accepted(specx) - before)
    assert gains[1] > gains[0]
