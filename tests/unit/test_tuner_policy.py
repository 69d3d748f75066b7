"""The tuner's choices: optimal for its own beliefs, near the best for the true costs, and never stuck."""

from itertools import product

import numpy as np
import pytest
from tuner_world import MAX_N, TABLE, WORKLOADS, drafts, run

from vllm_specx import tuner as package
from vllm_specx.tuner import CostModel, CostTable, Step, Tuner
from vllm_specx.tuner import _kernels as kernels

# A convex table, and one where the first draft token costs most.
CONVEX = CostTable(
    np.array([1, 2, 4, 8]), np.array([0, 1, 2, 4, 8]), np.array([[20.0, 21, 23, 29, 50]] * 4) * 1e-3
)
JUMP = CostTable(
    np.array([1, 2, 4, 8]), np.array([0, 1, 2, 4, 8]), np.array([[20.0, 26, 26.5, 27, 28]] * 4) * 1e-3
)


def random_drafts(rng: np.random.Generator, batch: int, max_n: int) -> list[np.ndarray]:
    """Reach lists with ties, ones, zeros and empty drafts among them."""
    reaches = []
    for _ in range(batch):
        reach = np.cumprod(rng.beta(2, 1, rng.integers(0, max_n + 1)))
        reaches.append(np.round(reach, 1) if rng.random() < 0.5 else reach)
    return reaches


@pytest.mark.parametrize("sizes", [None, (4, 8, 9, 16)])
@pytest.mark.parametrize("table", [TABLE, CONVEX, JUMP])
def test_no_other_lengths_are_worth_more(table: CostTable, sizes: tuple[int, ...] | None) -> None:
    rng = np.random.default_rng(0)
    num_partial = 0
    for _ in range(60):
        tuner = Tuner(CostModel(table, sizes=sizes), max_n=4)
        batch = int(rng.integers(1, 5))
        reaches = random_drafts(rng, batch, 4)
        chosen = tuner.choose(reaches)
        last = tuner.last
        assert last is not None
        assert last.reason in ("price", "off", "empty")
        seconds = tuner.costs.seconds(batch, np.arange(17))

        def worth(
            lengths: tuple[int, ...],
            reaches: list[np.ndarray] = reaches,
            price: float = last.price,
            seconds: np.ndarray = seconds,
        ) -> float:
            gain = sum(float(np.sum(reach[:n])) for reach, n in zip(reaches, lengths, strict=True))
            return gain - price * float(seconds[sum(lengths)] - seconds[0])

        best = max(map(worth, product(*(range(len(reach) + 1) for reach in reaches))))
        assert worth(tuple(chosen)) == pytest.approx(best, abs=1e-9)
        num_partial += 0 < sum(chosen) < sum(map(len, reaches))
    assert num_partial > 3


def test_the_price_of_a_batch_is_its_own_rate() -> None:
    """Drafts of one kind: the speedup it settles at is the one that it gets."""
    rng = np.random.default_rng(1)
    tuner = Tuner(CostModel(TABLE), max_n=MAX_N)
    tokens, plain = 0.0, 0.0
    for k in range(400):
        reaches = [np.cumprod(np.full(12, rng.choice([0.5, 0.9]))) for _ in range(8)]
        m = sum(tuner.choose(reaches))
        last = tuner.last
        assert last is not None
        tuner.update(Step(8, m, round(last.expected_tokens), float(TABLE(8, m))))
        if k >= 200:
            tokens += last.expected_tokens
            plain += 8 * float(TABLE(8, m)) / float(TABLE(8, 0))
    assert last.speedup == pytest.approx(tokens / plain, rel=0.08)


def test_ties_go_to_the_first_rows_and_rows_are_prefixes() -> None:
    tuner = Tuner(CostModel(sizes=[4, 8, 16]), max_n=8)
    tuner.costs.update(Step(4, 0, 4, 0.020))
    for _ in range(30):
        for m, seconds in ((0, 0.020), (4, 0.022), (8, 0.050)):
            tuner.costs.update(Step(4, m, 4, seconds))
    assert tuner.choose([np.full(3, 0.8)] * 4) == [3, 1, 0, 0]  # up to the end of the first stair
    assert tuner.choose([np.full(1, 0.8), np.full(3, 0.9), np.full(3, 0.8), np.full(3, 0.8)]) == [1, 3, 0, 0]


