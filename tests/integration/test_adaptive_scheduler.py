"""`vllm_specx.AdaptiveScheduler`: configured by one option, lossless, and really choosing; async at its own level.

The CPU platform turns async scheduling off, so no engine here can run it: the scheduler itself is run instead, against
a model that makes its tokens up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tensor_parallel_run
from engine_prompts import token_prompts
from engines import counters, make_engine, scheduler_of
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.request import RequestStatus
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from vllm_specx import AdaptiveAsyncScheduler, AdaptiveScheduler
from vllm_specx.metrics.layout import FAMILIES, OFFSETS
from vllm_specx.metrics.page import read_pages

NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
ADAPTIVE = {"specx": {"adaptive": True}}
TABLE = "num_speculative_tokens_per_batch_size"
PARAMS = SamplingParams(temperature=0, max_tokens=32)


def build(model_dir: Any, speculative: dict[str, Any] | None, options: Any = ADAPTIVE, **more: Any) -> Any:
    return EngineArgs(
        model=str(model_dir),
        max_model_len=256,
        max_num_seqs=16,
        speculative_config=speculative,
        additional_config=options,
        **more,
    ).create_engine_config()


# Configuration


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (ADAPTIVE, {}),
        ({}, {"scheduler_cls": "vllm_specx.AdaptiveScheduler"}),
        ({}, {"scheduler_cls": AdaptiveScheduler}),
    ],
    ids=["option", "name", "class"],
)
def test_the_scheduler_comes_by_option_or_by_name(model_dir: Any, options: Any, more: dict[str, Any]) -> None:
    config = build(model_dir, NGRAM, options, **more)
    assert config.scheduler_config.scheduler_cls == "vllm_specx.AdaptiveScheduler"
    assert config.scheduler_config.get_scheduler_cls() is AdaptiveScheduler
    assert getattr(config.speculative_config, TABLE) is None  # runner V1


def test_runner_v2_gets_a_table_for_its_graphs(model_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setattr(VllmConfig, "_validate_v2_model_runner", lambda self: None)  # it wants Triton
    config = build(model_dir, NGRAM)
    assert config.use_v2_model_runner
    lookup = build_dynamic_sd_schedule_lookup(
        getattr(config.speculative_config, TABLE), vllm_max_batch_size=16, vllm_num_speculative_tokens=5
    )
    assert lookup[1:] == [5] * 11 + [4, 3, 2, 1, 0]


def test_data_parallel_engines_keep_the_length(model_dir: Any) -> None:
    config = build(model_dir, NGRAM, data_parallel_size=2)
    assert config.scheduler_config.scheduler_cls is None
    assert getattr(config.speculative_config, TABLE) is None


@pytest.mark.parametrize(
    ("speculative", "options", "more", "words"),
    [
        (NGRAM | {TABLE: [(1, 16, 3)]}, ADAPTIVE, {}, [TABLE, "specx.adaptive"]),
        (None, ADAPTIVE, {}, ["specx.adaptive", "no speculative_config"]),
        (NGRAM, {"specx": {"adaptive": True, "alpha": 0.1}}, {}, ["specx.alpha", "no effect"]),
        (NGRAM, {"specx": {"max_draft_share": 0.1}}, {}, ["no proposer", "specx.adaptive"]),
        (NGRAM, ADAPTIVE, {"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}, ["scheduler_cls"]),
        (
            {"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 5},
            ADAPTIVE,
            {},
            ["custom_class", "by itself", "ngram"],
        ),
    ],
    ids=str,
)
def test_refused_by_name(
    model_dir: Any, speculative: Any, options: Any, more: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError) as error:
        build(model_dir, speculative, options, **more)
    for word in words:
        assert word in str(error.value)


# The scheduler by itself


def make_scheduler(
    model_dir: Any, *, is_async: bool, budget: int = 256, num_blocks: int = 512, **options: Any
) -> Any:
    """A scheduler for ngram (vLLM would not run ngram asynchronously; the scheduler does not care)."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = build(
        model_dir,
        NGRAM,
        {"specx": {"adaptive": True, **options}},
        max_num_batched_tokens=budget,
        enable_prefix_caching=False,
        block_size=16,
    )
    config.scheduler_config.async_scheduling = is_async
    config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
    kv_cache = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    scheduler = AdaptiveAsyncScheduler if is_async else AdaptiveScheduler
    return scheduler(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=16,
        log_stats=True,
    )


