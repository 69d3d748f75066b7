"""AdaptiveScheduler with each kind of drafter that vLLM runs itself, beyond n-gram (see test_adaptive_scheduler.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_prompts import token_prompts
from engines import make_engine, proposer_of, scheduler_of
from targets import TINY, first_layers, int8, tiny_mtp
from vllm import SamplingParams

from vllm_specx.proposers.eagle3 import AdaptiveEagle3Proposer
from vllm_specx.scheduler import AdaptiveScheduler

ADAPTIVE = {"specx": {"adaptive": True}}
WHERE = "vLLM 0.32, V1 on the CPU"
IDENTITY = "greedy identity in float32, any length at any step"
PARAMS = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, detokenize=False)


_ALIVE: list[Any] = []  # an engine that goes takes what others of the process need along


def small_engine(model: Any, **options: Any) -> Any:
    _ALIVE.append(make_engine(model, num_gpu_blocks_override=80, **options))
    return _ALIVE[-1]


def eagle3_by_name(model: Any, sample: str, **options: Any) -> Any:
    speculative = {
        "model": "vllm_specx.AdaptiveEagle3Proposer",
        "num_speculative_tokens": 4,
        "draft_sample_method": sample,
    }
    return small_engine(model, speculative_config=speculative, **options)


def lengths_of(llm: Any) -> list[int]:
    """The lengths that the scheduler asks for, from now on."""
    scheduler, lengths = scheduler_of(llm), []
    update = scheduler.update_from_output

    def recording(output: Any, result: Any) -> Any:
        lengths.append(output.num_spec_tokens_to_schedule)
        return update(output, result)

    scheduler.update_from_output = recording
    return lengths


def tokens_of(llm: Any, prompts: Any) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, PARAMS, use_tqdm=False)]


def check(llm: Any, wanted: list[list[int]], prompts: Any, most: int) -> None:
    """Same tokens as plain decoding with lengths that it chooses, and with any lengths."""
    scheduler = scheduler_of(llm)
    assert type(scheduler) is AdaptiveScheduler
    lengths = lengths_of(llm)
    for _ in range(2):
        assert tokens_of(llm, prompts) == wanted
    assert max(lengths) > 0
    assert scheduler.controller.tuner.costs.num_learned > 5
    lengths.clear()
    rng = np.random.default_rng(0)
    scheduler.controller.tuner.choose = lambda num_requests: int(rng.integers(most + 1))
    assert tokens_of(llm, prompts) == wanted
    assert set(lengths) == set(range(most + 1))
    assert scheduler.controller is not None


@pytest.mark.runs("draft model with AdaptiveScheduler", WHERE, IDENTITY)
def test_a_small_model_of_its_own(plain: Any, model_dir: Path, tmp_path: Path) -> None:
    """Another model with the target's vocabulary and random weights: what it drafts is wrong, and nothing else is."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    target = json.loads((model_dir / "config.json").read_text())
    torch.manual_seed(0)
    small = LlamaConfig(
        **{key: TINY[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")},
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=target["vocab_size"],
        max_position_embeddings=target["max_position_embeddings"],
    )
    LlamaForCausalLM(small).save_pretrained(tmp_path / "draft")
    llm = small_engine(
        model_dir,
        speculative_config={
            "method": "draft_model",
            "model": str(tmp_path / "draft"),
            "num_speculative_tokens": 3,
        },
        additional_config=ADAPTIVE,
    )
    prompts = token_prompts(plain)[8:14]
    check(llm, tokens_of(plain, prompts), prompts, 3)
    assert scheduler_of(llm).controller.tuner.acceptance.mean[0] < 0.3


def test_the_first_layers_of_the_target(plain: Any, model_dir: Path, tmp_path: Path) -> None:
    draft = first_layers(model_dir, tmp_path / "draft", 10)
    llm = small_engine(
        model_dir,
        speculative_config={"method": "draft_model", "model": str(draft), "num_speculative_tokens": 2},
        additional_config=ADAPTIVE,
    )
    prompts = token_prompts(plain)[8:14]
    check(llm, tokens_of(plain, prompts), prompts, 2)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.runs("MTP with AdaptiveScheduler", WHERE, IDENTITY)
def test_mtp(tmp_path: Path) -> None:
    """MiMo, a Qwen2 with one module that predicts a further token; tiny, and with made-up weights."""
    folder = tiny_mtp(tmp_path / "mimo")
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 128}
    prompts = [
        {"prompt_token_ids": [int(t) for t in np.random.default_rng(i).integers(256, size=9 + 5 * i)]}
        for i in range(6)
    ]
    wanted = tokens_of(small_engine(folder, **options), prompts)
    llm = small_engine(
        folder,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
        additional_config=ADAPTIVE,
        **options,
    )
    check(llm, wanted, prompts, 3)


@pytest.mark.runs("EAGLE-3 with AdaptiveScheduler", WHERE, IDENTITY)
@pytest.mark.parametrize("sample", ["greedy", "probabilistic"])
def test_eagle3(plain: Any, model_dir: Path, sample: str) -> None:
    """By the name of our class and our scheduler: the head that comes with vllm-specx."""
    llm = eagle3_by_name(model_dir, sample, scheduler_cls="vllm_specx.AdaptiveScheduler")
    assert llm.llm_engine.vllm_config.speculative_config.method == "eagle3"
    prompts = token_prompts(plain)[:8]
    check(llm, tokens_of(plain, prompts), prompts, 4)
    assert scheduler_of(llm).controller.tuner.acceptance.mean[0] > 0.25


@pytest.mark.runs("EAGLE-3 in the worker", WHERE, IDENTITY)
@pytest.mark.parametrize("sample", ["greedy", "probabilistic"])
def test_eagle3_alone_in_the_worker(plain: Any, model_dir: Path, sample: str) -> None:
    """By the name of our class alone: as the hybrid, without a suffix tree."""
    llm = eagle3_by_name(model_dir, sample)
    assert not isinstance(scheduler_of(llm), AdaptiveScheduler)
    drafter, rng = proposer_of(llm).specx, np.random.default_rng(0)
    assert type(drafter) is AdaptiveEagle3Proposer
    prompts = token_prompts(plain)[:8]
    wanted = tokens_of(plain, prompts)
    for _ in range(2):
        assert tokens_of(llm, prompts) == wanted
    assert drafter.num_accepted_tokens > 20
    drafter._depth.choose = lambda policy, times, others, expected, can, backlog: int(
        rng.integers(len(expected) + 1)
    )
    assert tokens_of(llm, prompts) == wanted
    assert drafter.faults == 0


@pytest.mark.runs("EAGLE-3 in the worker", WHERE, "a target in int8 (W8A8): greedy identity")
def test_eagle3_on_a_target_in_8_bits(model_dir: Path, tmp_path: Path) -> None:
    """The head was trained on the target in 16 bits."""
    target = int8(model_dir, tmp_path / "int8")
    reference = small_engine(target)
    prompts = token_prompts(reference)[:6]
    llm = eagle3_by_name(target, "greedy")
    wanted = tokens_of(reference, prompts)
    for _ in range(2):
        assert tokens_of(llm, prompts) == wanted
    drafter = proposer_of(llm).specx
    assert drafter._head.expected(1)[0] > 0.2
    assert drafter.faults == 0