def test_shapes() -> None:
    tuner = Tuner(CostModel(), max_n=2)
    assert tuner.choose([]) == []
    assert tuner.choose([np.empty(0)]) == [0]
    assert tuner.last is not None
    assert tuner.last.reason == "empty"
    assert tuner.choose([np.ones(5), np.empty(0), np.ones(1)]) == [2, 0, 1]  # cut to max_n
    assert Tuner(CostModel(), max_n=0).choose([np.ones(3)]) == [0]
    with pytest.raises(ValueError, match="max_n"):
        Tuner(CostModel(), max_n=-1)


@pytest.mark.parametrize(
    "reach", [[np.nan, 0.9], [0.2, 0.9], [5.0, 5.0], [-1.0, -2.0], [np.inf, np.nan], [0.9, np.nan, 0.9]]
)
def test_reach_that_is_no_probability_does_no_harm(reach: list[float]) -> None:
    tuner = Tuner(CostModel(TABLE), max_n=4)
    for _ in range(20):
        chosen = tuner.choose([np.array(reach), np.array([0.5])])
        assert 0 <= chosen[0] <= len(reach)
        tuner.update(Step(2, sum(chosen), 2, 0.025))
        assert tuner.last is not None
        assert np.isfinite(tuner.last.price)


def test_hopeless_drafts_are_not_offered() -> None:
    rng = np.random.default_rng(2)
    tuner = Tuner(CostModel(), max_n=MAX_N)
    outcome = run(tuner, WORKLOADS["hopeless"], 32, 300, rng)
    stream = drafts(WORKLOADS["hopeless"], 32, rng)
    assert outcome.lengths.count(0) > 150  # some of these drafts are sure things
    assert np.mean(outcome.lengths[100:]) < 2
    for _ in range(50):
        chosen = tuner.choose([0.1 * reach for reach in next(stream)])
        assert sum(chosen) == 0
        tuner.update(Step(32, 0, 32, float(TABLE(32, 0))))


@pytest.mark.parametrize("batch", [1, 4, 16, 64])
@pytest.mark.parametrize("workload", ["chat", "edit", "sql", "hopeless"])
def test_near_the_clairvoyant_after_100_steps(workload: str, batch: int) -> None:
    ratios = [
        run(
            Tuner(CostModel(), max_n=MAX_N),
            WORKLOADS[workload],
            batch,
            250,
            np.random.default_rng(seed),
            count_from=100,
        ).ratio
        for seed in range(2)
    ]
    assert np.mean(ratios) > 0.965


def test_near_the_clairvoyant_while_batch_and_workload_move() -> None:
    rng = np.random.default_rng(3)
    tuner = Tuner(CostModel(), max_n=MAX_N)
    names = list(WORKLOADS)
    ratios = []
    for k, batch in enumerate((1, 2, 4, 8, 16, 32, 16, 8, 4, 2, 1)):
        workload = WORKLOADS[names[k % len(names)]]
        ratios.append(run(tuner, workload, batch, 60, rng, clock=lambda k, s: s + 2 * (k == 30)).ratio)
    assert np.exp(np.mean(np.log(ratios))) > 0.96


def test_probes_are_few() -> None:
    rng = np.random.default_rng(4)
    for batch, workload in product((4, 32), ("chat", "hopeless")):
        tuner = Tuner(CostModel(), max_n=MAX_N)
        reasons = run(tuner, WORKLOADS[workload], batch, 1500, rng).reasons
        assert reasons.count("probe") <= 25
        assert reasons[500:].count("probe") <= 15  # 1.5 %, after a change that was none


