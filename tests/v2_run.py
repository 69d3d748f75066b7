"""One method on model runner V2, whose kernels are interpreted; prints JSON.

    python v2_run.py METHOD MODEL [DRAFT]

METHOD is plain, suffix, suffix-async, suffix-sampled, eagle3, eagle3-async, mtp or draft_model. N changes at every
step, between 0 and its maximum.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

import v2

N = 4
PROMPTS = [
    "Repeat after me: one two three four five, one two three four five, one two three",
    "The list of colours is red, green, blue, red, green, blue, red, green,",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):",
    "Write the days of the week three times, each time in the same order.",
]
MAX_TOKENS = 24
THREE, NUM_SAMPLED, NUM_REQUESTS = (5, 9, 7), 3, 192
THREE_PROMPTS = ((5, 9, 7, 5, 9, 7, 5, 9, 7, 5), (9, 9, 5, 9, 9, 5, 9, 9, 5, 9))
TEMPERATURES = (0.8, 1.2)
LONG = 40  # tokens of an answer where the KV cache runs out


def speculative(method: str, draft: str | None) -> dict[str, Any]:
    if method.startswith("suffix"):
        return {"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": N}
    if method.startswith("eagle3"):
        return {"model": "vllm_specx.AdaptiveEagle3Proposer", "num_speculative_tokens": N}
    if method == "mtp":
        return {"method": "mtp", "num_speculative_tokens": N}
    return {"method": "draft_model", "model": draft, "num_speculative_tokens": N}


def make_engine(method: str, model: str, draft: str | None, **options: Any) -> Any:
    from vllm import LLM

    if method != "plain":
        options["speculative_config"] = speculative(method, draft)
        if method in ("draft_model", "mtp"):
            options["additional_config"] = {"specx": {"adaptive": True}}
        if method == "suffix":
            options["additional_config"] = {"specx": {"alpha": 0.0}}
    if method.endswith("-async"):
        options["async_scheduling"] = True
    defaults = {
        "model": model,
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 128,
        "max_num_seqs": 4,
        "block_size": 32,
        "num_gpu_blocks_override": 40,
        "disable_log_stats": False,
        "enable_prefix_caching": False,
        "seed": 0,
    }
    llm = LLM(**(defaults | options))
    if method != "plain":
        change_n(llm)
    return llm


def scheduler_of(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def runner_of(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def change_n(llm: Any) -> None:
    """Another N at every step, whatever anybody would choose."""
    scheduler, lengths = scheduler_of(llm), random.Random(0)
    if hasattr(scheduler, "controller"):
        scheduler._choose = lambda _: lengths.randint(0, N)
        return
    original = scheduler._update_after_schedule

    def update(scheduler_output: Any) -> None:
        scheduler_output.num_spec_tokens_to_schedule = lengths.randint(0, N)
        original(scheduler_output)

    scheduler._update_after_schedule = update


def generate(llm: Any, prompts: list[Any], max_tokens: int = MAX_TOKENS) -> list[list[int]]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
    return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]


def with_abort(llm: Any) -> dict[str, list[int]]:
    """Three requests; the second is aborted in mid-draft, and its id comes back with another prompt."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False)
    engine, said = llm.llm_engine, {}
    for i in range(3):
        engine.add_request(str(i), PROMPTS[i], params)
    for step in itertools.count():
        if not engine.has_unfinished_requests():
            break
        if step == 5:
            engine.abort_request(["1"])
            engine.add_request("1", PROMPTS[3], params)
        for output in engine.step():
            if output.finished:
                said[output.request_id] = list(output.outputs[0].token_ids)
    return said


def counts(llm: Any) -> dict[str, int]:
    return {
        m.name.removeprefix("vllm:"): m.value
        for m in llm.get_metrics()
        if hasattr(m, "value") and m.name in ("vllm:spec_decode_num_accepted_tokens", "vllm:num_preemptions")
    }


def sample(folder: str) -> None:
    """Two kinds of requests over a tiny random model, three tokens out of three, with drafts."""
    from tensor_parallel_run import make_model
    from vllm import SamplingParams

    make_model(folder)
    llm = make_engine("suffix", folder, None, max_num_seqs=32, max_model_len=64, skip_tokenizer_init=True)
    params = [
        SamplingParams(
            temperature=TEMPERATURES[i % 2],
            max_tokens=NUM_SAMPLED,
            ignore_eos=True,
            allowed_token_ids=list(THREE),
            seed=i,
            detokenize=False,
        )
        for i in range(NUM_REQUESTS)
    ]
    prompts = [{"prompt_token_ids": list(THREE_PROMPTS[i % 2])} for i in range(NUM_REQUESTS)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    said = [(i % 2, *map(THREE.index, output.outputs[0].token_ids)) for i, output in enumerate(outputs)]
    print("RESULT", json.dumps({"said": said, "counts": counts(llm)}))


def mtp(folder: str) -> None:
    """Answers of a tiny random model, alone and four at once, with drafts of its own module and without."""
    from targets import tiny_mtp

    path = str(tiny_mtp(Path(folder, "mimo")))
    options = {"load_format": "dummy", "skip_tokenizer_init": True}
    random_ids = random.Random(1)
    prompts = [{"prompt_token_ids": random_ids.choices(range(256), k=9 + 5 * i)} for i in range(4)]
    result: dict[str, Any] = {}
    for method in ("plain", "mtp"):
        llm = make_engine(method, path, None, **options)
        result[method] = [generate(llm, prompts[:1]), generate(llm, prompts)]
    result["speculator"] = type(runner_of(llm).speculator).__name__
    result["scheduler"] = type(scheduler_of(llm)).__name__
    result["drafts"] = next(
        m.value for m in llm.get_metrics() if m.name == "vllm:spec_decode_num_draft_tokens"
    )
    print("RESULT", json.dumps(result))


def main(method: str, model: str, draft: str | None = None) -> None:
    v2.prepare(use_async=method.endswith("async"))
    if method in ("suffix-sampled", "mtp"):
        (sample if method == "suffix-sampled" else mtp)(model)
        return
    llm = make_engine(method, model, draft)
    runner, scheduler = runner_of(llm), scheduler_of(llm)
    result: dict[str, Any] = {
        "runner": f"{type(runner).__module__}.{type(runner).__name__}",
        "scheduler": [c.__name__ for c in type(scheduler).__mro__],
        "speculator": None if runner.speculator is None else type(runner.speculator).__name__,
        "one": generate(llm, PROMPTS[:1]),
        "four": generate(llm, PROMPTS),
        "abort": with_abort(llm),
        "counts": counts(llm),
    }
    small = make_engine(method, model, draft, num_gpu_blocks_override=7)
    before = counts(small)["num_preemptions"]
    result["long"] = generate(small, PROMPTS, LONG)
    result["preemptions"] = counts(small)["num_preemptions"] - before
    proposer = getattr(runner.speculator, "proposer", None)
    result["faults"] = None if proposer is None else proposer.faults
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
