"""Laws of output tokens, and chi-square tests of samples against them and against one another.

A law maps output tokens to their probability; what is sampled from may depend on all tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

Tokens = tuple[int, ...]
Probs = NDArray[np.float64]
Law = dict[Tokens, float]
Conditional = Callable[[Tokens], Probs]
"""Tokens so far -> probabilities (vocab,) of the next one."""

ALPHA: Final = 1e-6  # a correct sampler fails one comparison in a million
_MIN_EXPECTED: Final = 5.0


class TooFewSamples(ValueError):
    """One cell is left after pooling, so that nothing could fail."""


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
    """Pearson's chi-square test of counts against a law. A token string that the law excludes gives 0.

    Raises:
        TooFewSamples: see there.

    """
    if any(count and law.get(tokens, 0.0) <= 0 for tokens, count in observed.items()):
        return 0.0
    total = sum(observed.values())
    expected = np.array([total * weight for weight in law.values()])
    seen = np.array([observed.get(tokens, 0) for tokens in law], dtype=float)
    seen, expected = _pooled(np.stack([seen, expected]), by=expected)
    return chi_square_tail(float(np.sum((seen - expected) ** 2 / expected)), len(seen) - 1)


def homogeneity_p_value(a: Mapping[Tokens, int], b: Mapping[Tokens, int]) -> float:
    """Chi-square test of whether two sets of counts come from one and the same law, whatever it is.

    Raises:
        TooFewSamples: see there.

    """
    keys = sorted(a.keys() | b.keys())
    table = np.array([[counts.get(key, 0) for key in keys] for counts in (a, b)], dtype=float)
    sizes = table.sum(axis=1, keepdims=True)
    table = _pooled(table, by=table.sum(axis=0) * sizes.min() / sizes.sum())
    expected = sizes * table.sum(axis=0) / sizes.sum()
    return chi_square_tail(float(np.sum((table - expected) ** 2 / expected)), table.shape[1] - 1)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """The probability that chi-square with so many degrees of freedom exceeds `statistic`."""
    import torch  # scipy is no dependency, and where there are samples there is torch

    half = torch.tensor([freedom, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(half[0], half[1]))


def _pooled(columns: NDArray[np.float64], by: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add up the columns whose expectation `by` is too small for chi-square, until that of the sum is not."""
    order = np.argsort(by)
    columns, by = columns[:, order], by[order]
    small = int(np.searchsorted(by, _MIN_EXPECTED))
    if small:
        while small < len(by) and by[:small].sum() < _MIN_EXPECTED:
            small += 1
        columns = np.column_stack([columns[:, :small].sum(axis=1), columns[:, small:]])
    if columns.shape[1] < 2:
        raise TooFewSamples("one cell is left after pooling, so that nothing could fail: take more samples")
    return columns
