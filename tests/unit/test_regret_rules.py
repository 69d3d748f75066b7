"""The rules that the tuner is compared with, against brute force or by hand."""

from itertools import product

import numpy as np
import pytest

from vllm_specx.bench.costs import load_costs
from vllm_specx.regret.baselines import Bandit, BatchTable, Ema, FixedN, PrefixArgmax, ema_grid
from vllm_specx.regret.costs import PACKAGED, CostGrid, profiled
from vllm_specx.regret.oracle import OwnRatio, Priced, best_informed
from vllm_specx.regret.ranking import rank
from vllm_specx.regret.simulate import NUM_BUCKETS, Run
from vllm_specx.tuner import Step


def stairs(num_requests, num_draft_tokens):
    """Every fourth token opens a step; the first draft token costs extra."""
    drafts = np.asarray(num_draft_tokens, dtype=np.float64)
    return 1 + 0.2 * (drafts > 0) + 0.25 * np.ceil((num_requests + drafts) / 4)


def random_reaches(rng, num_requests=3, most=4):
    return [np.cumprod(rng.uniform(0.3, 1.0, rng.integers(0, most + 1))) for _ in range(num_requests)]


def choices(reaches):
    return product(*(range(len(reach) + 1) for reach in reaches))


def expected(reaches, lengths):
    return sum(1 + reach[:n].sum() for reach, n in zip(reaches, lengths, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_oracles_find_what_enumeration_finds(seed):
    rng = np.random.default_rng(seed)
    reaches = random_reaches(rng)
    ids = range(len(reaches))
    costs = CostGrid(stairs, 4)
    speedup = rng.uniform(0.8, 1.6)
    price = speedup * len(reaches) / costs[len(reaches)][0]

    def value(lengths):
        return expected(reaches, lengths) - price * costs[len(reaches)][sum(lengths)]

    def ratio(lengths):
        return expected(reaches, lengths) / costs[len(reaches)][sum(lengths)]

    priced = Priced(costs, np.full(NUM_BUCKETS, speedup)).choose(ids, reaches)
    assert value(priced) == pytest.approx(max(map(value, choices(reaches))))
    own = OwnRatio(costs).choose(ids, reaches)
    assert ratio(own) == pytest.approx(max(map(ratio, choices(reaches))))
    assert PrefixArgmax(costs, alpha=1.0, max_n=4).choose(ids, reaches) == own


def test_ranking_keeps_prefixes():
    ranking = rank([np.array([0.5, 0.5]), np.array([]), np.array([0.9, 0.5, 0.1])])
    assert ranking.lengths(1, 3) == [0, 0, 1]
    assert ranking.lengths(4, 3) == [2, 0, 2]
    assert ranking.gains == pytest.approx([0, 0.9, 1.4, 1.9, 2.4, 2.5])
    assert rank([np.array([])]).lengths(0, 1) == [0]


def test_best_informed_takes_the_best_run():
    made = []

    def run_with(policy):
        run = Run(num_steps=1)
        run.cost[0], run.plain[0] = 1.0, 1.0
        run.tokens[0] = 3.0 if isinstance(policy, OwnRatio) else 2.0
        made.append(policy)
        return run

    assert best_informed(run_with, CostGrid(stairs, 4)).rate == 3.0
    assert made[1]._prices[0] == 2.0  # the rate that came out of the first run
    assert len(made) == 2 + 3 + 1


def test_smoothed_confidence():
    rule = PrefixArgmax(CostGrid(lambda b, m: np.ones(len(m)), 4), alpha=0.5, max_n=2)
    shown = rule._smooth([7], [np.array([0.8, 0.4])])
    assert shown[0] == pytest.approx([0.8, 0.4])
    shown = rule._smooth([7, 8], [np.array([0.4, 0.2, 0.1])[:2], np.array([])])
    assert shown[0] == pytest.approx([0.6, 0.3])  # conditional 0.4 and 0.5, half old and half new
    assert len(shown[1]) == 0
    rule._smooth([8], [np.array([0.5])])
    assert rule._smooth([7], [np.array([0.2])])[0] == pytest.approx([0.2])  # forgotten with its request


def test_free_drafts_are_all_verified():
    rule = PrefixArgmax(CostGrid(lambda b, m: np.ones(len(m)), 4), alpha=0.8, max_n=2)
    assert rule.choose([1, 2], [np.array([0.5, 0.4, 0.3]), np.array([])]) == [2, 0]


def test_a_lagged_budget_is_that_of_the_step_before():
    rule = PrefixArgmax(CostGrid(lambda b, m: 1 + np.asarray(m) / b, 4), alpha=1.0, max_n=4, lagged=True)
    good, bad = np.full(4, 0.99), np.full(4, 0.01)
    assert rule.choose([1, 2], [bad, good]) == [4, 4]  # the first step knows nothing
    assert rule.choose([1, 2], [bad, good]) == [0, 0]
    free = PrefixArgmax(CostGrid(lambda b, m: np.ones(len(m)), 4), alpha=1.0, max_n=4, lagged=True)
    free.choose([1, 2], [good[:1], good[:2]])
    assert free.choose([1, 2], [bad, good]) == [0, 3]


def test_fixed_and_table_cut_what_there_is():
    reaches = [np.ones(1), np.ones(5), np.ones(0)]
    assert FixedN(3).choose(range(3), reaches) == [1, 3, 0]
    assert not FixedN(0).needs_drafts
    assert BatchTable([8, 2, 0]).choose(range(3), reaches) == [1, 2, 0]
    assert BatchTable([8, 2, 0]).choose(range(1), reaches[1:2]) == [5]
    assert BatchTable([8, 2, 0]).choose(range(4), [np.ones(3)] * 4) == [0] * 4


def feed(rule, accepted, num_steps):
    reach = [np.ones(16)]
    lengths = []
    for _ in range(num_steps):
        (n,) = rule.choose([0], reach)
        rule.update(Step(1, n, 1 + min(n, accepted), 1.0))
        lengths.append(n)
    return lengths


def test_ema_climbs_and_falls():
    rule = Ema((1, 3, 7), alpha=0.2, down=-0.25, up=0.0, off=-1.0)
    assert feed(rule, 16, 50)[0] == 3
    assert feed(rule, 16, 1) == [7]
    assert feed(rule, 2, 60)[-1] == 3
    assert feed(rule, 0, 60)[-1] == 1


def test_ema_turns_off_and_comes_back():
    rule = Ema((1, 3), alpha=0.2, down=-0.25, up=0.0, off=0.3)
    assert feed(rule, 0, 60)[-1] == 0
    assert feed(rule, 16, 300)[-1] == 3


def test_ema_grid_starts_with_the_published_one():
    first = next(iter(ema_grid(16).values()))
    assert first == {"ladder": (1, 3, 7), "alpha": 0.2, "down": -0.25, "up": 0.0, "off": -1.0}
    assert max(max(options["ladder"]) for options in ema_grid(4).values()) == 4


def test_bandit_finds_the_best_arm():
    rule = Bandit([0, 1, 4], epsilon=0.05, fade=0.99, seed=0)
    pulls = []
    for _ in range(400):
        (n,) = rule.choose([0], [np.ones(16)])
        rule.update(Step(1, n, 1 + min(n, 1), 1.0 + 0.1 * n))
        pulls.append(n)
    assert {*pulls[:9]} == {0, 1, 4}
    assert pulls[100:].count(1) > 270
    assert len({*pulls[100:]}) > 1


def test_bandit_has_arms_for_each_batch():
    rule = Bandit([0, 1], epsilon=0.0, fade=1.0, seed=0)
    for batch, best in ((1, 1), (8, 0)) * 40:
        n = rule.choose(range(batch), [np.ones(4)] * batch)[0]
        rule.update(Step(batch, n * batch, batch * (1 + (n == best)), 1.0))
    assert rule.choose(range(1), [np.ones(4)]) == [1]
    assert rule.choose(range(8), [np.ones(4)] * 8) == [0] * 8


def test_the_packaged_costs_are_those_of_the_measurement():
    table = load_costs(PACKAGED)
    assert [float(table(b, 0)) for b in (1, 8, 32)] == pytest.approx([0.0239, 0.0301, 0.0528])
    assert float(table(32, 32 * 16)) == pytest.approx(0.5953)
    grid = CostGrid(table, 16)
    assert grid[32] is grid[32]
    assert grid[32].shape == (513,)
    assert table.source


def test_a_profile_is_a_little_off():
    table = load_costs(PACKAGED)
    seen = profiled(table, np.random.default_rng(0), 0.05)
    error = np.log(seen.seconds / table.seconds)
    assert 0.01 < np.std(error) < 0.05
    assert profiled(table, np.random.default_rng(0), 0.0).seconds == pytest.approx(table.seconds)
