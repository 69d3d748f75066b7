"""From tokens to verdicts. Pure.

A greedy output may leave plain decoding's only at a tie: the token there must be within `epsilon` of plain decoding's
own choice, by plain decoding's log-probabilities. What follows a tie is another text and is not compared.

Sampled outputs must follow the exact law, made of the engine's log-probabilities after every prefix, and be like
plain samples. A prefix at which numerics could move the edge of top_k or top_p is not looked beyond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from vllm_specx.bench.cells import first_difference
from vllm_specx.verify.engine import NUM_SAMPLED, Greedy, Sampled, Tops
from vllm_specx.verify.laws import (
    ALPHA,
    Law,
    Probs,
    Tokens,
    TooFewSamples,
    fit_p_value,
    homogeneity_p_value,
    processed,
    target_law,
)

OK: Final = "ok"
WRONG: Final = "WRONG"
IDLE: Final = "not exercised"  # nothing was drafted
BLIND: Final = "no power"  # the broken sampler passed, too
Ahead = Callable[[Tokens], Tops]
"""Output so far -> the most likely next tokens."""


def judge_greedy(ids: Sequence[str], plain: Greedy, other: Greedy, epsilon: float) -> dict[str, Any]:
    """Compare a method's outputs with plain decoding's; the cell that goes into the document."""
    differences = []
    for prompt_id, expected, tops, tokens in zip(ids, plain.tokens, plain.tops, other.tokens, strict=True):
        position = first_difference(tokens, expected)
        if position is None:
            continue
        both = position < min(len(tokens), len(expected))
        known = tops[position] if both else {}
        gap = None
        if both and tokens[position] in known:
            gap = round(known[expected[position]] - known[tokens[position]], 9)
        differences.append(
            {
                "id": prompt_id,
                "position": position,
                "plain": expected[position] if both else None,
                "method": tokens[position] if both else None,
                "gap": gap,
                "is_tie": gap is not None and gap < epsilon,
            }
        )
    ties = sum(entry["is_tie"] is True for entry in differences)
    wrong = len(differences) - ties
    return {
        "prompts": len(ids),
        "tokens": sum(map(len, other.tokens)),
        "identical": len(ids) - len(differences),
        "ties": ties,
        "wrong": wrong,
        **asdict(other.counters),
        "differences": differences,
        "verdict": WRONG if wrong else OK if other.counters.num_draft_tokens else IDLE,
    }


class SampledLaw:
    """The exact law of what is sampled at one temperature.

    Args:
        ahead: the `top_k` + 1 most likely tokens after each prefix, by log-probability.
        temperature, top_p, top_k: as the engine is told.
        error: how far numerics may move a log-probability.

    Attributes:
        law: of the tokens, each cut after an unsure prefix.
        unsure: prefixes at which the edge of top_k or top_p is within reach of numerics.

    """

    def __init__(self, ahead: Ahead, temperature: float, top_p: float, top_k: int, error: float) -> None:
        self.unsure: set[Tokens] = set()
        self._ahead = ahead

        def conditional(ranks: Tokens) -> Probs:
            logprobs = np.array(list(ahead(self._ids(ranks)).values()))
            probs = processed(logprobs, temperature, top_k, top_p)
            # A logit that moves by so much moves a sum of probabilities by a quarter of that at most.
            before = np.cumsum(processed(logprobs, temperature, top_k))
            if logprobs[top_k - 1] - logprobs[top_k] <= error or np.abs(
                before[: top_k - 1] - top_p
            ).min() <= error / (4 * temperature):
                self.unsure.add(self._ids(ranks))
            return probs

        by_ranks = target_law(conditional, NUM_SAMPLED)
        self.law: Law = {}
        for ranks, weight in by_ranks.items():
            key = self.key(self._ids(ranks))
            self.law[key] = self.law.get(key, 0.0) + weight

    def key(self, tokens: Tokens) -> Tokens:
        """Tokens up to the first unsure prefix."""
        return next((tokens[:k] for k in range(len(tokens)) if tokens[:k] in self.unsure), tokens)

    def counts(self, sampled: Sampled) -> Counter[Tokens]:
        """Counts by `key`."""
        counts: Counter[Tokens] = Counter()
        for tokens, count in sampled.counts.items():
            counts[self.key(tokens)] += count
        return counts

    def _ids(self, ranks: Tokens) -> Tokens:
        ids: Tokens = ()
        for rank in ranks:
            ids = (*ids, list(self._ahead(ids))[rank])
        return ids


def judge_sampled(
    law: SampledLaw, sampled: Sampled, plain: Sampled | None = None, broken: Sampled | None = None
) -> dict[str, Any]:
    """Test samples; the cell that goes into the document.

    Args:
        law: what they must follow.
        sampled: of the method; of plain decoding itself, if nothing else is given.
        plain: of plain decoding.
        broken: of the method with a sampler that must fail.

    """
    counts = law.counts(sampled)
    p_value = _tested(lambda: fit_p_value(counts, law.law))
    cell: dict[str, Any] = {
        "samples": sum(counts.values()),
        "outcomes": len(law.law),
        "unsure_prefixes": len(law.unsure),
        "p_value": p_value,
        **asdict(sampled.counters),
    }
    found = [p_value]
    if plain is None or broken is None:
        return cell | {"verdict": _verdict(found, True, p_value is not None)}
    cell["p_value_against_plain"] = _tested(lambda: homogeneity_p_value(counts, law.counts(plain)))
    cell["broken_p_value"] = _tested(lambda: fit_p_value(law.counts(broken), law.law))
    cell["broken_samples"] = sum(broken.counts.values())
    found.append(cell["p_value_against_plain"])
    can_fail = cell["broken_p_value"] is not None and cell["broken_p_value"] < ALPHA
    return cell | {"verdict": _verdict(found, sampled.counters.num_draft_tokens > 0, can_fail)}


def _verdict(p_values: Sequence[float | None], has_drafts: bool, can_fail: bool) -> str:
    if any(p_value is not None and p_value < ALPHA for p_value in p_values):
        return WRONG
    if not has_drafts:
        return IDLE
    return OK if can_fail else BLIND


def _tested(test: Callable[[], float]) -> float | None:
    try:
        return test()
    except TooFewSamples:
        return None


def summarise(cells: Sequence[Mapping[str, Any]]) -> str:
    """WRONG if any cell is, OK if any cell of a method proves something, else IDLE."""
    verdicts = {cell["verdict"] for cell in cells if cell["method"] != "none"}
    if any(cell["verdict"] == WRONG for cell in cells):
        return WRONG
    return OK if OK in verdicts else IDLE
