"""Calibration: which outcomes count, how they are learned and forgotten, and whether reach is what really happens."""

import random
from collections.abc import Callable
from itertools import chain

import numba
import numpy as np
import pytest
from naive import Model

from drafters import SuffixTreeDrafter
from drafters import _reach_kernels as reach_kernels
from drafters import _suffix_tree_kernels as kernels
from drafters._prior import WEIGHTS
from drafters.calibration import Calibration

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # see test_suffix_tree

PERIOD = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]


def new_calibration() -> Calibration:
    return Calibration(WEIGHTS, kernels.NUM_FEATURES)


def drafting(max_n: int = 4) -> SuffixTreeDrafter:
    """A drafter whose request "a" was just given the draft [1, 2, 3, 4]."""
    drafter = SuffixTreeDrafter(memory_bytes=0, min_reach=0.0)
    drafter.start("a", PERIOD)
    assert drafter.propose(["a"], max_n)[0].token_ids.tolist() == [1, 2, 3, 4][:max_n]
    return drafter


def features_of(drafter: SuffixTreeDrafter) -> np.ndarray:
    """Features of the live request's draft, by group: (length, NUM_GROUPS)."""
    (request,) = drafter._requests.values()
    slots, slot = drafter._slots, request.slot
    return slots.features[slot, : slots.length[slot]] - kernels.OFFSETS


def assert_learned(drafter: SuffixTreeDrafter, features: np.ndarray, outcomes: list[bool]) -> None:
    """Check that these outcomes, and none else, were learned since the prior."""
    drafter.propose(["a"], 0)
    model = Model()
    for found, right in zip(features.tolist(), outcomes, strict=False):
        model.learn(found, right)
    expected = [list(chain(*model.weights)), list(chain(*model.information))]
    np.testing.assert_allclose(drafter.calibration.model, expected, rtol=0.0, atol=1e-12)


def test_every_feature_has_a_place_and_a_prior() -> None:
    assert [len(group) for group in WEIGHTS] == list(kernels.GROUP_SIZES[: kernels.NUM_FITTED])
    assert len(new_calibration().prior) == kernels.NUM_FEATURES == sum(kernels.GROUP_SIZES)
    assert [sum(kernels.GROUP_SIZES[:g]) for g in range(kernels.NUM_GROUPS)] == kernels.OFFSETS.tolist()
    model = new_calibration().model
    assert model.shape == (2, kernels.NUM_FEATURES)
    assert np.isfinite(model).all()
    assert (model[1] > 0.0).all()


def test_the_prior_trusts_a_long_context_more_than_a_contested_token() -> None:
    drafter = SuffixTreeDrafter(memory_bytes=0, min_reach=0.0)
    drafter.start("long", list(range(40)) * 2)
    drafter.start("contested", [1, 2, 1, 3, 1, 4, 1, 5, 1])
    long, contested = drafter.propose(["long", "contested"], 1)
    assert long.reach[0] > 0.8
    assert contested.reach[0] < 0.5


@pytest.mark.parametrize(
    ("committed", "outcomes"),
    [
        ([], []),
        ([9], [False]),
        ([1], [True]),
        ([1, 9], [True, False]),
        ([1, 2, 9, 4], [True, True, False]),  # nothing is known beyond the first wrong token
        ([1, 2, 3, 4, 9], [True] * 4),  # the bonus token is no draft
    ],
)
def test_only_positions_with_a_known_outcome_count(committed: list[int], outcomes: list[bool]) -> None:
    drafter = drafting()
    features = features_of(drafter)
    drafter.observe("a", committed)
    assert_learned(drafter, features, outcomes)


def test_a_draft_is_judged_once_and_by_what_came_right_after_it() -> None:
    drafter = drafting()
    features = features_of(drafter)
    drafter.observe("a", [1, 2])
    drafter.observe("a", [3, 4])
    assert_learned(drafter, features, [True, True])


def test_a_draft_that_was_replaced_is_not_judged() -> None:
    drafter = drafting()
    drafter.propose(["a"], 1)
    features = features_of(drafter)
    assert len(features) == 1
    drafter.observe("a", [1, 2])
    assert_learned(drafter, features, [True])


def test_outcomes_from_before_a_clear_are_forgotten() -> None:
    drafter = drafting()
    drafter.observe("a", [1, 2])
    drafter.clear()
    assert_learned(drafter, np.empty((0, kernels.NUM_GROUPS), int), [])


def test_clear_returns_to_the_prior() -> None:
    drafter = drafting()
    fresh = drafter.calibration.model.copy()
    assert np.array_equal(fresh[0], new_calibration().prior)
    drafter.observe("a", [1, 9])
    drafter.propose(["a"], 0)
    assert not (drafter.calibration.model == fresh).all(axis=1).any()
    drafter.clear()
    assert np.array_equal(drafter.calibration.model, fresh)


def test_one_outcome_moves_a_chance_a_little() -> None:
    drafter = drafting(max_n=1)
    features = features_of(drafter)[0] + kernels.OFFSETS
    before = reach_kernels._chance(features, drafter.calibration.model)
    drafter.observe("a", [9])
    drafter.propose(["a"], 0)
    assert 0.7 * before < reach_kernels._chance(features, drafter.calibration.model) < before


