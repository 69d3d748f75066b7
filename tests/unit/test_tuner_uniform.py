"""One N for the whole batch: near the best fixed one, off where drafts fail, back when they hold again."""

import numpy as np
import pytest
from tuner_world import MAX_N, TABLE

from vllm_specx.tuner import CostModel, Step, UniformTuner, expected_tokens_curve

PASS = 0.0025  # seconds of a pass of the drafter; one runs at N = 0 too
GOOD = np.array([0.75, 0.7, 0.7] + [0.65] * 13)
POOR = np.array([0.5] + [0.4] * 15)
DEAD = np.full(16, 0.03)


def cost(batch: int, n: int) -> float:
    return float(TABLE(batch, batch * n)) + PASS * max(n, 1)


def rates(hazards: np.ndarray, batch: int) -> np.ndarray:
    tokens = expected_tokens_curve(hazards, MAX_N)
    return np.array([batch * tokens[n] / cost(batch, n) for n in range(MAX_N + 1)])


def serve(
    tuner: UniformTuner, hazards: np.ndarray, batch: int, num_steps: int, rng: np.random.Generator
) -> list[int]:
    """Run some steps; what N each had."""
    chosen = []
    for _ in range(num_steps):
        n = tuner.choose(batch)
        chosen.append(n)
        holds = rng.random((batch, MAX_N)) < hazards
        accepted = np.minimum(np.argmin(np.column_stack((holds, np.zeros(batch))), axis=1), n).tolist()
        seconds = cost(batch, n) * float(np.exp(0.07 * rng.normal()))
        step = Step(batch, batch * n, batch + sum(accepted), seconds, num_passes=max(n, 1))
        tuner.update(step, n, accepted)
    return chosen


def share_of_best(chosen: list[int], hazards: np.ndarray, batch: int) -> float:
    """Rate over that of the best fixed N."""
    tokens = expected_tokens_curve(hazards, MAX_N)[chosen].sum() * batch
    seconds = sum(cost(batch, n) for n in chosen)
    return float(tokens / seconds / rates(hazards, batch).max())


def new_tuner() -> UniformTuner:
    return UniformTuner(CostModel(), max_n=MAX_N, idle_passes=1)


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("hazards", [GOOD, POOR, DEAD], ids=["good", "poor", "dead"])
def test_near_the_best_fixed_n(hazards: np.ndarray, batch: int) -> None:
    shares = [
        share_of_best(
            serve(new_tuner(), hazards, batch, 400, np.random.default_rng(seed))[100:], hazards, batch
        )
        for seed in range(3)
    ]
    assert np.mean(shares) > 0.955


def test_drafts_that_stop_holding_and_hold_again() -> None:
    rng = np.random.default_rng(0)
    tuner = new_tuner()
    before = serve(tuner, GOOD, 8, 300, rng)
    dead = serve(tuner, DEAD, 8, 300, rng)
    alive = serve(tuner, GOOD, 8, 300, rng)
    assert np.median(before[200:]) in (2, 3, 4)
    assert np.mean(dead[100:]) < 0.3
    assert share_of_best(alive[200:], GOOD, 8) > 0.97


def test_the_batch_decides() -> None:
    rng = np.random.default_rng(1)
    tuner = new_tuner()
    means = [np.mean(serve(tuner, GOOD, batch, 150, rng)[50:]) for batch in (1, 8, 32, 64, 8, 1)]
    assert means[0] > means[1] > means[2] >= means[3]
    assert means[4] == pytest.approx(means[1], abs=1)
    assert means[5] > means[4]


def test_n_does_not_flap() -> None:
    rng = np.random.default_rng(2)
    tuner = new_tuner()
    serve(tuner, GOOD, 8, 200, rng)
    chosen = serve(tuner, GOOD, 8, 400, rng)
    assert np.count_nonzero(np.diff(chosen)) < 40


def test_a_ladder_and_late_outcomes() -> None:
    """Only rungs are chosen; with async scheduling the outcome of a step comes after the next decision."""
    rng = np.random.default_rng(3)
    tuner = UniformTuner(CostModel(), max_n=8, candidates=[0, 1, 2, 4, 8])
    late: list[tuple[Step, int, list[int]]] = []
    chosen = []
    for _ in range(400):
        n = tuner.choose(4)
        chosen.append(n)
        accepted = np.minimum(rng.geometric(0.2, 4) - 1, n).tolist()
        late.append((Step(4, 4 * n, 4 + sum(accepted), cost(4, n), num_passes=n), n, accepted))
        if len(late) > 1:
            tuner.update(*late.pop(0))
    assert set(chosen) <= {0, 1, 2, 4, 8}
    assert np.median(chosen[200:]) in (2, 4, 8)


@pytest.mark.parametrize("seconds", [2.0, 0.0, -1.0, float("nan"), None])
def test_poisoned_clocks(seconds: float | None) -> None:
    rng = np.random.default_rng(4)
    tuner = new_tuner()
    serve(tuner, GOOD, 8, 200, rng)
    for _ in range(6):
        n = tuner.choose(8)
        tuner.update(Step(8, 8 * n, 8 + 4 * n, seconds, num_passes=n), n, [n // 2] * 8)
    assert share_of_best(serve(tuner, GOOD, 8, 300, rng)[200:], GOOD, 8) > 0.96


def test_edges() -> None:
    tuner = UniformTuner(CostModel(), max_n=0)
    assert tuner.choose(4) == 0
    assert UniformTuner(CostModel(), max_n=4).choose(0) == 0
    tuner = UniformTuner(CostModel(), max_n=4)
    assert tuner.last is None
    n = tuner.choose(2)
    assert tuner.last is not None
    assert tuner.last.num_draft_tokens == 2 * n
    tuner.update(Step(0, 0, 0, None), 0, [])
    tuner.update(Step(2, 8, 4, 0.02), 4, [9, -1])  # an engine's miscount is cut to what is possible
    with pytest.raises(ValueError, match="candidates"):
        UniformTuner(CostModel(), max_n=4, candidates=[5])
    with pytest.raises(ValueError, match="candidates"):
        UniformTuner(CostModel(), max_n=4, candidates=[])
