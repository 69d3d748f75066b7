"""How deep a head drafts: priced by what verification and passes cost, asleep where neither is earned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vllm_specx.proposers._depth import DepthRule
from vllm_specx.proposers._pass_times import PassTimes

NONE = np.empty(0)


def policy(seconds: Any) -> Any:
    """Of measured costs, only their predictions: seconds(requests, draft tokens)."""
    return SimpleNamespace(
        costs=SimpleNamespace(seconds=lambda b, ms: np.array([seconds(b, int(m)) for m in ms])),
        tuner=SimpleNamespace(last=None),
    )


def times(seconds: float) -> PassTimes:
    result = PassTimes()
    for line in (result.read, result.sample, result.more):
        for _ in range(8):
            line.update(1, seconds)
    return result


def uneven(b: int, m: int) -> float:
    """Two rows are slower than three or four."""
    return {1: 0.035, 2: 0.040, 3: 0.034, 4: 0.034}.get(b + m, 0.035 + 0.001 * (b + m))


def even(b: int, m: int) -> float:
    return 0.035 + 0.0005 * m


def test_one_more_token_may_make_a_step_cheaper() -> None:
    rule, passes = DepthRule(8), times(0.002)
    can = np.array([True])
    reach = np.array([[0.3]])
    for costs, goes_on in ((uneven, True), (even, False)):
        rule.clear()
        assert rule.choose(policy(costs), passes, [NONE], np.array([0.5, 0.2, 0.1]), can) > 0
        assert rule.goes_on(passes, reach, 0.1, [NONE], can) is goes_on


def test_in_a_small_batch_a_draft_is_worth_its_best_prefix() -> None:
    rule = DepthRule(4)
    rule.choose(policy(uneven), times(0.002), [NONE], np.array([0.5, 0.2]), np.array([True]))
    rate = 1 / uneven(1, 0)
    reach = np.array([0.4, 0.1, 0.01])
    alone, two = reach[0] - rate * 0.005, reach[:2].sum() + rate * 0.001
    assert two > alone
    assert rule.worth([reach, reach[:1], NONE]) == pytest.approx([reach.sum() + rate * 0.001, alone, 0.0])


def test_in_a_large_batch_by_a_price() -> None:
    rule, b = DepthRule(4), 32
    rule.choose(policy(even), times(0.002), [NONE] * b, np.array([0.5, 0.2]), np.ones(b, dtype=bool))
    assert rule.token_price == pytest.approx(b / even(b, 0) * 0.0005)
    reach = np.array([0.9, 0.5, 0.1])
    assert rule.worth([reach])[0] == pytest.approx(np.maximum(0, reach - rule.token_price).sum())


@pytest.mark.parametrize(("b", "steps"), [(1, 24), (32, 4)])
def test_it_falls_asleep_where_reading_is_not_earned(b: int, steps: int) -> None:
    """After fewer steps where each tells of many requests."""
    rule, dear = DepthRule(4), times(0.05)
    decided = [
        (rule.choose(policy(even), dear, [NONE] * b, np.array([0.1]), np.ones(b, dtype=bool)), rule.is_asleep)
        for _ in range(steps)
    ]
    assert [depth for depth, _ in decided if depth] in ([], [1])  # a look, perhaps
    assert [asleep for _, asleep in decided] == [False] * (steps - 1) + [True]


def test_nothing_to_draft_for() -> None:
    rule = DepthRule(4)
    assert rule.choose(policy(even), times(0.002), [], np.array([0.5]), np.empty(0, dtype=bool)) == 0
    assert rule.choose(policy(even), times(0.002), [NONE], np.array([0.5]), np.array([False])) == 0


def test_long_prompts_are_read_only_where_that_pays() -> None:
    rule, passes, can = DepthRule(4), times(0.002), np.array([True])
    for size in (1, 1000) * 8:
        passes.read.update(size, 0.002 + 0.0001 * size)
    expected = np.array([0.6, 0.3])
    rule.choose(policy(even), passes, [NONE], expected, can, backlog=2000)
    assert rule.is_asleep  # nothing is known, and reading takes as long as six steps
    rule.clear()
    for _ in range(100):
        rule.choose(policy(even), passes, [NONE], expected, can)
    assert not rule.is_asleep
    rule.choose(policy(even), passes, [NONE], expected, can, backlog=500)
    assert not rule.is_asleep  # 50 ms are earned soon
    rule.choose(policy(even), passes, [NONE], expected, can, backlog=20_000)
    assert rule.is_asleep
    rule.choose(policy(even), passes, [NONE], expected, can, backlog=500)
    assert not rule.is_asleep