def add(scheduler: Any, name: str, num_prompt_tokens: int, max_tokens: int = 64, **extra_args: Any) -> None:
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra_args or None)
    params.update_from_generation_config({}, eos_token_id=None)
    scheduler.add_request(
        Request(
            request_id=name,
            prompt_token_ids=list(range(num_prompt_tokens)),
            sampling_params=params,
            pooling_params=None,
        )
    )


class Model:
    """Accepts each draft token with a probability, and drafts what vLLM's workers would."""

    def __init__(self, scheduler: Any, accept: float) -> None:
        self.scheduler, self.accept = scheduler, accept
        self.rng = np.random.default_rng(0)
        self.computed: dict[str, int] = {}
        self.outputs: list[Any] = []  # in flight
        self.finished: dict[str, int] = {}  # tokens per request
        self.draft_stats = [0, 0]

    def run(self, output: Any) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            num_drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            assert num_drafts <= 5
            request = self.scheduler.requests.get(name)
            if request is None or request.is_prefill_chunk:
                sampled.append([])
                continue
            num_accepted = min(num_drafts, int(self.rng.geometric(1 - self.accept)) - 1)
            sampled.append([7] * (1 + num_accepted))
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
        )

    def evaluate(self, output: Any, result: Any) -> None:
        for group in self.scheduler.update_from_output(output, result).values():
            stats = group.scheduler_stats and group.scheduler_stats.spec_decoding_stats
            if stats:
                self.draft_stats[0] += stats.num_draft_tokens
                self.draft_stats[1] += stats.num_accepted_tokens
            for one in group.outputs:
                self.finished[one.request_id] = self.finished.get(one.request_id, 0) + len(one.new_token_ids)

    def step_sync(self) -> Any:
        from vllm.v1.outputs import DraftTokenIds

        output = self.scheduler.schedule()
        result = self.run(output)
        self.evaluate(output, result)
        n = output.num_spec_tokens_to_schedule
        drafts = [[7] * n if tokens else [] for tokens in result.sampled_token_ids]
        self.scheduler.update_draft_token_ids(DraftTokenIds(result.req_ids, drafts))
        return output

    def step_async(self) -> Any:
        """Schedule one step ahead of the results, as vLLM's engine core does."""
        output = self.scheduler.schedule()
        if output.num_scheduled_tokens:
            self.outputs.append((output, self.run(output)))
        if len(self.outputs) > 1 or (self.outputs and not output.num_scheduled_tokens):
            self.evaluate(*self.outputs.pop(0))
        return output


