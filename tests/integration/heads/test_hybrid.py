"""The hybrid of suffix tree and EAGLE-3: the same tokens as plain decoding, from both sources of drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_prompts import token_prompts
from engines import make_engine, proposer_of
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs

import vllm_specx
from vllm_specx.heads import HYBRID
from vllm_specx.hybrid import EXTENSION

SPECULATIVE = {"model": HYBRID, "num_speculative_tokens": 8}
PARAMS = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, detokenize=False)


@pytest.fixture(scope="session")  # an engine that goes takes what others of the process need along
def hybrid(plain: Any, model_dir: Any) -> Any:
    return make_engine(model_dir, speculative_config=SPECULATIVE, max_num_batched_tokens=96)


def tokens_of(llm: Any, prompts: Any, params: SamplingParams = PARAMS) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]


def test_the_name_completes_the_configuration(hybrid: Any) -> None:
    config = hybrid.llm_engine.vllm_config
    assert config.speculative_config.method == "eagle3"
    assert config.speculative_config.disable_padded_drafter_batch
    assert config.parallel_config.worker_extension_cls == EXTENSION
    assert not config.scheduler_config.async_scheduling
    assert config.additional_config["specx"]["hybrid"] is True


def test_same_tokens_as_plain_from_both_sources(hybrid: Any, plain: Any) -> None:
    drafter = proposer_of(hybrid).specx
    heads, trees = [], []
    draft = drafter._draft

    def recording(rows: Any, request_ids: Any, limits: Any) -> Any:
        drafts = draft(rows, request_ids, limits)
        heads.append(len(drafter._by_head))
        trees.append(sum(len(d) > 0 for d in drafts) - heads[-1])
        return drafts

    drafter._draft = recording
    try:
        prompts = token_prompts(plain)[:14]
        for _ in range(2):
            assert tokens_of(hybrid, prompts) == tokens_of(plain, prompts)
    finally:
        drafter._draft = draft
    assert sum(heads) > 10
    assert sum(trees) > 10
    assert drafter.faults == 0
    assert 0 < drafter.num_accepted_tokens <= drafter.num_draft_tokens


@pytest.mark.runs("hybrid", "vLLM 0.32, V1 on the CPU", "greedy identity in float32, any depth at any step")
def test_any_depth_at_any_step(hybrid: Any, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, rng = proposer_of(hybrid).specx, np.random.default_rng(0)
    depths = []

    def choose(policy: Any, times: Any, others: Any, expected: Any, can: Any, backlog: int) -> int:
        depths.append(int(rng.integers(len(expected) + 1)))
        return depths[-1]

    monkeypatch.setattr(drafter._depth, "choose", choose)
    prompts = token_prompts(plain)[4:12]
    wanted = tokens_of(plain, prompts)
    for _ in range(3):
        assert tokens_of(hybrid, prompts) == wanted
    assert set(depths) == set(range(9))


def test_a_head_that_slept_drafts_as_if_it_had_not(
    hybrid: Any, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Woken in mid-answer it reads what it slept through; its drafts from there on are those of one that was awake."""
    drafter = proposer_of(hybrid).specx
    prompts = token_prompts(plain)[:2]
    wanted = tokens_of(plain, prompts)
    drafted: dict[bool, list[Any]] = {False: [], True: []}

    for sleeps in (False, True):
        step = 0

        def choose(*args: Any, sleeps: bool = sleeps) -> int:
            nonlocal step
            step += 1
            drafter._depth.is_asleep = sleeps and 4 <= step < 16
            return 3 if step >= 16 else 0

        def recording(
            depth: int, *, sleeps: bool = sleeps, draft: Any = drafter._passes.draft, asleep: bool, go_on: Any
        ) -> Any:
            token_ids, confidence = draft(min(depth, 3), asleep=asleep)
            if depth:
                drafted[sleeps].append((token_ids[:, 0].tolist(), confidence[:, 0]))
                assert not drafter._passes.backlog.lost  # its one pass had room for all
            return token_ids, confidence

        with monkeypatch.context() as patch:
            patch.setattr(drafter._depth, "choose", choose)
            patch.setattr(drafter._passes, "draft", recording)
            patch.setattr(drafter._policy, "choose", lambda reaches: list(map(len, reaches)))  # by no clock
            vllm_specx.forget(hybrid)  # the suffix tree's drafts are to be the same, too
            assert tokens_of(hybrid, prompts) == wanted
    assert len(drafted[True]) > 5
    for slept, awake in zip(drafted[True], drafted[False], strict=True):
        assert slept[0] == awake[0]  # what the first pass says, which is the one that reads
        np.testing.assert_allclose(slept[1], awake[1], atol=1e-3)


def test_drafts_that_fail_are_no_drafts(hybrid: Any, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the head's first pass is run all the same, so that its later drafts are worth something."""
    drafter = proposer_of(hybrid).specx
    prompts = token_prompts(plain)[4:8]
    wanted = tokens_of(plain, prompts)
    before = drafter.faults

    def broken(*args: Any) -> int:
        raise ZeroDivisionError("depth")

    with monkeypatch.context() as patch:
        patch.setattr(drafter._depth, "choose", broken)
        assert tokens_of(hybrid, prompts) == wanted
    assert drafter.faults > before
    assert drafter._passes._run is None
    assert tokens_of(hybrid, prompts) == wanted


def test_off_and_on_and_by_request(hybrid: Any, plain: Any) -> None:
    drafter = proposer_of(hybrid).specx
    prompts = token_prompts(plain)[4:8]
    wanted = tokens_of(plain, prompts)
    before = drafter.num_draft_tokens
    vllm_specx.set_enabled(hybrid, False)
    try:
        assert tokens_of(hybrid, prompts) == wanted
    finally:
        vllm_specx.set_enabled(hybrid, True)
    never = SamplingParams(
        temperature=0, max_tokens=48, ignore_eos=True, detokenize=False, extra_args={"specx_max_n": 0}
    )
    assert tokens_of(hybrid, prompts, never) == wanted
    assert drafter.num_draft_tokens == before
    vllm_specx.forget(hybrid)
    assert drafter.drafter.memory.num_documents == 0
    assert tokens_of(hybrid, prompts) == wanted
    assert drafter.num_draft_tokens > before


@pytest.mark.parametrize(
    ("speculative", "more", "words"),
    [
        (SPECULATIVE | {"method": "ngram"}, {}, [HYBRID, "eagle3", "ngram"]),
        (SPECULATIVE | {"model": f"{HYBRID}:/nowhere/at/all"}, {}, ["/nowhere/at/all"]),
        (SPECULATIVE, {"worker_extension_cls": "some.Class"}, ["worker_extension_cls", "some.Class"]),
        (SPECULATIVE, {"tensor_parallel_size": 3}, ["tensor_parallel_size", "specx.adaptive"]),
        (SPECULATIVE, {"additional_config": {"specx": {"alpha": 0.1}}}, ["specx.alpha", "specx.costs"]),
        (
            {"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 8},
            {"additional_config": {"specx": {"hybrid": True}}},
            ["specx.hybrid", "eagle3", "custom_class"],
        ),
    ],
    ids=str,
)
def test_refused_by_name(model_dir: Any, speculative: Any, more: dict[str, Any], words: list[str]) -> None:
    with pytest.raises((ValueError, OSError)) as error:
        EngineArgs(model=str(model_dir), speculative_config=dict(speculative), **more).create_engine_config()
    for word in words:
        assert word in str(error.value)
