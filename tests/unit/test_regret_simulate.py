"""The simulated server against `drafters.replay`, and by hand where that does not reach."""

import numpy as np
import pytest

from drafters import SuffixTreeDrafter
from drafters.replay import Trace, replay
from vllm_specx.bench.costs import load_costs
from vllm_specx.regret.baselines import FixedN
from vllm_specx.regret.cells import Cell, Workload, cells
from vllm_specx.regret.costs import PACKAGED, CostGrid
from vllm_specx.regret.settings import RegretSettings
from vllm_specx.regret.simulate import Clock, bucket, simulate


def line(num_requests, num_draft_tokens):
    """A batch costs 1, a draft token 0.1."""
    return 1 + 0.1 * np.asarray(num_draft_tokens, dtype=np.float64)


def workload(name="words", num_traces=12, length=40, seed=0):
    """Answers that repeat themselves and one another, with surprises."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(1, 50, 8).tolist() for _ in range(4)]
    traces = []
    for k in range(num_traces):
        output = []
        while len(output) < length:
            output += phrases[rng.integers(4)] + [int(rng.integers(1, 50))]
        traces.append(Trace(f"{name}-{k}", phrases[k % 4], output[: length - k % 3]))
    return Workload(name, tuple(traces))


def cell_of(*workloads, slots=1, num_tokens=None, block=0, ramp=None):
    tokens = num_tokens or sum(w.num_tokens for w in workloads)
    return Cell("cell", True, workloads, tokens, block, ramp or ((0, slots),))


class Spy:
    """Records what a policy is asked and told."""

    needs_drafts = True

    def __init__(self, n=3):
        self._n = n
        self.batches, self.steps, self.ids = [], [], []

    def choose(self, request_ids, reaches):
        self.batches.append(len(request_ids))
        self.ids.append(tuple(request_ids))
        return [min(self._n, len(reach)) for reach in reaches]

    def update(self, step):
        self.steps.append(step)


def test_one_request_at_a_time_is_a_replay():
    cell = cell_of(workload())
    queue = cell.queue(0)
    num_whole = len(cell.workloads[0].traces)  # the spare ones are not reached
    run = simulate(cell, queue, FixedN(8), CostGrid(line, 8), max_n=8)
    traces = [Trace(str(k), r.prompt, r.ids) for k, r in enumerate(queue[:num_whole])]
    tally = replay(SuffixTreeDrafter(max_n=8), traces, max_n=8, alpha=0.1)
    assert run.num_steps == tally.num_steps
    assert run.tokens.sum() == tally.num_tokens == cell.num_tokens
    assert run.num_draft_tokens == tally.num_draft_tokens
    assert run.cost.sum() == pytest.approx(tally.cost)
    assert run.num_steps < cell.num_tokens / 1.5  # something was accepted


@pytest.mark.parametrize("slots", [1, 5])
def test_plain_decoding_costs_what_the_table_says(slots):
    cell = cell_of(workload(), slots=slots)
    table = load_costs(PACKAGED)
    run = simulate(cell, cell.queue(0), FixedN(0), CostGrid(table, 4), max_n=4)
    assert run.num_steps == -(-cell.num_tokens // slots)
    assert run.rate == pytest.approx(slots / float(table(slots, 0)))
    assert run.speedups == pytest.approx(1.0)


def test_the_batch_is_full_and_every_rule_gets_the_same_work():
    cell = cell_of(workload(), slots=5)
    tokens = []
    for n in (0, 2, 8):
        spy = Spy(n)
        run = simulate(cell, cell.queue(1), spy, CostGrid(line, 8), max_n=8)
        assert set(spy.batches) == {5}
        assert run.tokens[bucket(5)] == run.tokens.sum() == sum(step.num_tokens for step in spy.steps)
        tokens.append(run.tokens.sum())
    assert max(tokens) - min(tokens) < 5 * 9  # the last step may commit more than is asked for


def test_one_long_request_among_short_ones_leaves_no_slot_empty():
    short = [Trace(str(k), [1], [k + 1] * 3) for k in range(10)]
    words = Workload("w", (Trace("long", [1], [1, 2] * 150), *short))
    for seed in range(5):
        cell = cell_of(words, slots=4)
        spy = Spy(0)
        simulate(cell, cell.queue(seed), spy, CostGrid(line, 8), max_n=8)
        assert set(spy.batches) == {4}


def test_requests_start_in_order():
    spy = Spy()
    cell = cell_of(workload(), slots=3)
    simulate(cell, cell.queue(0), spy, CostGrid(line, 8), max_n=8)
    seen = [request_id for ids in spy.ids for request_id in ids]
    assert sorted(set(seen)) == list(range(max(seen) + 1))
    assert spy.ids[0] == (0, 1, 2)


def test_drafts_beyond_the_end_are_paid():
    # After "1 2 3 4 1 2 3 4 ..." the drafter is sure of more than the output still has.
    trace = Trace("a", [1, 2, 3, 4] * 8, [1, 2, 3, 4, 1, 2])
    cell = cell_of(Workload("w", (trace,)))
    run = simulate(cell, cell.queue(0), FixedN(16), CostGrid(line, 16), max_n=16)
    assert (run.num_steps, run.tokens.sum()) == (1, 5)
    assert run.num_draft_tokens > 5
    assert run.cost.sum() == pytest.approx(1 + 0.1 * run.num_draft_tokens)


def test_noise_is_seen_by_the_policy_alone():
    cell = cell_of(workload(), slots=4)
    spies = [Spy(), Spy(), Spy()]
    clocks = [Clock(), Clock(0.2, 0.05), Clock(0.2, 0.05)]
    runs = [
        simulate(cell, cell.queue(0), spy, CostGrid(line, 8), max_n=8, clock=clock, seed=3)
        for spy, clock in zip(spies, clocks, strict=True)
    ]
    assert runs[0].rate == runs[1].rate == runs[2].rate
    exact, noisy, again = (np.array([step.seconds for step in spy.steps]) for spy in spies)
    assert np.array_equal(noisy, again)
    factors = noisy / exact
    calm = factors[noisy < exact + 0.2]
    assert len(calm) < len(factors)
    assert 0.1 < np.std(np.log(calm)) < 0.3


def test_ramps_are_followed():
    settings = RegretSettings(batch=(4, 1, 2), phase=30)
    (ramp,) = [cell for cell in cells([workload(length=12)], settings) if not cell.stationary]
    assert [slots for _, slots in ramp.ramp] == [1, 2, 4, 2, 1] * 2
    assert ramp.num_tokens == 2 * 30 * (1 + 2 + 4 + 2 + 1)
    spy = Spy(0)
    run = simulate(ramp, ramp.queue(0), spy, CostGrid(line, 8), max_n=8)
    changes = [spy.batches[0]] + [b for a, b in zip(spy.batches, spy.batches[1:], strict=False) if a != b]
    assert max(changes) == 4
    assert changes.count(4) == 2
    assert run.tokens[:3].min() > 0


def test_cells():
    first, second = workload("a"), workload("b", 3)
    settings = RegretSettings(batch=(1, 8), steps=100, phase=20)
    made = {cell.name: cell for cell in cells([first, second], settings)}
    assert list(made) == [
        *("a/b1", "a/b8", "b/b1", "b/b8", "switch/b1", "switch/b8", "ramp/a", "ramp/b", "ramp+switch")
    ]
    assert [cell.stationary for cell in made.values()] == [True] * 4 + [False] * 5
    assert made["a/b1"].num_tokens == first.num_tokens > 100  # the whole file
    assert made["b/b8"].num_tokens == 800 > second.num_tokens
    assert [cell.name for cell in cells([first], RegretSettings(batch=(2,)))] == ["a/b2"]


def test_copies_of_a_file_share_no_token():
    words = workload(num_traces=3)
    cell = cell_of(words, slots=2, num_tokens=3 * words.num_tokens)
    queue = cell.queue(0)
    assert len(queue) > 9 + 2
    copies = [{t for r in queue[k : k + 3] for t in (*r.prompt.tolist(), *r.ids)} for k in (0, 3, 6)]
    assert len(copies[0] | copies[1] | copies[2]) == sum(map(len, copies))
    assert sorted(len(r.ids) for r in queue[:3]) == sorted(len(r.ids) for r in queue[3:6])


def test_workloads_take_turns():
    first, second = workload("a", length=20), workload("b", length=80)
    cell = cell_of(first, second, block=70)
    kinds = [len(request.ids) > 40 for request in cell.queue(0)]
    assert kinds[:10] == [False] * 4 + [True] + [False] * 4 + [True]


def test_seeds_shuffle():
    cell = cell_of(workload())
    orders = [[request.ids for request in cell.queue(seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
