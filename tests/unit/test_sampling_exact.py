"""Tier 1: the rules of speculative sampling by exact enumeration, without vLLM and without chance.

The joint law of the first four tokens over a vocabulary of three must equal that of plain sampling within
1e-12; every broken sampler must be far from it, and the teaching snippet is one of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sampling_laws import (
    ALPHA,
    BROKEN,
    STANDARD,
    fit_p_value,
    homogeneity_p_value,
    most_likely,
    output_law,
    processed,
    random_conditional,
    residual,
    step_law,
    target_law,
    total_variation,
)

VOCAB, NUM_TOKENS = 3, 4
SEEDS = range(6)
LENGTHS = {
    "N=1": lambda prefix: 1,
    "N=2": lambda prefix: 2,
    "N=3": lambda prefix: 3,
    "N from the prefix": lambda prefix: (sum(prefix) + len(prefix)) % 4,
}


def models(seed):
    return random_conditional(seed, VOCAB), random_conditional(1000 + seed, VOCAB, concentration=1.0)


def distance(verifier, target, draft, num_drafts):
    law = output_law(verifier, target, draft, num_drafts, NUM_TOKENS)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    return total_variation(law, target_law(target, NUM_TOKENS))


@pytest.mark.parametrize("num_drafts", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("seed", SEEDS)
def test_sampled_and_deterministic_drafts_are_lossless(seed, num_drafts):
    target, draft = models(seed)
    assert distance(STANDARD, target, draft, num_drafts) < 1e-12
    assert distance(STANDARD, target, most_likely(draft), num_drafts) < 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_a_target_cut_by_top_k_and_a_draft_that_cannot_say_every_token(seed):
    full_target, full_draft = models(seed)

    def target(prefix):
        return processed(np.log(full_target(prefix)), 0.8, top_k=2)

    def draft(prefix):
        return processed(np.log(full_draft(prefix)), 1.0, top_k=2)

    assert distance(STANDARD, target, draft, LENGTHS["N=3"]) < 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_offering_by_the_draft_distribution_is_lossless(seed):
    """The legal twin of "offered by drawn value": the same threshold, on q's maximum instead of on the draw."""
    verifier = replace(STANDARD, is_offered=lambda q, token: q.max() > 0.6)
    target, draft = models(seed)
    cut = step_law(verifier, target, draft, (), 3)
    assert total_variation(cut, step_law(STANDARD, target, draft, (), 3)) > 0.01  # something was not offered
    assert distance(verifier, target, draft, LENGTHS["N=3"]) < 1e-12


@pytest.mark.parametrize("num_drafts", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("seed", SEEDS)
def test_broken_samplers_are_far_off(seed, name, num_drafts):
    target, draft = models(seed)
    assert distance(BROKEN[name], target, draft, num_drafts) > 0.05


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["bonus after rejection", "no residual", "accept the argmax"])
def test_broken_samplers_are_far_off_with_deterministic_drafts(seed, name):
    target, draft = models(seed)
    assert distance(BROKEN[name], target, most_likely(draft), LENGTHS["N=2"]) > 0.05


def test_the_teaching_snippet_by_hand():
    """Its second token follows the rejected draft instead of the token that was put out.

    The target alternates, 0 1 0 1 or 1 0 1 0; the draft says 0. Where 0 is rejected, 1 comes out, and after
    1 the target always says 0; the snippet asks what comes after the rejected 0 and says 1 again.
    """

    def target(prefix):
        return np.array([0.5, 0.5]) if not prefix else np.eye(2)[1 - prefix[-1]]

    def draft(prefix):
        return np.array([1.0, 0.0])

    right = output_law(STANDARD, target, draft, lambda prefix: 1, 2)
    snippet = output_law(BROKEN["bonus after rejection"], target, draft, lambda prefix: 1, 2)
    assert right == {(0, 1): 0.5, (1, 0): 0.5}
    assert snippet == {(0, 1): 0.5, (1, 1): 0.5}


def test_one_step_by_hand():
    """p = (.5, .3, .2), q = (.2, .6, .2): min(p, q) = (.2, .3, .2) is accepted, the rest becomes token 0."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.6, 0.2])
    assert residual(p, q, 1) == pytest.approx([1.0, 0.0, 0.0])

    def target(prefix):
        return np.array([0.0, 0.0, 1.0]) if prefix else p

    law = step_law(STANDARD, target, lambda prefix: q, (), 1)
    assert law == pytest.approx({(0,): 0.3, (0, 2): 0.2, (1, 2): 0.3, (2, 2): 0.2})


def test_processed_logits_by_hand():
    logits = np.log([0.5, 0.25, 0.15, 0.1])
    assert processed(logits, 1.0) == pytest.approx([0.5, 0.25, 0.15, 0.1])
    assert processed(logits, 0.5, top_k=2) == pytest.approx([0.8, 0.2, 0.0, 0.0])
    assert processed(logits, 1.0, top_p=0.6) == pytest.approx([2 / 3, 1 / 3, 0.0, 0.0])
    assert processed(logits, 1.0, top_k=3, top_p=0.5) == pytest.approx([1.0, 0.0, 0.0, 0.0])
    assert processed(logits, 0.0) == pytest.approx([1.0, 0.0, 0.0, 0.0])


def draw(law, num_samples, seed):
    tokens, weights = zip(*law.items(), strict=True)
    counts = np.random.default_rng(seed).multinomial(num_samples, weights)
    return Counter({t: int(n) for t, n in zip(tokens, counts, strict=True) if n})


def test_p_values_are_uniform_for_a_correct_sampler():
    """Else the false-alarm rate would not be what ALPHA says. 4 standard errors of 2,000 draws: 0.02."""
    law = target_law(random_conditional(1, VOCAB), NUM_TOKENS)
    fit = np.array([fit_p_value(draw(law, 3000, [1, i]), law) for i in range(2000)])
    same = np.array(
        [homogeneity_p_value(draw(law, 3000, [2, i]), draw(law, 1500, [3, i])) for i in range(2000)]
    )
    for p_values in (fit, same):
        assert np.mean(p_values < 0.05) == pytest.approx(0.05, abs=0.02)
        assert np.mean(p_values < 0.5) == pytest.approx(0.5, abs=0.05)


def test_a_law_that_is_slightly_off_is_found():
    """The weakest thing that the sampled tiers are relied upon to see: a total variation of 0.03 at 100,000."""
    law = target_law(random_conditional(1, VOCAB), 2)
    off = {tokens: 0.97 * weight for tokens, weight in law.items()}
    off[max(law, key=law.__getitem__)] += 0.03
    assert 0.01 < total_variation(law, off) <= 0.03
    assert fit_p_value(draw(off, 100_000, 5), law) < ALPHA
    assert homogeneity_p_value(draw(off, 100_000, 5), draw(law, 100_000, 6)) < ALPHA


def test_a_token_outside_the_law_is_never_forgiven():
    law = {(0,): 0.5, (1,): 0.5}
    assert fit_p_value({(0,): 5000, (1,): 5000, (2,): 1}, law) == 0.0
    with pytest.raises(ValueError, match="nothing could fail"):
        fit_p_value({(0,): 1, (1,): 1}, law)
    with pytest.raises(ValueError, match="nothing could fail"):
        homogeneity_p_value({(0,): 2}, {(1,): 2})
