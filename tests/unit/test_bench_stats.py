"""Intervals of paired ratios: hand-computed values, scipy as the oracle."""

import math

import numpy as np
import pytest
from scipy import stats as oracle

from vllm_specx.bench.stats import paired_ratio, percentile, t_quantile


def test_two_pairs_by_hand():
    # Ratios 2 and 8: logs ln2 and 3 ln2, mean 2 ln2, standard error ln2, t(0.975, 1) = 12.7062.
    ratio = paired_ratio([2.0, 16.0], [1.0, 2.0])
    assert ratio.values == (2.0, 8.0)
    assert ratio.median == 5.0
    assert ratio.geometric_mean == pytest.approx(4.0)
    assert ratio.low == pytest.approx(4 * 2**-12.7062, rel=1e-4)
    assert ratio.high == pytest.approx(4 * 2**12.7062, rel=1e-4)


def test_equal_pairs_have_no_width():
    ratio = paired_ratio([30.0, 60.0, 90.0], [20.0, 40.0, 60.0])
    assert ratio.median == pytest.approx(1.5)
    assert ratio.low == pytest.approx(1.5)
    assert ratio.high == pytest.approx(1.5)
    assert ratio.half_width == pytest.approx(0.0, abs=1e-12)


def test_one_pair_has_no_interval():
    ratio = paired_ratio([3.0], [2.0])
    assert (ratio.median, ratio.low, ratio.high, ratio.half_width) == (1.5, None, None, None)


def test_swapping_the_sides_inverts_the_interval():
    forward = paired_ratio([3.0, 5.0, 4.0], [2.0, 2.5, 3.0])
    backward = paired_ratio([2.0, 2.5, 3.0], [3.0, 5.0, 4.0])
    assert forward.low is not None
    assert backward.high is not None
    assert forward.low == pytest.approx(1 / backward.high)


def test_interval_equals_scipys():
    random = np.random.default_rng(7)
    for count in (2, 3, 4, 5, 8, 21):
        plain = random.uniform(20, 40, count)
        other = plain * random.lognormal(0.4, 0.05, count)
        logs = np.log(other / plain)
        low, high = oracle.t.interval(0.95, count - 1, loc=logs.mean(), scale=oracle.sem(logs))
        ratio = paired_ratio(other.tolist(), plain.tolist())
        assert (ratio.low, ratio.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-9)
        half_width = (math.exp(high) - math.exp(low)) / 2 / math.exp(logs.mean())
        assert ratio.half_width == pytest.approx(half_width, rel=1e-9)


def test_interval_covers_the_truth_as_often_as_it_says():
    """2,000 experiments of 4 pairs; fewer than 93 % or more than 97 % covered has a chance below 1e-4."""
    random = np.random.default_rng(11)
    covered = 0
    for _ in range(2000):
        logs = random.normal(math.log(1.5), 0.05, 4)
        ratio = paired_ratio(np.exp(logs).tolist(), [1.0] * 4)
        assert ratio.low is not None
        assert ratio.high is not None
        covered += ratio.low <= 1.5 <= ratio.high
    assert 0.93 <= covered / 2000 <= 0.97


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 29, 30, 200, 201])
@pytest.mark.parametrize("probability", [0.5, 0.75, 0.9, 0.975, 0.995])
def test_t_quantile_equals_scipys(degrees, probability):
    assert t_quantile(probability, degrees) == pytest.approx(
        oracle.t.ppf(probability, degrees), rel=1e-9, abs=1e-9
    )


def test_percentile_equals_numpys():
    values = np.random.default_rng(3).uniform(0, 100, 37).tolist()
    for percent in (0, 1, 50, 99, 100):
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))
    assert percentile([4.0], 99) == 4.0
    assert percentile([], 50) is None


@pytest.mark.parametrize(
    ("numerators", "denominators"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0]), ([-1.0], [1.0])]
)
def test_bad_pairs_are_refused(numerators, denominators):
    with pytest.raises(ValueError):
        paired_ratio(numerators, denominators)


@pytest.mark.parametrize(("probability", "degrees"), [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_bad_quantiles_are_refused(probability, degrees):
    with pytest.raises(ValueError):
        t_quantile(probability, degrees)


def test_bad_percentile_is_refused():
    with pytest.raises(ValueError):
        percentile([1.0], 101)
