"""Calibrated reach of a head's drafts, and how deep to draft."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from drafters.head_reach import HeadReach
from vllm_specx.proposers._depth import DepthRule
from vllm_specx.proposers._lengths import MeasuredCosts
from vllm_specx.proposers._pass_times import Line, PassTimes
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
    np.testing.assert_allclose(reach.expected(2), [0.55, 0.55 * 0.85 * 0.55])


def policy(token_seconds: float) -> MeasuredCosts:
    """Step times of 20 ms and what a draft token adds."""
    table = CostTable(
        np.array([1, 8]),
        np.array([0, 4, 16]),
        np.array([[0.02 + b * n * token_seconds for n in (0, 4, 16)] for b in (1, 8)]),
        {},
    )
    return MeasuredCosts(16, CostModel(table))


def times(read: float, sample: float, more: float) -> PassTimes:
    """Passes that were measured, in seconds by request or token."""
    made = PassTimes()
    for size in (1, 8, 1, 8, 1, 8):
        for line, seconds in ((made.read, read), (made.sample, sample), (made.more, more)):
            line.update(size, size * seconds)
    return made


def test_cheap_passes_are_run_and_dear_ones_are_not() -> None:
    expected, costs = 0.6 ** np.arange(1, N + 1), policy(1e-4)
    nothing, can = [np.empty(0)] * 8, np.ones(8, dtype=bool)
    assert DepthRule(N).choose(costs, times(1e-5, 1e-5, 1e-5), nothing, expected, can) >= 3
    assert DepthRule(N).choose(costs, times(1e-5, 1e-5, 2e-2), nothing, expected, can) == 1
    assert DepthRule(N).choose(costs, times(1e-5, 3e-2, 3e-2), nothing, expected, can) == 0
    assert DepthRule(N).choose(policy(3e-2), times(1e-5, 1e-5, 1e-5), nothing, expected, can) == 0


def test_no_pass_for_a_batch_that_has_better_drafts() -> None:
    expected, costs, passes = 0.5 ** np.arange(1, N + 1), policy(1e-4), times(1e-5, 5e-5, 5e-5)
    better, can = [np.full(12, 0.95)] * 8, np.ones(8, dtype=bool)
    assert DepthRule(N).choose(costs, passes, better, expected, can) == 0
    mixed = [*better[:4], *[np.empty(0)] * 4]
    assert DepthRule(N).choose(costs, passes, mixed, expected, can) > 0
    can[4:] = False  # of those that it could help it can help none
    assert DepthRule(N).choose(costs, passes, mixed, expected, can) == 0


def test_a_head_that_does_not_earn_its_reading_sleeps_and_wakes() -> None:
    rule, costs, nothing, can = DepthRule(N), policy(1e-4), [np.empty(0)], np.ones(1, dtype=bool)
    little, much = np.array([0.05]), np.array([0.8, 0.7])
    passes = times(5e-3, 1e-4, 1e-4)
    for _ in range(40):
        rule.choose(costs, passes, nothing, little, can)
    assert rule.is_asleep
    # A backlog of 50 tokens takes 0.25 s to read, which 32 steps do not earn; nor do they for the rest of the test.
    for _ in range(200):
        rule.choose(costs, passes, nothing, much, can, backlog=5000)
    assert rule.is_asleep
    depths = [rule.choose(costs, passes, nothing, much, can, backlog=10) for _ in range(40)]
    assert not rule.is_asleep
    assert depths[-1] == 2


def test_a_head_that_is_off_is_looked_at_again_ever_more_rarely() -> None:
    rule, costs, passes, expected = DepthRule(N), policy(1e-3), times(5e-3, 1e-4, 1e-4), np.full(N, 1e-3)
    depths = [rule.choose(costs, passes, [np.empty(0)], expected, np.ones(1, dtype=bool)) for _ in range(600)]
    looks = [i for i, depth in enumerate(depths) if depth]
    assert {depths[i] for i in looks} == {2}
    gaps = np.diff(looks)
    assert list(gaps) == sorted(gaps)
    assert gaps[-1] >= 128


def test_one_more_token_where_the_head_was_sure() -> None:
    rule, costs, passes = DepthRule(N), policy(1e-4), times(1e-4, 1e-4, 4e-3)
    nothing, can = [np.empty(0)], np.ones(1, dtype=bool)
    rule.choose(costs, passes, nothing, np.array([0.5, 0.25]), can)
    assert rule.goes_on(passes, np.array([[0.9]]), 0.5, nothing, can)
    unsure = [rule.goes_on(passes, np.array([[0.2]]), 0.5, nothing, can) for _ in range(64)]
    assert sum(unsure) == 4  # to see
    assert not rule.goes_on(passes, np.array([[0.9]]), 0.5, [np.full(8, 0.9)], can)
    assert not rule.goes_on(passes, np.array([[0.9]]), 0.5, nothing, ~can)


@pytest.mark.parametrize(("others", "deepest"), [([], N), ([np.empty(0)], 0)])
def test_nothing_to_choose(others: list[np.ndarray], deepest: int) -> None:
    costs = SimpleNamespace()  # is not asked
    can = np.ones(len(others), dtype=bool)
    assert DepthRule(N).choose(costs, PassTimes(), others, np.full(deepest, 0.9), can) == 0


def test_a_line_is_found_through_noise_and_stalls() -> None:
    random, line = np.random.default_rng(0), Line(1.0)
    for i in range(600):
        size = float(random.integers(1, 200))
        seconds = (2e-3 + 5e-5 * size) * random.normal(1, 0.05)
        line.update(size, 2.0 if i % 50 == 20 else seconds)
    assert line(1) == pytest.approx(2.05e-3, rel=0.5)
    assert line(200) == pytest.approx(12e-3, rel=0.25)
    before = line(100)
    for wrong in (float("nan"), -1.0, float("inf")):
        line.update(100, wrong)
    assert line(100) == before


def test_a_line_of_one_size_is_flat_and_never_negative() -> None:
    line = Line(1.0)
    for _ in range(5):
        line.update(8, 3e-3)
    assert line(8) == pytest.approx(3e-3)
    assert 0 <= line(1) <= 3e-3 + 1e-9
    falling = Line(1.0)
    for size, seconds in ((1, 5e-3), (100, 1e-3)) * 5:
        falling.update(size, seconds)
    assert min(falling(1), falling(1000)) >= 0
