"""Calibration: what is counted, how it is pooled and forgotten, and whether reach is what really happens."""

import random

import numba
import numpy as np
import pytest

from drafters import SuffixTreeDrafter
from drafters import _suffix_tree_kernels as kernels
from drafters.calibration import _MEMORY, Calibration

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # see test_suffix_tree

SHAPE = (kernels.NUM_LENGTHS, kernels.NUM_SHARES, kernels.NUM_POSITIONS, kernels.NUM_LUCKS)
PERIOD = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]


def hazards(calibration: Calibration) -> np.ndarray:
    return calibration.hazard.reshape(SHAPE)


def add(calibration: Calibration, cell: tuple[int, ...], trials: float, rate: float) -> None:
    index = np.ravel_multi_index(cell, SHAPE)
    calibration.trials[index] += trials
    calibration.hits[index] += trials * rate
    calibration.refresh()


@pytest.mark.parametrize(
    ("committed", "trials", "hits"),
    [
        ([], 0, 0),
        ([9], 1, 0),
        ([1], 1, 1),
        ([1, 9], 2, 1),
        ([1, 2, 9, 4], 3, 2),  # nothing is known beyond the first wrong token
        ([1, 2, 3, 4, 9], 4, 4),  # the bonus token is no draft
    ],
)
def test_only_positions_with_a_known_outcome_count(committed: list[int], trials: int, hits: int) -> None:
    drafter = SuffixTreeDrafter(memory_bytes=0, min_reach=0.0)
    drafter.start("a", PERIOD)
    assert drafter.propose(["a"], 4)[0].token_ids.tolist() == [1, 2, 3, 4]
    drafter.observe("a", committed)
    drafter.propose(["a"], 0)
    assert drafter.calibration.trials.sum() == trials
    assert drafter.calibration.hits.sum() == hits


def test_a_draft_is_judged_once_and_by_what_came_right_after_it() -> None:
    drafter = SuffixTreeDrafter(memory_bytes=0, min_reach=0.0)
    drafter.start("a", PERIOD)
    drafter.propose(["a"], 4)
    drafter.observe("a", [1, 2])
    drafter.observe("a", [3, 4])
    drafter.propose(["a"], 4)  # replaced unseen by the next one
    drafter.propose(["a"], 1)
    drafter.observe("a", [5])
    drafter.stop("a")
    assert drafter.calibration.trials.sum() == 3


def test_outcomes_from_before_a_clear_are_forgotten() -> None:
    drafter = SuffixTreeDrafter(memory_bytes=0, min_reach=0.0)
    drafter.start("a", PERIOD)
    drafter.propose(["a"], 4)
    drafter.observe("a", [1, 2])
    drafter.clear()
    drafter.propose(["a"], 0)
    assert drafter.calibration.trials.sum() == 0


def test_the_prior_rises_with_match_length_and_share() -> None:
    prior = hazards(Calibration())
    assert ((prior > 0.0) & (prior < 1.0)).all()
    assert (np.diff(prior, axis=0) >= 0.0).all()
    assert (np.diff(prior, axis=1) >= 0.0).all()


def test_a_cell_without_outcomes_follows_its_coarse_cell_only() -> None:
    calibration = Calibration()
    before = hazards(calibration).copy()
    add(calibration, (4, 4, 0, 1), trials=1000, rate=0.1)
    after = hazards(calibration)
    assert after[4, 4, 0, 1] == pytest.approx(0.1, abs=0.02)
    assert after[4, 4, 3, 3] == pytest.approx(0.1, abs=0.02)
    after[4, 4] = before[4, 4]
    assert np.array_equal(after, before)


def test_few_outcomes_move_a_cell_a_little() -> None:
    calibration = Calibration()
    before = hazards(calibration)[4, 4, 0, 1]
    add(calibration, (4, 4, 0, 1), trials=1, rate=0.0)
    assert 0.7 * before < hazards(calibration)[4, 4, 0, 1] < before


def test_old_outcomes_fade() -> None:
    calibration = Calibration()
    cell = (4, 4, 0, 1)
    for _ in range(30):
        add(calibration, cell, trials=_MEMORY / 4, rate=0.9)
    assert hazards(calibration)[cell] == pytest.approx(0.9, abs=0.02)
    assert calibration.trials.max() <= _MEMORY
    for _ in range(30):
        add(calibration, cell, trials=_MEMORY / 4, rate=0.1)
    assert hazards(calibration)[cell] == pytest.approx(0.1, abs=0.02)


def test_clear_returns_to_the_prior() -> None:
    calibration = Calibration()
    prior = calibration.hazard.copy()
    add(calibration, (1, 1, 1, 1), trials=100, rate=0.5)
    assert not np.array_equal(calibration.hazard, prior)
    calibration.clear()
    assert np.array_equal(calibration.hazard, prior)


def calibration_error(rates: list[float], *, learn: bool = True, seed: int = 0) -> float:
    """Expected calibration error of reach over ten bins, where a draft token holds with its request's rate."""
    rng = random.Random(seed)
    drafter = SuffixTreeDrafter(max_n=8, memory_bytes=1 << 20, min_reach=0.0)
    rows = list(range(len(rates)))
    seen: list[tuple[float, bool]] = []
    for step in range(1600):
        if step % 80 == 0:
            for row in rows:
                if step:
                    drafter.stop(row)
                drafter.start(row, [rng.randrange(40) for _ in range(60)])
        if not learn:
            drafter.calibration.clear()
        for row, draft in zip(rows, drafter.propose(rows, 8), strict=True):
            accepted = 0
            while accepted < len(draft) and rng.random() < rates[row]:
                accepted += 1
            if step >= 400:
                seen += [(reach, k < accepted) for k, reach in enumerate(draft.reach.tolist())]
            last = rng.randrange(40)
            while accepted < len(draft) and last == draft.token_ids[accepted]:
                last = rng.randrange(40)
            drafter.observe(row, [*draft.token_ids[:accepted].tolist(), last])
    reach, held = np.array(seen).T
    assert len(reach) > 10_000
    bins = np.minimum((reach * 10).astype(int), 9)
    gaps = [abs(reach[bins == b].sum() - held[bins == b].sum()) for b in range(10)]
    return sum(gaps) / len(reach)


needs_jit = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="ten thousands of proposals in plain Python")


@needs_jit
@pytest.mark.parametrize("rates", [[0.9] * 4, [0.6] * 4, [0.3] * 4, [0.95, 0.8, 0.5, 0.2]])
def test_reach_is_what_really_gets_accepted(rates: list[float]) -> None:
    assert calibration_error(rates) <= 0.05


@needs_jit
def test_the_prior_alone_fails_that_test() -> None:
    assert calibration_error([0.9] * 4, learn=False) > 0.05