def judge_many(model: np.ndarray, features: np.ndarray, outcomes: list[bool]) -> None:
    """Judge drafts of one token with these flat features."""
    draft = np.zeros(1, dtype=np.int32)
    tokens = {right: np.array([0 if right else 1], dtype=np.int32) for right in (True, False)}
    for right in outcomes:
        assert reach_kernels._judge(draft, features[None], 1, tokens[right], model) == right


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="a hundred thousand outcomes in plain Python")
def test_a_long_past_does_not_outweigh_the_present() -> None:
    rng = random.Random(4)
    model = new_calibration().model
    features = kernels.OFFSETS.astype(np.int16)
    judge_many(model, features, [rng.random() < 0.9 for _ in range(100_000)])
    assert reach_kernels._chance(features, model) == pytest.approx(0.9, abs=0.06)
    judge_many(model, features, [rng.random() < 0.3 for _ in range(1000)])
    assert reach_kernels._chance(features, model) == pytest.approx(0.3, abs=0.1)


def surprise(chance: float, _: int) -> bool:
    return chance < 0.5


def seldom(_: float, step: int) -> bool:
    return step % 100 == 99


def tides(_: float, step: int) -> bool:
    return step // 5000 % 2 == 0


@pytest.mark.parametrize("outcome", [lambda *_: True, lambda *_: False, surprise, seldom, tides])
@pytest.mark.parametrize("varied", [False, True])
def test_weights_stay_bounded_whatever_happens(outcome: Callable[[float, int], bool], varied: bool) -> None:
    rng = np.random.default_rng(5)
    model = new_calibration().model
    steps = 1000 if numba.config.DISABLE_JIT else 100_000
    drawn = (rng.random((steps, kernels.NUM_GROUPS)) * kernels.GROUP_SIZES).astype(np.int16)
    drawn = (drawn if varied else drawn[:1].repeat(steps, axis=0)) + kernels.OFFSETS.astype(np.int16)
    for step, features in enumerate(drawn):
        judge_many(model, features, [outcome(reach_kernels._chance(features, model), step)])
    assert np.abs(model[0]).max() < 10.0  # not finite would fail, too
    assert reach_kernels.FIRST_EVIDENCE <= model[1].min() <= model[1].max() <= reach_kernels.MOST_EVIDENCE


def replay(rates: list[list[float]], *, learn: bool = True, seed: int = 0) -> list[np.ndarray]:
    """Reach and whether it held, (2, n) for each regime, where a draft token holds with its row's rate.

    rates: regimes, each with a rate per request; they follow one another after 1200 steps each, of which the
    last 1000 are returned.
    """
    rng = random.Random(seed)
    drafter = SuffixTreeDrafter(max_n=8, memory_bytes=1 << 20, min_reach=0.0)
    rows = list(range(len(rates[0])))
    regimes = []
    for regime in rates:
        seen: list[tuple[float, bool]] = []
        for step in range(1200):
            if step % 80 == 0:
                for row in rows:
                    if row in drafter._requests:
                        drafter.stop(row)
                    drafter.start(row, [rng.randrange(40) for _ in range(60)])
            if not learn:
                drafter.calibration.clear()
            for row, draft in zip(rows, drafter.propose(rows, 8), strict=True):
                accepted = 0
                while accepted < len(draft) and rng.random() < regime[row]:
                    accepted += 1
                if step >= 200:
                    seen += [(reach, k < accepted) for k, reach in enumerate(draft.reach.tolist())]
                last = rng.randrange(40)
                while accepted < len(draft) and last == draft.token_ids[accepted]:
                    last = rng.randrange(40)
                drafter.observe(row, [*draft.token_ids[:accepted].tolist(), last])
        regimes.append(np.array(seen).T)
        assert regimes[-1].shape[1] > 10_000
    return regimes


def calibration_error(seen: np.ndarray) -> float:
    """Expected calibration error over ten bins of reach."""
    reach, held = seen
    bins = np.minimum((reach * 10).astype(int), 9)
    return sum(abs((reach - held)[bins == b].sum()) for b in range(10)) / len(reach)


needs_jit = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="ten thousands of proposals in plain Python")


@needs_jit
@pytest.mark.parametrize("rates", [[0.9] * 4, [0.6] * 4, [0.3] * 4, [0.95, 0.8, 0.5, 0.2]])
def test_reach_is_what_really_gets_accepted(rates: list[float]) -> None:
    (seen,) = replay([rates])
    assert calibration_error(seen) <= 0.05


@needs_jit
@pytest.mark.parametrize("rates", [[0.9, 0.3], [0.3, 0.9]])
def test_reach_follows_a_change_of_regime(rates: list[float]) -> None:
    before, after = replay([[rate] * 4 for rate in rates])
    assert calibration_error(before) <= 0.05
    assert calibration_error(after) <= 0.05


@needs_jit
@pytest.mark.parametrize("rate", [0.9, 0.6])
def test_the_prior_alone_fails_that_test(rate: float) -> None:
    (seen,) = replay([[rate] * 4], learn=False)
    assert calibration_error(seen) > 0.05