@pytest.mark.parametrize("is_async", [False, True])
def test_schedulers_count_and_finish(model_dir: Any, is_async: bool) -> None:
    scheduler = make_scheduler(model_dir, is_async=is_async)
    model = Model(scheduler, accept=0.8)
    step = model.step_async if is_async else model.step_sync
    expected = {}
    lengths, offered, num_drafts = set(), [], 0
    learn = scheduler.controller.tuner.update

    def recording(one: Any, lengths_of_rows: list[int], accepted: list[int]) -> None:
        offered.append((sum(lengths_of_rows), sum(accepted)))
        learn(one, lengths_of_rows, accepted)

    scheduler.controller.tuner.update = recording
    for wave in range(4):
        for i in range(4):
            name, max_tokens = f"{wave}-{i}", [1, 2, 30, 64][i]
            add(scheduler, name, 20 + 7 * i, max_tokens)
            expected[name] = max_tokens
        for _ in range(200):
            if not scheduler.has_requests() and not model.outputs:
                break
            output = step()
            lengths.add(output.num_spec_tokens_to_schedule)
            num_drafts += sum(map(len, output.scheduled_spec_decode_tokens.values()))
    assert model.finished == expected
    assert len(lengths) > 1
    assert scheduler.controller is not None  # nothing failed
    # Asynchronously a request that ends is run once more, which nobody counts.
    assert 0 < sum(o for o, _ in offered) == model.draft_stats[0] <= num_drafts
    assert is_async or model.draft_stats[0] == num_drafts
    assert 0 < sum(a for _, a in offered) == model.draft_stats[1] < num_drafts
    assert scheduler.kv_cache_manager.usage == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_drafts_do_not_starve_prompts(model_dir: Any, is_async: bool) -> None:
    """Eight decoding requests could take 48 of 64 tokens; with a share of an eighth they take 16."""
    scheduler = make_scheduler(model_dir, is_async=is_async, budget=64, max_draft_share=0.125)
    scheduler.controller.tuner.choose = lambda num_requests: 5
    model = Model(scheduler, accept=0.0)
    step = model.step_async if is_async else model.step_sync
    for i in range(8):
        add(scheduler, f"d{i}", 4)
    for _ in range(4):
        output = step()
    assert output.num_spec_tokens_to_schedule == 5
    add(scheduler, "late", 200)
    outputs = [step() for _ in range(7)]
    assert outputs[0].num_spec_tokens_to_schedule == 1
    prompt = [o.num_scheduled_tokens.get("late", 0) for o in outputs]
    assert min(prompt[1:4]) == 48
    assert sum(prompt[:6]) >= 200
    assert outputs[-1].num_spec_tokens_to_schedule == 5  # nothing waits any more


@pytest.mark.parametrize("is_async", [False, True])
def test_lengths_that_jump_while_the_cache_is_full(model_dir: Any, is_async: bool) -> None:
    """Between 0 and 5 at random, with blocks for three requests of six, and one that is aborted in mid-draft."""
    scheduler = make_scheduler(model_dir, is_async=is_async, num_blocks=14)
    rng = np.random.default_rng(0)
    scheduler.controller.tuner.choose = lambda num_requests: int(rng.choice([0, 5]))
    preempted = []
    preempt = scheduler._preempt_request

    def recording(request: Any, *args: Any, **kwargs: Any) -> None:
        preempted.append(request.request_id)
        preempt(request, *args, **kwargs)

    scheduler._preempt_request = recording
    model = Model(scheduler, accept=0.5)
    step = model.step_async if is_async else model.step_sync
    for i in range(6):
        add(scheduler, str(i), 20, 40)
    add(scheduler, "aborted", 20, 40)
    for number in range(600):
        if not scheduler.has_requests() and not model.outputs:
            break
        step()
        if number == 5:
            scheduler.finish_requests("aborted", RequestStatus.FINISHED_ABORTED)
    assert {name: n for name, n in model.finished.items() if name != "aborted"} == dict.fromkeys("012345", 40)
    assert preempted
    assert scheduler.controller is not None
    assert scheduler.kv_cache_manager.usage == 0


def test_requests_at_their_end_are_not_drafted_for(model_dir: Any) -> None:
    scheduler = make_scheduler(model_dir, is_async=False)
    scheduler.controller.tuner.choose = lambda num_requests: 5
    model = Model(scheduler, accept=0.0)
    add(scheduler, "one", 8, max_tokens=1)
    assert model.step_sync().num_spec_tokens_to_schedule == 0
    add(scheduler, "four", 8, max_tokens=4)
    assert [model.step_sync().num_spec_tokens_to_schedule for _ in range(4)] == [2, 1, 0, 0]


@pytest.mark.parametrize("is_async", [False, True])
def test_requests_have_the_last_word(model_dir: Any, is_async: bool) -> None:
    scheduler = make_scheduler(model_dir, is_async=is_async)
    scheduler.controller.tuner.choose = lambda num_requests: 5
    model = Model(scheduler, accept=0.5)
    limits = {"free": 5, "two": 2, "none": 0, "wrong": 0}
    add(scheduler, "free", 8)
    add(scheduler, "two", 8, specx_max_n=2)
    add(scheduler, "none", 8, specx_max_n=0)
    add(scheduler, "wrong", 8, specx_max_n="4")  # as a ready-made request may come
    verified: dict[str, set[int]] = {name: set() for name in limits}
    for _ in range(8):
        output = model.step_async() if is_async else model.step_sync()
        for name in output.num_scheduled_tokens:
            verified[name].add(len(output.scheduled_spec_decode_tokens.get(name, ())))
    assert {name: max(lengths) for name, lengths in verified.items()} == limits
    while scheduler.has_requests() or model.outputs:
        _ = model.step_async() if is_async else model.step_sync()
    assert model.finished == dict.fromkeys(limits, 64)


