"""Time one step of the Lookahead drafter: what the target chose, what it committed, and drafts for all requests.

    python benchmarks/lookahead_time.py [--requests 64] [--steps 300]

Each request writes a text of its own that repeats itself, so that drafts are partly right; a step commits what is right
of its draft and one token more. Prints one JSON object: milliseconds a step (minimum, median, 95 %), of these in
`propose` (median), and tokens drafted and committed per request and step.
"""

import argparse
import json
import time

import numpy as np
from step_time import stream

from drafters import LookaheadDrafter

MAX_N = 16


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    drafter = LookaheadDrafter(max_n=MAX_N)
    requests = list(range(args.requests))
    texts = [stream(rng, (args.steps + 2) * (MAX_N + 1)).tolist() for _ in requests]
    for request in requests:
        drafter.start(request, texts[request][:1])
    at = [1] * args.requests
    drafts: list[list[int]] = [[] for _ in requests]
    whole, proposing, drafted, committed = [], [], 0, 0
    for _ in range(args.steps):
        choices, new = [], []
        for request, draft in zip(requests, drafts, strict=True):
            wanted = texts[request][at[request] : at[request] + len(draft) + 1]
            right = next((i for i, pair in enumerate(zip(draft, wanted)) if pair[0] != pair[1]), len(draft))  # noqa: B905
            choices.append(wanted)
            new.append(wanted[: right + 1])
            at[request] += right + 1
            drafted, committed = drafted + len(draft), committed + right + 1
        begin = time.perf_counter()
        for request in requests:
            if drafts[request]:
                drafter.verified(request, choices[request])
            drafter.observe(request, new[request])
        between = time.perf_counter()
        made = drafter.propose(requests, MAX_N)
        end = time.perf_counter()
        whole.append(end - begin)
        proposing.append(end - between)
        drafts = [draft.token_ids.tolist() for draft in made]
    steps = args.requests * args.steps
    result = {
        "requests": args.requests,
        "step_ms_min": 1e3 * min(whole),
        "step_ms_median": 1e3 * float(np.median(whole)),
        "step_ms_95": 1e3 * float(np.quantile(whole, 0.95)),
        "propose_ms_median": 1e3 * float(np.median(proposing)),
        "drafted": drafted / steps,
        "committed": committed / steps,
    }
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


if __name__ == "__main__":
    main()