POISONS = {
    "stall": [2.0],
    "stalls": [2.0] * 6,
    "zero": [0.0] * 50,
    "negative": [-0.01] * 50,
    "nan": [float("nan")] * 50,
    "missing": [None] * 50,
    "stopped": [1e-6] * 50,
    "mixed": [2.0, 0.0, float("nan"), -1.0, None, float("inf")] * 8,
}


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("poison", POISONS)
def test_recovery_from_a_poisoned_clock(poison: str, batch: int) -> None:
    rng = np.random.default_rng(5)
    tuner = Tuner(CostModel(), max_n=MAX_N)
    before = run(tuner, WORKLOADS["sql"], batch, 200, rng)
    values = POISONS[poison]
    run(tuner, WORKLOADS["sql"], batch, len(values), rng, clock=lambda k, _: values[k])
    after = run(tuner, WORKLOADS["sql"], batch, 400, rng, count_from=200)
    assert after.ratio > 0.96
    assert np.mean(after.lengths[200:]) == pytest.approx(np.mean(before.lengths[100:]), rel=0.5)


@pytest.mark.parametrize("poison", POISONS)
def test_a_clock_that_is_poisoned_from_the_start(poison: str) -> None:
    rng = np.random.default_rng(6)
    tuner = Tuner(CostModel(), max_n=MAX_N)
    values = POISONS[poison]
    run(tuner, WORKLOADS["sql"], 8, len(values), rng, clock=lambda k, _: values[k])
    assert run(tuner, WORKLOADS["sql"], 8, 400, rng, count_from=200).ratio > 0.96


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_a_workload_that_stops_accepting_whatever_reach_says(batch: int) -> None:
    rng = np.random.default_rng(7)
    tuner = Tuner(CostModel(), max_n=MAX_N)
    workload = WORKLOADS["edit"]
    before = run(tuner, workload, batch, 200, rng)
    dead = run(tuner, workload, batch, 400, rng, holds=False)
    alive = run(tuner, workload, batch, 400, rng, count_from=200)
    assert np.mean(dead.lengths[200:]) < 0.1 * np.mean(before.lengths[100:])
    assert alive.ratio > 0.95
    assert np.mean(alive.lengths[200:]) > 0.6 * np.mean(before.lengths[100:])


def test_nothing_compiles_after_construction() -> None:
    names = ("_features", "_times", "_spread", "_learn_from", "_gather", "_decide", "_best_prefix", "_cut")
    dispatchers = [getattr(kernels, name) for name in names]
    tuner = Tuner(CostModel(TABLE, sizes=[4, 8, 16]), max_n=8)
    before = [len(kernel.signatures) for kernel in dispatchers]
    assert all(count > 0 for count in before)
    run(tuner, WORKLOADS["chat"], 4, 100, np.random.default_rng(0))
    run(tuner, WORKLOADS["edit"], 4, 200, np.random.default_rng(0), holds=False)
    assert [len(kernel.signatures) for kernel in dispatchers] == before


def test_every_decision_is_one_line() -> None:
    tuner = Tuner(CostModel(TABLE), max_n=8)
    assert tuner.last is None
    tuner.choose([np.array([0.9, 0.8]), np.array([0.4])])
    line = str(tuner.last)
    assert "\n" not in line
    fields = dict(pair.split("=") for pair in line.split()[1:])
    assert list(fields) == [
        "reason",
        "requests",
        "draft",
        "candidates",
        "expected_tokens",
        "price",
        "speedup",
        "alpha",
        "ms",
    ]
    assert fields["requests"] == "2"
    assert fields["candidates"] == "3"


def test_steps_that_do_not_match_the_decision() -> None:
    tuner = Tuner(CostModel(TABLE), max_n=8)
    tuner.update(Step(4, 3, 5, 0.03))  # before any decision
    tuner.choose([np.array([0.9, 0.8])] * 4)
    tuner.update(Step(3, 2, 900, 0.03))  # a request went away; tokens of a prefill among them
    tuner.update(Step(3, 2, 4, 0.03))  # twice
    tuner.update(Step(0, 0, 0, 0.03))
    assert 0.5 < tuner.trust.value < 1.3


def test_the_exported_names_are_pinned() -> None:
    assert package.__all__ == [
        "Ceilings",
        "CostModel",
        "CostTable",
        "CostTableError",
        "Decision",
        "Hazards",
        "Optimum",
        "PriceRule",
        "Step",
        "Tuner",
        "UniformTuner",
        "best_n",
        "best_n_for",
        "ceilings",
        "expected_tokens",
        "expected_tokens_curve",
        "line_costs",
        "speedup",
        "speedup_curve",
    ]
    assert all(hasattr(package, name) for name in package.__all__)
