"""Time one step of the suffix-tree drafter, and of Arctic Inference's cache where it is installed, on the same streams.

    python benchmarks/step_time.py [--steps 200]

64 live requests; prompts of 1k and 32k tokens; 1k and 10k cached responses of 256 tokens. Each step commits three
tokens to every request (observe) and drafts for all (propose). Prints one JSON object a configuration: milliseconds a
step (minimum, median), microseconds a prompt token at the start, bytes a cached token.
"""

import argparse
import json
import time
from contextlib import suppress
from itertools import product

import numpy as np

from drafters import SuffixTreeDrafter

NUM_LIVE, RESPONSE, PER_STEP = 64, 256, 3


class Arctic:
    """Arctic Inference's cache behind the same four calls."""

    def __init__(self, depth: int) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache = SuffixDecodingCache(max_tree_depth=depth, max_cached_requests=1 << 20)
        self.depth = depth
        self.tail: dict[int, np.ndarray] = {}

    def start(self, request: int, prompt: np.ndarray) -> None:
        self.cache.start_request(request, prompt)
        self.tail[request] = prompt[-self.depth :]

    def observe(self, request: int, token_ids: list[int]) -> None:
        self.cache.add_active_response(request, np.asarray(token_ids, dtype=np.int32))
        self.tail[request] = np.concatenate((self.tail[request], token_ids))[-self.depth :].astype(np.int32)

    def propose(self, requests: list[int], max_n: int) -> None:
        for request in requests:
            self.cache.speculate(
                request, self.tail[request], max_spec_tokens=max_n, max_spec_factor=1.0, min_token_prob=0.1
            )

    def stop(self, request: int) -> None:
        self.cache.stop_request(request)


def stream(rng: np.random.Generator, length: int) -> np.ndarray:
    """Text that repeats itself at all scales: words of a Zipf law, put into phrases that come back."""
    phrases = [rng.zipf(1.3, rng.integers(4, 24)) % 30000 for _ in range(max(8, length // 64))]
    chosen = [phrases[min(len(phrases) - 1, rng.zipf(1.2) - 1)] for _ in range(length // 4)]
    return np.concatenate(chosen)[:length].astype(np.int32)


def run(drafter: object, prompt_length: int, num_cached: int, steps: int) -> dict[str, float]:
    """Fill, start and step one drafter."""
    rng = np.random.default_rng(0)
    for request in range(num_cached):
        drafter.start(-1 - request, stream(rng, 32))
        drafter.observe(-1 - request, stream(rng, RESPONSE).tolist())
        drafter.stop(-1 - request)
    requests = list(range(NUM_LIVE))
    prompts = [stream(rng, prompt_length) for _ in requests]
    begin = time.perf_counter()
    for request in requests:
        drafter.start(request, prompts[request])
    if isinstance(drafter, SuffixTreeDrafter):
        drafter.propose(requests[:1], 1)  # prompts are indexed by the first call
    started = time.perf_counter() - begin
    new = [stream(rng, PER_STEP * steps) for _ in requests]
    times = []
    for step in range(steps):
        tokens = [new[request][PER_STEP * step : PER_STEP * (step + 1)].tolist() for request in requests]
        begin = time.perf_counter()
        for request in requests:
            drafter.observe(request, tokens[request])
        drafter.propose(requests, 16)
        times.append(time.perf_counter() - begin)
    result = {
        "step_ms_min": 1e3 * min(times),
        "step_ms_median": 1e3 * float(np.median(times)),
        "start_us_per_prompt_token": 1e6 * started / (NUM_LIVE * prompt_length),
    }
    if isinstance(drafter, SuffixTreeDrafter):
        result["bytes_per_cached_token"] = drafter.memory.num_bytes / max(1, drafter.memory.num_tokens)
    return {name: round(value, 3) for name, value in result.items()}


def main() -> None:
    """Run every configuration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    for prompt_length, num_cached in product((1024, 32768), (1000, 10000)):
        drafters = {"suffix-tree": SuffixTreeDrafter(max_n=16)}
        with suppress(ImportError):  # without the peer, our own numbers alone
            drafters |= {f"arctic depth {depth}": Arctic(depth) for depth in (24, 64)}
        for name, drafter in drafters.items():
            result = run(drafter, prompt_length, num_cached, steps)
            print(
                json.dumps({"drafter": name, "prompt": prompt_length, "cached": num_cached} | result),
                flush=True,
            )


if __name__ == "__main__":
    main()
