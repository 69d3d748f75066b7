"""The formula: its optimum, its ceilings, and measured costs in its place."""

import numpy as np
import pytest

from vllm_specx.tuner import (
    best_n,
    best_n_for,
    ceilings,
    expected_tokens,
    expected_tokens_curve,
    line_costs,
    speedup,
    speedup_curve,
)


@pytest.mark.parametrize(
    ("p", "alpha", "n"), [(0.8, 0.05, 8), (0.8, 0.10, 6), (0.9, 0.05, 13), (0.9, 0.10, 10)]
)
def test_the_optimum(p: float, alpha: float, n: int) -> None:
    best = best_n(p, alpha, max_n=64)
    assert best.n == n
    assert best.speedup == pytest.approx(speedup(p, n, alpha))
    assert best.speedup == pytest.approx((1 - p ** (n + 1)) / (1 - p) / (1 + alpha * n))


@pytest.mark.parametrize(("alpha", "per_token"), [(0.1, 0.0), (0.05, 0.0), (0.1, 0.15)])
def test_the_speedup_tends_to_the_ceiling(alpha: float, per_token: float) -> None:
    ceiling = ceilings(1 - 1e-7, alpha, per_token).perfect
    assert ceiling == pytest.approx(1 / (alpha + per_token))
    reached = [
        best_n(1 - miss, alpha, max_n=20_000, draft_cost_per_token=per_token).speedup
        for miss in (1e-2, 1e-4, 1e-7)
    ]
    assert reached == sorted(reached)
    assert 0.99 * ceiling < reached[-1] < ceiling


def test_acceptance_bounds_what_any_length_gives() -> None:
    assert ceilings(0.8, 0.1).free == pytest.approx(5.0)
    assert expected_tokens(0.8, 500) == pytest.approx(5.0)
    assert ceilings([0.9, 0.5], 0.1).free == pytest.approx(1 + 0.9 + 0.9 * 0.5 / (1 - 0.5))
    assert ceilings([0.9, 0.5], 0.1).free == pytest.approx(expected_tokens([0.9, 0.5], 200))
    assert ceilings(1.0, 0.0) == (np.inf, np.inf)
    assert ceilings([0.0, 1.0], 0.5) == (2.0, 1.0)


def test_tokens_with_conditional_acceptance_by_position() -> None:
    assert expected_tokens_curve([0.9, 0.5], 3).tolist() == pytest.approx([1, 1.9, 2.35, 2.575])
    assert expected_tokens(0.3, 0) == 1


def test_not_speculating_is_an_answer() -> None:
    assert best_n(0.3, 0.5, max_n=16) == (0, 1.0)
    assert best_n(0.0, 0.0, max_n=16) == (0, 1.0)
    # What drafting costs in itself counts: 1.5 tokens for 1.6 steps.
    assert best_n(0.5, 0.1, max_n=1, draft_cost=0.5).n == 0


def test_idle_drafters_cost() -> None:
    costs = line_costs(0.1, 2, draft_cost=0.05, draft_cost_per_token=0.1, idle_cost=0.02)
    assert costs.tolist() == pytest.approx([1.02, 1.25, 1.45])
    assert speedup_curve(0.0, costs, plain=1.0)[0] == pytest.approx(1 / 1.02)


def test_measured_costs_with_stairs() -> None:
    # A token more is free up to the next step of the stairs: the end of a step is best.
    stairs = [0.010, 0.011, 0.011, 0.011, 0.020, 0.020]
    assert best_n_for(0.9, stairs).n == 3
    assert best_n_for(0.9, stairs).speedup == pytest.approx(expected_tokens(0.9, 3) * 10 / 11)


@pytest.mark.parametrize("p", [-0.1, 1.1, np.nan, [], [[0.5]]])
def test_acceptance_out_of_range(p: object) -> None:
    with pytest.raises(ValueError, match="acceptance"):
        expected_tokens_curve(p, 3)  # type: ignore[arg-type]


def test_costs_out_of_range() -> None:
    with pytest.raises(ValueError, match="alpha"):
        best_n(0.5, -0.1, max_n=4)
    with pytest.raises(ValueError, match="draft_cost"):
        speedup(0.5, 2, 0.1, draft_cost=np.inf)
    with pytest.raises(ValueError, match="draft tokens"):
        expected_tokens(0.5, -1)
    with pytest.raises(ValueError, match="positive"):
        speedup_curve(0.5, [1.0, 0.0])
    with pytest.raises(ValueError, match="plain step"):
        speedup_curve(0.5, [1.0], plain=0.0)
