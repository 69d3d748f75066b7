"""Time what counting takes in a step, as `DrafterProposer` does it.

    python benchmarks/metrics_time.py [--steps 5000]

Prints one JSON object a batch: microseconds (median, 99 %) of all that is counted in a step in which every request had
a draft of 8 tokens. Metrics are worth having below 0.5 % of a step.
"""

import argparse
import json
import time

import numpy as np

from vllm_specx.metrics.meter import DraftMeter
from vllm_specx.metrics.page import new_page
from vllm_specx.tuner import CostModel, Decision, Step

DRAFT = 8
STATE_EVERY = 64  # steps


def main() -> None:
    """Run every batch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000)
    steps = parser.parse_args().steps
    rng = np.random.default_rng(0)
    for batch in (1, 8, 32, 64):
        meter, costs = DraftMeter(new_page("metrics-time", batch)), CostModel()
        costs.update(Step(batch, 0, batch, 0.02))
        drafts = [("suffix_tree", np.cumprod(rng.beta(4, 1, DRAFT)), DRAFT // 2) for _ in range(batch)]
        step = Step(batch, DRAFT * batch, batch * (1 + DRAFT // 2), 0.02)
        decision = Decision(batch, DRAFT * batch, 16 * batch, 3.0, 9.0, 1.4, 0.2, 0.02, "price")
        taken = []
        for number in range(steps):
            begin = time.perf_counter()
            meter.stepped(
                step, lambda n, costs=costs: float(costs.seconds(n, np.zeros(1, dtype=np.int64))[0])
            )
            if number % STATE_EVERY == 0:
                meter.state({"specx_drafting_faults": 0, "specx_memory_bytes": 1.0})
            meter.verified(drafts)
            meter.chosen([DRAFT] * batch, decision, decision.reason, 0.001)
            taken.append(time.perf_counter() - begin)
        median, worst = np.quantile(taken, [0.5, 0.99])
        print(json.dumps({"requests": batch, "us": round(1e6 * median, 1), "us_99": round(1e6 * worst, 1)}))


if __name__ == "__main__":
    main()
