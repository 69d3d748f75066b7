"""Time the tuner's decisions and updates.

    python benchmarks/tuner_time.py [--steps 3000]

Prints one JSON object a configuration: microseconds of `choose` (median, 90 %, 99 %) and of `update` (median), for
drafts of 16 or 32 tokens and up to 64 requests; then the same for the one-N-per-step tuner.
"""

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from vllm_specx.tuner import CostModel, Step, Tuner, UniformTuner


def timed(choose: Callable[[int], int], update: Callable[[int, int], None], steps: int) -> dict[str, float]:
    """Call both in turns; `choose` gets the number of the step, `update` also what was chosen."""
    decisions, updates = [], []
    for step in range(steps):
        begin = time.perf_counter()
        chosen = choose(step)
        between = time.perf_counter()
        update(step, chosen)
        updates.append(time.perf_counter() - between)
        decisions.append(between - begin)
    median, most, worst = np.quantile(decisions, [0.5, 0.9, 0.99])
    return {
        "choose_us": round(1e6 * median, 1),
        "choose_us_90": round(1e6 * most, 1),
        "choose_us_99": round(1e6 * worst, 1),
        "update_us": round(1e6 * float(np.median(updates)), 1),
    }


def main() -> None:
    """Run every configuration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    steps = parser.parse_args().steps
    rng = np.random.default_rng(0)
    for batch, length in ((1, 16), (8, 16), (32, 16), (64, 16), (64, 32)):
        drafts = [[np.cumprod(rng.beta(4, 1, length)) for _ in range(batch)] for _ in range(50)]
        tuner = Tuner(CostModel(), max_n=length)
        result = timed(
            lambda k, tuner=tuner, drafts=drafts: sum(tuner.choose(drafts[k % 50])),
            lambda _, m, tuner=tuner, batch=batch: tuner.update(
                Step(batch, m, batch + m // 2, 0.024 + 0.001 * m)
            ),
            steps,
        )
        print(json.dumps({"tuner": "ragged", "requests": batch, "draft": length} | result), flush=True)
    for batch in (1, 64):
        uniform = UniformTuner(CostModel(), max_n=16, idle_passes=1)
        result = timed(
            lambda _, uniform=uniform, batch=batch: uniform.choose(batch),
            lambda _, n, uniform=uniform, batch=batch: uniform.update(
                Step(batch, batch * n, batch, 0.024 + 0.001 * batch * n, num_passes=n), n, [n // 2] * batch
            ),
            steps,
        )
        print(json.dumps({"tuner": "uniform", "requests": batch, "draft": 16} | result), flush=True)


if __name__ == "__main__":
    main()
