"""Time to first token while others decode: plain vLLM, its n-gram drafter, and that with a length for each step.

    python benchmarks/first_token.py --model DIR

16 requests that copy from their prompts decode; then four prompts of 512 tokens arrive one after the other, each when
the one before has its first token. A step holds 256 tokens, so that drafts and prompts compete for it. The methods take
turns in one process, several times; medians over all arrivals, and the decoding rate meanwhile.
"""

import argparse
import json
import os
import time
from statistics import median
from typing import Any

NGRAM = {"method": "ngram", "num_speculative_tokens": 16, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ngram": {"speculative_config": NGRAM},
    "adaptive, share 0.5": {
        "speculative_config": NGRAM,
        "additional_config": {"specx": {"adaptive": True}},
    },
    "adaptive, share 0.1": {
        "speculative_config": NGRAM,
        "additional_config": {"specx": {"adaptive": True, "max_draft_share": 0.1}},
    },
}
NUM_DECODING, NUM_ARRIVALS, PROMPT_TOKENS, BUDGET = 16, 4, 512, 256


def main() -> None:
    """Measure and print a JSON line per method."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from vllm import LLM

    engines = {
        name: LLM(
            model=args.model,
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=NUM_DECODING + 1,
            max_num_batched_tokens=BUDGET,
            enable_prefix_caching=False,
            **options,
        ).llm_engine
        for name, options in METHODS.items()
    }
    waits: dict[str, list[float]] = {name: [] for name in METHODS}
    rates: dict[str, list[float]] = {name: [] for name in METHODS}
    for repeat in range(-1, args.repeats):  # the first time warms up
        for name, engine in engines.items():
            found, rate = measure(engine, repeat)
            if repeat >= 0:
                waits[name] += found
                rates[name].append(rate)
    for name in METHODS:
        ratios = [a / b for a, b in zip(waits[name], waits["plain"], strict=True)]
        print(
            json.dumps(
                {
                    "method": name,
                    "first_token_ms": round(1e3 * median(waits[name]), 1),
                    "worst_ms": round(1e3 * max(waits[name]), 1),
                    "ratio_to_plain": round(median(ratios), 3),
                    "decoded_tokens_per_s": round(median(rates[name]), 1),
                }
            )
        )


def measure(engine: Any, seed: int) -> tuple[list[float], float]:
    """Seconds to the first token of each arrival, and tokens per second of the others meanwhile."""
    import numpy as np
    from vllm import SamplingParams

    rng = np.random.default_rng(seed + 1)
    params = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True, detokenize=False)
    once = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    live = [f"{seed}-{i}" for i in range(NUM_DECODING)]
    for request_id in live:
        part = rng.integers(1000, 2000, 8).tolist()
        engine.add_request(request_id, {"prompt_token_ids": part * 4}, params)
    for _ in range(30):
        engine.step()
    waits, num_tokens, began = [], 0, time.perf_counter()
    for arrival in range(NUM_ARRIVALS):
        start = time.perf_counter()
        name = f"{seed}-late-{arrival}"
        prompt = rng.integers(1000, 40000, PROMPT_TOKENS).tolist()
        engine.add_request(name, {"prompt_token_ids": prompt}, once)
        is_waiting = True
        lengths: dict[str, int] = {}
        while is_waiting:
            for output in engine.step():
                if output.request_id == name and output.outputs[0].token_ids:
                    waits.append(time.perf_counter() - start)
                    is_waiting = False
                elif output.request_id != name:
                    now = len(output.outputs[0].token_ids)
                    num_tokens += now - lengths.get(output.request_id, now)
                    lengths[output.request_id] = now
    seconds = time.perf_counter() - began
    engine.abort_request(live)
    while engine.has_unfinished_requests():
        engine.step()
    return waits, num_tokens / seconds


if __name__ == "__main__":
    main()
