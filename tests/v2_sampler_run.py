"""V2's rejection sampler, interpreted and called directly, against the exact law of a step; prints p-values as JSON.

Rows of one interleaved batch: 0 to 2 drafts, deterministic or drawn from a law of their own, at two temperatures. What
a row emits (accepted drafts, then a recovered or a bonus token) is tested by chi-square; a sampler that is told a wrong
draft law, or none, must fail.
"""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace

import v2

v2.prepare()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sampling_laws import STANDARD, fit_p_value, most_likely, processed, step_law  # noqa: E402
from vllm.triton_utils import tl  # noqa: E402
from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils  # noqa: E402

VOCAB, MAX_DRAFTS, NUM_ROWS = 4, 2, 500
KINDS = [(0, 0.8), (1, 0.5), (2, 0.8)]  # drafts, temperature

# The interpreter has no libdevice: its log1p returns nothing.
rejection_sampler_utils.tldevice = SimpleNamespace(log1p=lambda x: tl.log(1.0 + x))


def number(prefix: tuple[int, ...]) -> int:
    return int("".join(map(str, prefix)) or "0", VOCAB)


def run(*, is_drawn: bool, declared: bool = True) -> list[float]:
    """P-values by kind."""
    random = np.random.default_rng(5)
    tables = [1.5 * random.standard_normal((VOCAB**k, VOCAB)) for k in range(MAX_DRAFTS + 1)]
    drafts = [table + 0.7 * random.standard_normal(table.shape) for table in tables]
    rows = [kind for _ in range(NUM_ROWS) for kind in KINDS]
    num_rows = len(rows)
    logits, tokens, local, row_of, ends = [], [], [], [], [0]
    draft_logits = np.zeros((num_rows, MAX_DRAFTS, VOCAB), dtype=np.float32)
    for row, (num_drafts, temperature) in enumerate(rows):
        prefix: tuple[int, ...] = ()
        tokens.append(0)  # the token before the step
        for k in range(num_drafts + 1):
            logits.append(tables[k][number(prefix)] / temperature)
            local.append(k)
            row_of.append(row)
            if k < num_drafts:
                scores = drafts[k][number(prefix)] / temperature
                draft_logits[row, k] = drafts[k][number(prefix)]  # as drawn, before the temperature
                law = processed(scores, 1.0)
                token = int(random.choice(VOCAB, p=law)) if is_drawn else int(scores.argmax())
                prefix = (*prefix, token)
                tokens.append(token)
        ends.append(len(logits))
    index = torch.arange(num_rows)
    sampled, num_sampled = rejection_sampler_utils.rejection_sample(
        torch.tensor(np.array(logits), dtype=torch.float32),
        torch.tensor(draft_logits) if is_drawn and declared else None,
        torch.tensor(tokens, dtype=torch.int32),
        torch.tensor(ends, dtype=torch.int32),
        torch.tensor(local, dtype=torch.int64) + 7,
        index,
        torch.tensor(row_of, dtype=torch.int64),
        torch.tensor(local, dtype=torch.int32),
        torch.tensor([kind[1] for kind in rows], dtype=torch.float32),
        torch.tensor(random.integers(2**31, size=num_rows), dtype=torch.int64),
        MAX_DRAFTS,
    )
    counts: list[Counter[tuple[int, ...]]] = [Counter() for _ in KINDS]
    for row, (token_ids, num) in enumerate(zip(sampled.tolist(), num_sampled.tolist(), strict=True)):
        counts[row % len(KINDS)][tuple(token_ids[:num])] += 1
    found = []
    for (num_drafts, temperature), seen in zip(KINDS, counts, strict=True):

        def target(prefix: tuple[int, ...], t: float = temperature) -> np.ndarray:
            return processed(tables[len(prefix)][number(prefix)], t)

        def draft(prefix: tuple[int, ...], t: float = temperature) -> np.ndarray:
            return processed(drafts[len(prefix)][number(prefix)], t)

        law = step_law(STANDARD, target, draft if is_drawn else most_likely(draft), (), num_drafts)
        found.append(fit_p_value(seen, law))
    return found


print(
    "RESULT",
    json.dumps(
        {
            "deterministic": run(is_drawn=False),
            "drawn": run(is_drawn=True),
            "undeclared": run(is_drawn=True, declared=False),
        }
    ),
)