def test_a_broken_tuner_does_not_break_the_engine(model_dir: Any) -> None:
    scheduler = make_scheduler(model_dir, is_async=False)

    def broken(*args: Any) -> int:
        raise ZeroDivisionError("tuner")

    scheduler.controller.tuner.choose = broken
    model = Model(scheduler, accept=0.5)
    add(scheduler, "a", 8)
    assert model.step_sync().num_spec_tokens_to_schedule == 5
    assert scheduler.controller is None
    for _ in range(70):
        model.step_sync()
    assert model.finished == {"a": 64}


# The engine


@pytest.fixture(scope="session")
def adaptive(plain: Any, model_dir: Any) -> Any:
    """vLLM's ngram with a length for each step. Made after `plain`: vLLM's counters are those of the last engine."""
    return make_engine(
        model_dir, speculative_config=NGRAM, additional_config=ADAPTIVE, max_num_batched_tokens=96
    )


@pytest.fixture
def steps(adaptive: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What the scheduler sent and got back, step by step (copies of what it cuts)."""
    scheduler, seen = scheduler_of(adaptive), []
    update = scheduler.update_from_output

    def recording(output: Any, result: Any) -> Any:
        seen.append((output, [list(tokens) for tokens in result.sampled_token_ids]))
        return update(output, result)

    monkeypatch.setattr(scheduler, "update_from_output", recording)
    return seen


def tokens_of(llm: Any, prompts: Any) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, PARAMS, use_tqdm=False)]


def served(llm: Any) -> dict[str, float]:
    """Our metrics of an engine, each the sum over its labels."""
    numbers = read_pages(str(llm.llm_engine.vllm_config.instance_id))[0]
    return {f.name: float(numbers[OFFSETS[f.name] :][: f.size].sum()) for f in FAMILIES}


def test_same_tokens_as_plain_and_lengths_that_change(
    adaptive: Any, plain: Any, steps: list[tuple[Any, Any]]
) -> None:
    assert type(scheduler_of(adaptive)) is AdaptiveScheduler
    before, counted = counters(adaptive), served(adaptive)
    prompts = token_prompts(plain)[4:14]
    assert tokens_of(adaptive, prompts) == tokens_of(plain, prompts)
    controller = scheduler_of(adaptive).controller
    assert controller is not None
    lengths = {output.num_spec_tokens_to_schedule for output, _ in steps}
    assert len(lengths) > 1
    assert lengths <= set(range(6))
    assert controller.tuner.costs.num_learned > 5
    num_drafts = 0
    for (previous, _), (output, _) in pairwise(steps):
        drafts = output.scheduled_spec_decode_tokens
        assert all(len(row) <= previous.num_spec_tokens_to_schedule for row in drafts.values())
        num_drafts += sum(map(len, drafts.values()))
    num_accepted = sum(
        len(tokens) - 1 for output, sampled in steps if sampled for tokens in sampled if len(tokens) > 1
    )
    after = counters(adaptive)
    gained = {name: after[name] - before.get(name, 0) for name in after if "spec_decode" in name}
    assert gained["vllm:spec_decode_num_draft_tokens"] == num_drafts > 0
    assert gained["vllm:spec_decode_num_accepted_tokens"] == num_accepted > 0
    # Our metrics say the same.
    counted = {name: number - counted[name] for name, number in served(adaptive).items()}
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert counted[f"specx_{name.removeprefix('num_')}"] == gained[f"vllm:spec_decode_{name}"]
    assert counted["specx_step_seconds"] > counted["specx_draft_seconds"] == 0  # n-grams need no pass


@pytest.mark.runs(
    "n-gram with AdaptiveScheduler",
    "vLLM 0.32, V1 on the CPU",
    "greedy identity in float32, any length at any step",
)
def test_lengths_that_change_at_random_at_every_step(
    adaptive: Any, plain: Any, steps: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    prompts = token_prompts(plain)[8:14]
    monkeypatch.setattr(
        scheduler_of(adaptive).controller.tuner, "choose", lambda num_requests: int(rng.integers(6))
    )
    assert tokens_of(adaptive, prompts) == tokens_of(plain, prompts)
    assert {output.num_spec_tokens_to_schedule for output, _ in steps} == set(range(6))


def test_off_where_drafts_cost_too_much_and_on_again(
    adaptive: Any, plain: Any, steps: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = token_prompts(plain)[8:12]
    expected = tokens_of(plain, prompts)
    tuner = scheduler_of(adaptive).controller.tuner
    costs = tuner.costs

    def dear(num_requests: int, num_draft_tokens: Any, num_passes: Any = 0) -> Any:
        return 0.02 * (1.0 + 10.0 * np.asarray(num_draft_tokens, dtype=float))

    with monkeypatch.context() as patch:
        patch.setattr(costs, "seconds", dear)
        assert tokens_of(adaptive, prompts) == expected
        lengths = [output.num_spec_tokens_to_schedule for output, _ in steps]
        assert np.mean(np.array(lengths) == 0) > 0.8
        assert sum(map(len, steps[-1][0].scheduled_spec_decode_tokens.values())) == 0
    steps.clear()
    for _ in range(4):
        assert tokens_of(adaptive, prompts) == expected
    assert max(output.num_spec_tokens_to_schedule for output, _ in steps) > 0


@pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated:DeprecationWarning")
def test_structured_output(adaptive: Any, plain: Any) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    params = SamplingParams(
        temperature=0,
        max_tokens=24,
        structured_outputs=StructuredOutputsParams(json={"type": "array", "items": {"type": "integer"}}),
    )
    prompts = ["Ten primes as JSON:", "Squares as JSON: [1, 4, 9, 16, 25, 36, 49"]
    said = [
        [o.outputs[0].text for o in llm.generate(prompts, params, use_tqdm=False)]
        for llm in (adaptive, plain)
    ]
    assert said[0] == said[1]
    assert all(text.lstrip().startswith("[") for text in said[0])
    assert scheduler_of(adaptive).controller is not None


def test_a_draft_model(adaptive: Any, plain: Any, model_dir: Any) -> None:
    """The target drafts for itself. After the others: vLLM's counters are those of the last engine."""
    llm = make_engine(
        model_dir,
        speculative_config={"method": "draft_model", "model": str(model_dir), "num_speculative_tokens": 3},
        additional_config=ADAPTIVE,
    )
    scheduler = scheduler_of(llm)
    lengths, update = [], scheduler.update_from_output

    def recording(output: Any, result: Any) -> Any:
        lengths.append(output.num_spec_tokens_to_schedule)
        return update(output, result)

    scheduler.update_from_output = recording
    prompts = token_prompts(plain)[8:12]
    assert tokens_of(llm, prompts) == tokens_of(plain, prompts)
    assert max(lengths) > 0
    assert scheduler.controller.tuner.acceptance.mean[0] > 0.8
    scheduler.controller.tuner.choose = lambda num_requests: int(
        np.random.default_rng(len(lengths)).integers(4)
    )
    assert tokens_of(llm, prompts) == tokens_of(plain, prompts)
    assert len(set(lengths)) > 2


@pytest.mark.runs("n-gram with AdaptiveScheduler", "vLLM 0.32, V1 on the CPU", "tensor parallel 2")
def test_one_decision_for_both_ranks_of_tensor_parallelism(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, tensor_parallel_run.__file__, str(tmp_path / "model")],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    result = json.loads(lines[0].removeprefix("RESULT "))
    assert result["adaptive"] == result["plain"]
    num_steps, num_drafts, num_accepted = (
        result["counts"][f"vllm:spec_decode_num_{name}"]
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert 0 < num_accepted <= num_drafts < 4 * num_steps  # which is N fixed at 4
