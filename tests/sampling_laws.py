"""Exact laws of what speculative decoding outputs over a tiny vocabulary, and tests of samples against them.

A law maps output tokens to their probability. Target p and draft q are functions of the tokens so far, so
nothing is assumed about independence between positions; a deterministic draft is a one-hot q.

One verification step (Leviathan et al. 2023, arXiv 2211.17192, section 2.3): draft d_k is accepted with
probability min(1, p/q); the first one rejected is replaced by a token drawn from (p - q)+ and ends the step;
where all are accepted, a bonus token is drawn from p. `Verifier` holds these rules, so that a broken sampler
is a Verifier with one wrong rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

Tokens = tuple[int, ...]
Probs = NDArray[np.float64]
Law = dict[Tokens, float]
Conditional = Callable[[Tokens], Probs]
"""Tokens so far -> probabilities (vocab,) of the next one."""

# A correct sampler fails one comparison in a million. Seeds are fixed, so a false alarm would show up when
# a test or the random streams below it change, not from run to run.
ALPHA = 1e-6
_MIN_EXPECTED = 5.0


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


def continuations(
    conditional: Conditional, prefix: Tokens, num_tokens: int
) -> Iterator[tuple[Tokens, float]]:
    """All `num_tokens` tokens after `prefix` that can be drawn, with their probabilities."""
    if num_tokens == 0:
        yield (), 1.0
        return
    for token, weight in enumerate(conditional(prefix)):
        if weight > 0:
            for rest, rest_weight in continuations(conditional, (*prefix, token), num_tokens - 1):
                yield (token, *rest), float(weight) * rest_weight


def target_law(target: Conditional, num_tokens: int) -> Law:
    """The law of the first `num_tokens` tokens of plain sampling."""
    return dict(continuations(target, (), num_tokens))


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


def processed(
    logits: NDArray[np.floating], temperature: float, top_k: int | None = None, top_p: float | None = None
) -> Probs:
    """What a row of `logits` (vocab,) is sampled from, top_k before top_p. Temperature 0 is greedy."""
    if temperature == 0:
        return np.eye(len(logits))[np.argmax(logits)]
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    probs = np.exp(scaled - scaled.max())
    order = np.argsort(-probs)
    if top_k is not None:
        probs[order[top_k:]] = 0.0
    probs /= probs.sum()
    if top_p is not None:
        before = np.cumsum(probs[order]) - probs[order]
        probs[order[before >= top_p]] = 0.0
    return probs / probs.sum()


def fit_p_value(observed: Mapping[Tokens, int], law: Law) -> float:
    """Pearson's chi-square test of counts against a law. A token string that the law excludes gives 0."""
    if any(count and law.get(tokens, 0.0) <= 0 for tokens, count in observed.items()):
        return 0.0
    total = sum(observed.values())
    expected = np.array([total * weight for weight in law.values()])
    seen = np.array([observed.get(tokens, 0) for tokens in law], dtype=float)
    seen, expected = _pooled(np.stack([seen, expected]), by=expected)
    if len(seen) < 2:
        raise ValueError("one cell is left after pooling, so that nothing could fail: take more samples")
    return float(chi2.sf(np.sum((seen - expected) ** 2 / expected), len(seen) - 1))


def homogeneity_p_value(a: Mapping[Tokens, int], b: Mapping[Tokens, int]) -> float:
    """Chi-square test of whether two sets of counts come from one and the same law, whatever it is."""
    keys = sorted(a.keys() | b.keys())
    table = np.array([[counts.get(key, 0) for key in keys] for counts in (a, b)], dtype=float)
    sizes = table.sum(axis=1, keepdims=True)
    table = _pooled(table, by=table.sum(axis=0) * sizes.min() / sizes.sum())
    if table.shape[1] < 2:
        raise ValueError("one cell is left after pooling, so that nothing could fail: take more samples")
    expected = sizes * table.sum(axis=0) / sizes.sum()
    return float(chi2.sf(np.sum((table - expected) ** 2 / expected), table.shape[1] - 1))


def _pooled(columns: NDArray[np.float64], by: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add up the columns whose expectation `by` is too small for chi-square, until that of the sum is not."""
    order = np.argsort(by)
    columns, by = columns[:, order], by[order]
    small = int(np.searchsorted(by, _MIN_EXPECTED))
    if small:
        while small < len(by) and by[:small].sum() < _MIN_EXPECTED:
            small += 1
        columns = np.column_stack([columns[:, :small].sum(axis=1), columns[:, small:]])
    return columns
