"""Calibrated reach of a head's drafts, and how deep to draft."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from drafters.head_reach import HeadReach
from vllm_specx.proposers._depth import DepthRule
from vllm_specx.proposers._lengths import MeasuredCosts
from vllm_specx.tuner import CostModel, CostTable

N = 4


def outcomes(random: np.random.Generator, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A head that is too sure of itself: a token holds with the square of its confidence."""
    right = (random.random(confidence.shape) < confidence**2).cumprod(axis=1).sum(axis=1)
    known = np.minimum(right + 1, confidence.shape[1])  # what is committed after it tells no more
    return right, known


def test_reach_is_what_is_accepted() -> None:
    random = np.random.default_rng(0)
    reach = HeadReach(N)
    promised, held = [], []
    for step in range(3000):
        confidence = random.beta(2, 1, size=(4, N))
        if step >= 1000:
            promised.append(reach.reach(confidence))
        right, known = outcomes(random, confidence)
        reach.update(confidence, right, known)
        if step >= 1000:
            held.append(np.arange(N) < right[:, None])
    promise, hold = np.concatenate(promised), np.concatenate(held)
    for low in np.arange(0.0, 1.0, 0.1):
        chosen = (promise >= low) & (promise < low + 0.1)
        if chosen.sum() >= 1000:
            assert abs(promise[chosen].mean() - hold[chosen].mean()) < 0.05
    assert np.all(np.diff(promise, axis=1) <= 0)


def test_a_draft_to_come_is_worth_what_drafts_were() -> None:
    random = np.random.default_rng(1)
    reach = HeadReach(N)
    for _ in range(500):
        right = (random.random((4, N)) < 0.6).cumprod(axis=1).sum(axis=1)
        reach.update(None, right, np.minimum(right + 1, N))
    np.testing.assert_allclose(reach.expected(N), 0.6 ** np.arange(1, N + 1), atol=0.06)
    reach.clear()
    np.testing.assert_allclose(reach.expected(2), [0.5, 0.25])


def policy(pass_seconds: float, token_seconds: float) -> MeasuredCosts:
    """Step times of 20 ms and what a draft token adds, with passes that were measured."""
    table = CostTable(
        np.array([1, 8]),
        np.array([0, 4, 16]),
        np.array([[0.02 + b * n * token_seconds for n in (0, 4, 16)] for b in (1, 8)]),
        {},
    )
    costs = CostModel(table)
    from vllm_specx.tuner import Step

    for i in range(300):
        b, n, passes = (1, 8)[i % 2], i % 5, 1 + i % 4
        seconds = 0.02 + b * n * token_seconds + passes * pass_seconds
        costs.update(Step(b, b * n, b, seconds, num_passes=passes))
    return MeasuredCosts(16, costs)


def test_cheap_passes_are_run_and_dear_ones_are_not() -> None:
    expected = 0.6 ** np.arange(1, N + 1)
    nothing = [np.empty(0)] * 8
    assert DepthRule(N).choose(policy(1e-4, 1e-4), nothing, expected, np.ones(8, dtype=bool)) >= 3
    # The first pass is run anyway.
    assert DepthRule(N).choose(policy(2e-2, 1e-4), nothing[:1], expected, np.ones(1, dtype=bool)) == 1
    assert DepthRule(N).choose(policy(2e-2, 3e-2), nothing[:1], expected, np.ones(1, dtype=bool)) == 0


def test_no_pass_for_a_batch_that_has_better_drafts() -> None:
    expected = 0.5 ** np.arange(1, N + 1)
    better = [np.full(12, 0.95)] * 8
    assert DepthRule(N).choose(policy(5e-4, 1e-4), better, expected, np.ones(8, dtype=bool)) == 0
    mixed = [*better[:4], *[np.empty(0)] * 4]
    assert DepthRule(N).choose(policy(5e-4, 1e-4), mixed, expected, np.ones(8, dtype=bool)) > 0


def test_a_head_that_is_off_is_looked_at_again_ever_more_rarely() -> None:
    rule, costs, expected = DepthRule(N), policy(2e-2, 1e-3), np.full(N, 1e-3)
    depths = [rule.choose(costs, [np.empty(0)], expected, np.ones(1, dtype=bool)) for _ in range(600)]
    looks = [i for i, depth in enumerate(depths) if depth]
    assert {depths[i] for i in looks} == {2}
    gaps = np.diff(looks)
    assert list(gaps) == sorted(gaps)
    assert gaps[-1] >= 128


@pytest.mark.parametrize(("others", "deepest"), [([], N), ([np.empty(0)], 0)])
def test_nothing_to_choose(others: list[np.ndarray], deepest: int) -> None:
    costs = SimpleNamespace()  # is not asked
    assert DepthRule(N).choose(costs, others, np.full(deepest, 0.9), np.ones(len(others), dtype=bool)) == 0
