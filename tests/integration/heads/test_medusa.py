"""Medusa heads in the engine: the same tokens as plain vLLM, with any number of heads at any step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_prompts import token_prompts
from engines import accepted, make_engine, proposer_of
from vllm import SamplingParams

SPECULATIVE = {"model": "vllm_specx.MedusaProposer", "num_speculative_tokens": 4}
PARAMS = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, detokenize=False)


@pytest.fixture(scope="session")  # an engine that goes takes what others of the process need along
def medusa(plain: Any, model_dir: Any) -> Any:
    return make_engine(
        model_dir,
        speculative_config=SPECULATIVE,
        max_num_batched_tokens=96,
        block_size=32,
        num_gpu_blocks_override=24,  # it must preempt
        enable_prefix_caching=False,
    )


def tokens_of(llm: Any, prompts: Any, params: SamplingParams = PARAMS) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.runs(
    "Medusa", "vLLM 0.32, V1 on the CPU", "greedy identity in float32, any number of heads, preemption"
)
def test_any_number_of_heads_at_any_step(medusa: Any, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, random = proposer_of(medusa), np.random.default_rng(0)
    numbers = []

    def choose(costs: Any, times: Any, others: Any, expected: Any, can: Any) -> int:
        numbers.append(int(random.integers(len(expected) + 1)))
        return numbers[-1]

    monkeypatch.setattr(drafter._depth, "choose", choose)
    monkeypatch.setattr(drafter._policy, "choose", lambda reaches: list(map(len, reaches)))
    prompts = token_prompts(plain)[:16]
    before = accepted(medusa)
    assert tokens_of(medusa, prompts) == tokens_of(plain, prompts)
    assert set(numbers) == set(range(5))
    assert accepted(medusa) - before > 100
    assert drafter.faults == 0


def test_by_measured_costs(medusa: Any, plain: Any) -> None:
    """As users have it; alone, where drafts pay on nearly any machine."""
    for prompt in token_prompts(plain)[8:12]:
        assert tokens_of(medusa, [prompt]) == tokens_of(plain, [prompt])
    assert proposer_of(medusa).faults == 0


def test_a_fault_is_no_draft(medusa: Any, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = proposer_of(medusa)
    faults = drafter.faults

    def broken(*args: Any) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(drafter, "_run", broken)
    monkeypatch.setattr(drafter._depth, "choose", lambda *args: 2)
    prompts = token_prompts(plain)[8:10]
    assert tokens_of(medusa, prompts) == tokens_of(plain, prompts)
    assert drafter.faults > faults


def test_more_draft_tokens_than_heads(model_dir: Any) -> None:
    with pytest.raises(ValueError, match=r"must be within \[1, 4\], got 5"):
        make_engine(model_dir, speculative_config=SPECULATIVE | {"num_speculative_tokens": 5})


def test_options_of_other_drafters_are_refused(model_dir: Any) -> None:
    with pytest.raises(ValueError, match=r"specx\.memory_bytes has no effect"):
        make_engine(
            model_dir,
            speculative_config=SPECULATIVE,
            additional_config={"specx": {"memory_bytes": 1 << 21}},
        )
