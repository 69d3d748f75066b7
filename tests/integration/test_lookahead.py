"""Lookahead in the engine: the same tokens as plain vLLM, from pools and from the target's own guesses."""

from __future__ import annotations

from typing import Any

import pytest
from engine_prompts import token_prompts
from engines import N, accepted, make_engine, proposer_of, scheduler_of
from vllm import SamplingParams

import vllm_specx

PARAMS = SamplingParams(temperature=0, max_tokens=64, detokenize=False)
SPECULATIVE = {"model": "vllm_specx.LookaheadProposer", "num_speculative_tokens": N}
FREE = {"alpha": 0.0}  # whatever can be drafted is drafted


@pytest.fixture(scope="module")
def expected(plain: Any) -> list[list[int]]:
    return tokens_of(plain, token_prompts(plain))


@pytest.fixture(scope="session")  # engines of one process cannot be taken down one by one
def lookahead(model_dir: Any) -> Any:
    return make_engine(
        model_dir,
        speculative_config=SPECULATIVE,
        additional_config={"specx": FREE},
        enable_prefix_caching=True,
        max_num_batched_tokens=96,
    )


@pytest.fixture(scope="session")
def lookahead_tight(model_dir: Any) -> Any:
    """With KV blocks for about 3 long requests: it must preempt. The suffix tree stands before it."""
    return make_engine(
        model_dir,
        speculative_config={"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": N},
        additional_config={
            "specx": {**FREE, "drafters": ["suffix_tree", "lookahead"], "lookahead_shared": True}
        },
        enable_prefix_caching=False,
        block_size=32,
        num_gpu_blocks_override=22,
    )


def tokens_of(llm: Any, prompts: Any, params: SamplingParams = PARAMS) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.runs("Lookahead", "vLLM 0.32, V1 on the CPU", "greedy identity in float32 in batches and alone")
def test_same_tokens_in_a_batch_and_alone(lookahead: Any, expected: Any) -> None:
    prompts = token_prompts(lookahead)
    proposer = proposer_of(lookahead)
    guesses, ngrams = [], []
    propose = proposer.drafter.propose

    def recording(request_ids: Any, limits: Any) -> Any:
        drafts = propose(request_ids, limits)
        slots = [proposer.drafter._slot_of[r] for r in request_ids]
        guesses.append(int(proposer.drafter._guess_length[slots].sum()))
        ngrams.append(sum(map(len, drafts)))
        return drafts

    proposer.drafter.propose = recording
    try:
        assert tokens_of(lookahead, prompts) == expected
        for prompt, tokens in zip(prompts[8:12], expected[8:12], strict=True):
            assert tokens_of(lookahead, [prompt]) == [tokens]
    finally:
        del proposer.drafter.propose
    assert accepted(lookahead) > 200  # else nothing was tested
    assert sum(guesses) > 100  # the target's choices after rejections came through
    assert sum(ngrams) > 500
    assert proposer.faults == 0


@pytest.mark.runs("Lookahead", "vLLM 0.32, V1 on the CPU", "preemption, behind the suffix tree")
def test_behind_the_suffix_tree_with_preemption(
    lookahead_tight: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, preempted = scheduler_of(lookahead_tight), []
    preempt = scheduler._preempt_request

    def recording(request: Any, *args: Any, **kwargs: Any) -> None:
        preempted.append(request.request_id)
        preempt(request, *args, **kwargs)

    monkeypatch.setattr(scheduler, "_preempt_request", recording)
    proposer = proposer_of(lookahead_tight)
    by_lookahead = 0
    draft = proposer._draft

    def counting(*args: Any) -> Any:
        nonlocal by_lookahead
        drafts = draft(*args)
        by_lookahead += len(proposer.drafter._by_second)
        return drafts

    monkeypatch.setattr(proposer, "_draft", counting)
    assert tokens_of(lookahead_tight, token_prompts(lookahead_tight)) == expected
    assert preempted
    assert by_lookahead > 0
    assert proposer.faults == 0


def test_abort_in_mid_draft(lookahead: Any, expected: Any) -> None:
    engine = lookahead.llm_engine
    prompts = token_prompts(lookahead)
    for name in ("aborted", "kept"):
        engine.add_request(name, prompts[9], PARAMS)
    for _ in range(6):
        engine.step()
    engine.abort_request(["aborted"])
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {o.request_id: list(o.outputs[0].token_ids) for o in engine.step() if o.finished}
    assert outputs["kept"] == expected[9]
    assert tokens_of(lookahead, prompts[9:10]) == expected[9:10]
    assert proposer_of(lookahead).drafter.num_live <= 1  # the last one ends with the next step


def test_a_fault_is_no_draft(lookahead: Any, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = proposer_of(lookahead)
    faults = proposer.faults

    def broken(*args: Any) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(proposer.drafter, "verified", broken)
    assert tokens_of(lookahead, token_prompts(lookahead)[8:10]) == expected[8:10]
    assert proposer.faults > faults


def test_forget_purge_and_the_switch(lookahead: Any, lookahead_tight: Any, expected: Any) -> None:
    prompts = token_prompts(lookahead_tight)[8:9]
    assert vllm_specx.forget(lookahead_tight) >= 0
    assert vllm_specx.purge(lookahead_tight, cache_salt="nobody") == 0
    assert vllm_specx.set_enabled(lookahead, False) is True
    before = proposer_of(lookahead).num_draft_tokens
    assert tokens_of(lookahead, prompts) == expected[8:9]
    assert proposer_of(lookahead).num_draft_tokens == before
    assert vllm_specx.set_enabled(lookahead, True) is False
