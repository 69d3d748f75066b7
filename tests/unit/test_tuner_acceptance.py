"""Hazards: conditional acceptance from nested, censored outcomes."""

import numpy as np
import pytest

from vllm_specx.tuner import Hazards

TRUE = np.array([0.8, 0.6, 0.9, 0.3, 0.7, 0.5])


def outcomes(offered: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Accepted tokens of drafts with the true hazards, one token after the other."""
    accepted = []
    for n in offered:
        count = 0
        while count < n and rng.random() < TRUE[count]:
            count += 1
        accepted.append(count)
    return np.array(accepted)


def test_censored_outcomes_of_mixed_lengths_give_the_hazards() -> None:
    rng = np.random.default_rng(0)
    # Lengths that depend on the past, as a policy's do: long after a success.
    hazards = Hazards(6, memory=1e9)
    accepted, shares = 3, []
    for _ in range(40_000):
        offered = min(6, max(1, accepted + int(rng.integers(0, 3))))
        (accepted,) = outcomes(np.array([offered]), rng)
        hazards.update(offered, accepted)
        shares.append((accepted > np.arange(6)) / 1.0)
    assert hazards.mean[:4] == pytest.approx(TRUE[:4], abs=0.02)
    assert np.all(np.abs(hazards.mean - TRUE) < 4.5 * hazards.deviation)
    assert hazards.reach(6) == pytest.approx(np.cumprod(TRUE), abs=0.02)
    # Unconditional rates over the same steps, which ignore what was not offered, are far off.
    assert np.abs(np.mean(shares, axis=0) - np.cumprod(TRUE))[2:4].max() > 0.05


def test_counts_against_a_plain_loop() -> None:
    rng = np.random.default_rng(1)
    offered = rng.integers(0, 9, 300)
    accepted = np.array([rng.integers(0, n + 1) for n in offered])
    hazards = Hazards(5, memory=1e12, first=0.5, strength=2.0)
    hazards.update(offered, accepted)
    prior = 0.5
    for k in range(5):
        reached = sum(1 for n, a in zip(offered, accepted, strict=True) if a >= k and n > k)
        right = sum(1 for n, a in zip(offered, accepted, strict=True) if a > k)
        prior = (right + 2 * prior) / (reached + 2)
        assert hazards.mean[k] == pytest.approx(prior)


def test_one_by_one_or_together_is_nearly_the_same() -> None:
    rng = np.random.default_rng(2)
    offered = rng.integers(0, 7, 64)
    accepted = outcomes(offered, rng)
    one, all_ = Hazards(6), Hazards(6)
    for n, a in zip(offered, accepted, strict=True):
        one.update(n, a)
    all_.update(offered, accepted)
    assert one.mean == pytest.approx(all_.mean, abs=0.01)


def test_the_past_fades() -> None:
    hazards = Hazards(2, memory=100)
    hazards.update(np.ones(1000, dtype=int), np.ones(1000, dtype=int))
    assert hazards.mean[0] > 0.95
    for _ in range(300):
        hazards.update(1, 0)
    assert hazards.mean[0] < 0.1
    hazards.forget(1000)
    assert hazards.mean[0] == pytest.approx(0.6, abs=0.01)  # the prior again
    assert hazards.deviation[0] > 0.1


def test_nothing_is_learned_beyond_what_was_reached() -> None:
    hazards = Hazards(4, first=0.5, strength=1.0)
    hazards.update([4, 4], [0, 0])
    assert hazards.mean[0] < 0.3
    assert np.all(hazards.mean == hazards.mean[0])  # later positions only have their prior


@pytest.mark.parametrize(("offered", "accepted"), [(2, 3), (2, -1), ([1, 2], [1, 3])])
def test_impossible_outcomes(offered: object, accepted: object) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Hazards(4).update(offered, accepted)  # type: ignore[arg-type]


def test_impossible_arguments() -> None:
    with pytest.raises(ValueError, match="max_n"):
        Hazards(0)
    with pytest.raises(ValueError, match="memory"):
        Hazards(1, memory=0)
