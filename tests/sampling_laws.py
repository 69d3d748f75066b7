"""Exact laws of what speculative decoding outputs over a tiny vocabulary.

Laws, and tests of samples against them, are those of `specx verify`. Target p and draft q are functions of the tokens
so far, so nothing is assumed about independence between positions; a deterministic draft is a one-hot q.

One verification step (Leviathan et al. 2023, arXiv 2211.17192, section 2.3): draft d_k is accepted with
probability min(1, p/q); the first one rejected is replaced by a token drawn from (p - q)+ and ends the step;
where all are accepted, a bonus token is drawn from p. `Verifier` holds these rules, so that a broken sampler
is a Verifier with one wrong rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from vllm_specx.verify.laws import (
    ALPHA,
    Conditional,
    Law,
    Probs,
    Tokens,
    continuations,
    fit_p_value,
    homogeneity_p_value,
    processed,
    target_law,
)

__all__ = [
    "ALPHA",
    "BROKEN",
    "STANDARD",
    "Conditional",
    "Law",
    "Probs",
    "Tokens",
    "Verifier",
    "fit_p_value",
    "homogeneity_p_value",
    "most_likely",
    "output_law",
    "processed",
    "random_conditional",
    "residual",
    "step_law",
    "target_law",
    "total_variation",
]

# ALPHA: a correct sampler fails one comparison in a million. Seeds are fixed, so a false alarm would show up when a
# test or the random streams below it change, not from run to run.


def residual(p: Probs, q: Probs, token: int) -> Probs:
    """The law (vocab,) of the token that replaces a rejected draft: (p - q)+, normalised."""
    rest = np.maximum(p - q, 0.0)
    return rest / rest.sum()


@dataclass(frozen=True)
class Verifier:
    """Rules of one step; the defaults are right. `p` and `q` are (vocab,), `token` is the draft there."""

    accept: Callable[[Probs, Probs, int], float] = lambda p, q, token: min(1.0, float(p[token] / q[token]))
    recover: Callable[[Probs, Probs, int], Probs] = residual
    is_offered: Callable[[Probs, int], bool] = lambda q, token: True
    """Whether the draft goes on at this position. May use q, must not use `token`."""
    has_bonus_after_rejection: bool = False


STANDARD = Verifier()
BROKEN = {
    # The teaching snippet: it appends a token from the last row of logits whether or not a draft was
    # rejected, and that row was computed after the rejected token.
    "bonus after rejection": replace(STANDARD, has_bonus_after_rejection=True),
    "no residual": replace(STANDARD, recover=lambda p, q, token: p),
    "q ignored": replace(STANDARD, accept=lambda p, q, token: float(p[token])),
    "accept the argmax": replace(STANDARD, accept=lambda p, q, token: float(token == p.argmax())),
    "offered by drawn value": replace(STANDARD, is_offered=lambda q, token: q[token] > 0.5),
}


def step_law(
    verifier: Verifier, target: Conditional, draft: Conditional, prefix: Tokens, num_drafts: int
) -> Law:
    """The law of the tokens that one step with `num_drafts` drawn drafts emits after `prefix`."""
    law: Law = defaultdict(float)
    for drawn, weight in continuations(draft, prefix, num_drafts):
        offered = _offered(verifier, draft, prefix, drawn)
        for k, token in enumerate(offered):
            so_far = prefix + offered[:k]
            p, q = target(so_far), draft(so_far)
            accepted = verifier.accept(p, q, token)
            if accepted < 1:
                for other, recovered in enumerate(verifier.recover(p, q, token)):
                    emitted, chance = (*offered[:k], other), weight * (1 - accepted) * float(recovered)
                    if not verifier.has_bonus_after_rejection:
                        law[emitted] += chance
                        continue
                    for bonus, share in enumerate(target(prefix + offered)):
                        law[*emitted, bonus] += chance * float(share)
            weight *= accepted
        for bonus, share in enumerate(target(prefix + offered)):
            law[*offered, bonus] += weight * float(share)
    return {tokens: weight for tokens, weight in law.items() if weight > 0}


def _offered(verifier: Verifier, draft: Conditional, prefix: Tokens, drawn: Tokens) -> Tokens:
    for k, token in enumerate(drawn):
        if not verifier.is_offered(draft(prefix + drawn[:k]), token):
            return drawn[:k]
    return drawn


def output_law(
    verifier: Verifier,
    target: Conditional,
    draft: Conditional,
    num_drafts: Callable[[Tokens], int],
    num_tokens: int,
) -> Law:
    """The law of the first `num_tokens` tokens of steps run one after another.

    `num_drafts` sees the output so far; what a step emits beyond `num_tokens` is cut off.
    """
    mass: Law = {(): 1.0}
    for length in range(num_tokens):
        for prefix in [tokens for tokens in mass if len(tokens) == length]:
            weight = mass.pop(prefix)
            for emitted, share in step_law(verifier, target, draft, prefix, num_drafts(prefix)).items():
                tokens = (prefix + emitted)[:num_tokens]
                mass[tokens] = mass.get(tokens, 0.0) + weight * share
    return mass


def total_variation(a: Law, b: Law) -> float:
    """Half the L1 distance, in [0, 1]: the largest difference in probability that any event can have."""
    return 0.5 * sum(abs(a.get(tokens, 0.0) - b.get(tokens, 0.0)) for tokens in a.keys() | b.keys())


def random_conditional(seed: int, vocab: int, concentration: float = 0.5) -> Conditional:
    """A Dirichlet draw for each prefix, the same on every call; a small `concentration` makes it peaked."""
    known: dict[Tokens, Probs] = {}

    def conditional(prefix: Tokens) -> Probs:
        if prefix not in known:
            rng = np.random.default_rng([seed, len(prefix), *prefix])
            known[prefix] = rng.dirichlet(np.full(vocab, concentration))
        return known[prefix]

    return conditional


def most_likely(conditional: Conditional) -> Conditional:
    """The deterministic draft that always offers the argmax of `conditional`: a one-hot q."""

    def one_hot(prefix: Tokens) -> Probs:
        probs = conditional(prefix)
        return np.eye(len(probs))[probs.argmax()]

    return one_hot
