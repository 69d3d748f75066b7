"""The simulated fleet against queueing theory, bookkeeping, counts by hand, and its twin in plain Python."""

import numpy as np
import pytest
from simulated import Recorded, flat_table, line_table, random_curve, run_fleet, stream_of, texts_of, world

from vllm_specx.bench.errors import BenchError
from vllm_specx.simulate import SimulateSettings, Sweep
from vllm_specx.simulate import _kernels as kernels
from vllm_specx.simulate import state as names
from vllm_specx.simulate.curve import no_curve
from vllm_specx.simulate.loop import run
from vllm_specx.simulate.outcome import measure
from vllm_specx.simulate.recorded import run_recorded
from vllm_specx.simulate.stream import draw
from vllm_specx.simulate.times import StepTimes, best_thresholds


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
@pytest.mark.parametrize(("replicas", "routing"), [(1, "round-robin"), (4, "random")])
def test_waiting_is_that_of_a_queue_with_fixed_service(load, replicas, routing):
    """M/D/1: one token and one request at a time; the mean wait is load / (2 * (1 - load)) services.

    400,000 requests: the standard error is below 2 % at load 0.8 (waits are correlated over some 100 requests).
    """
    service = 0.1
    settings = SimulateSettings(
        replicas=replicas,
        rate=replicas * load / service,
        duration=400_000 * service / load / replicas,
        tenants=1,
        max_num_seqs=1,
        routing=routing,
        seed=5,
    )
    w, state = run_fleet(settings, texts_of([1]), table=flat_table(service))
    assert np.isfinite(state.finish).all()
    waits = state.finish - w.arrival - service
    assert waits.min() > -1e-6
    assert waits.mean() == pytest.approx(service * load / (2 * (1 - load)), rel=0.05)


def test_prompts_and_tokens_are_served_one_after_the_other():
    """One request: its prompt in chunks of 100 tokens, 1 ms a token on top of a plain step, then a token a step."""
    settings = SimulateSettings(
        replicas=1, max_num_seqs=2, max_num_batched_tokens=100, prefill_us=1000.0, memory="plain"
    )
    _, state = run_fleet(
        settings, texts_of([5], prompts=250), memory="plain", table=flat_table(0.1), stream=stream_of([2.0])
    )
    assert state.first[0] == pytest.approx(2.0 + 3 * 0.1 + 0.25)
    assert state.finish[0] == pytest.approx(state.first[0] + 4 * 0.1)
    assert state.counts[names.STEPS] == 7
    assert state.counts[names.REQUEST_STEPS] == state.counts[names.STEP_TOKENS] == 4
    assert state.counts[names.BUSY] == pytest.approx(0.95)


def test_a_full_batch_makes_others_wait():
    settings = SimulateSettings(replicas=1, max_num_seqs=2, prefill_us=0.0, memory="plain")
    arrivals = [0.0, 0.0, 0.0, 0.05]
    _, state = run_fleet(
        settings, texts_of([3]), memory="plain", table=flat_table(0.1), stream=stream_of(arrivals)
    )
    assert state.finish.tolist() == pytest.approx([0.3, 0.3, 0.6, 0.6])
    assert state.counts[names.LARGEST] == 2


def test_step_times_are_the_tables():
    table = line_table()
    times = StepTimes.of(table, max_num_seqs=80, max_n=12, prefill_us=None)
    rng = np.random.default_rng(0)
    for b in (1, 2, 3, 8, 50, 80):
        for m in rng.integers(0, 12 * b + 1, 20).tolist():
            assert kernels._seconds(times.grid, b, m) == pytest.approx(float(table(b, m)), rel=1e-12)
    assert kernels._seconds(times.grid, 0, 0) == float(table(1, 0))
    assert times.per_prompt_token == pytest.approx(0.0005)
    assert StepTimes.of(table, max_num_seqs=1, max_n=1, prefill_us=7.0).per_prompt_token == pytest.approx(
        7e-6
    )


def test_the_best_threshold_is_the_one_with_most_tokens_per_second():
    texts = texts_of([20] * 3)
    curve = random_curve(texts, np.random.default_rng(0))
    table = line_table(step=0.02, request=0.0, draft=0.004)
    best = best_thresholds(curve, StepTimes.of(table, max_num_seqs=32, max_n=16, prefill_us=None))
    for b in range(1, 33):
        for level in range(3):
            rates = [
                b * tokens / float(table(b, b * drafts))
                for tokens, drafts in zip(
                    [*curve.tokens_per_step[level], 1.0], [*curve.drafts_per_step[level], 0.0], strict=True
                )
            ]
            assert rates[best[b, level]] == pytest.approx(max(rates))
    assert best[1].max() < 2
    assert best[32].min() == 2  # there no draft pays


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("memory", ["plain", "private", "shared"])
def test_kernels_do_what_plain_python_does(memory, seed):
    rng = np.random.default_rng((seed, 1))
    replicas = int(rng.integers(1, 6))
    settings = SimulateSettings(
        replicas=replicas,
        rate=float(rng.uniform(1, 8)) * replicas,
        duration=20.0,
        tenants=int(rng.integers(1, 5)),
        sync_interval=float(rng.choice([0.0, 0.3, 4.0])),
        transfer=float(rng.choice([0.0, 0.05])),
        churn=float(rng.choice([0.0, 400.0])),
        away=float(rng.choice([0.0, 3.0])),
        routing=str(rng.choice(["round-robin", "random", "least-loaded"])),
        max_num_seqs=int(rng.integers(1, 9)),
        max_num_batched_tokens=int(rng.integers(16, 64)),
        seed=seed,
    )
    texts = texts_of(rng.integers(1, 30, 9).tolist(), prompts=rng.integers(0, 80, 9).tolist())
    curve = no_curve(texts) if memory == "plain" else random_curve(texts, rng)
    w, rules = world(
        settings, texts, memory=memory, table=line_table(), curve=curve, most_seen=int(curve.levels[-1])
    )
    fast, slow = run_recorded(w, rules), run(w, rules, Recorded(w))
    for name in ("first", "finish", "seen", "where", "known"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name), equal_nan=True), name
    assert fast.counts == pytest.approx(slow.counts)
    assert fast.parts == pytest.approx(slow.parts)
    assert memory == "plain" or fast.counts[names.DRAFTS] > 0


@pytest.mark.parametrize("churn", [0.0, 300.0])
@pytest.mark.parametrize("routing", ["round-robin", "random", "least-loaded"])
def test_no_request_and_no_token_is_lost(routing, churn):
    settings = SimulateSettings(
        replicas=5, rate=20.0, duration=60.0, churn=churn, away=2.0, routing=routing, max_num_seqs=4
    )
    texts = texts_of([3, 17, 30], prompts=[10, 0, 200])
    w, state = run_fleet(
        settings, texts, table=line_table(), curve=random_curve(texts, np.random.default_rng(1))
    )
    outputs = w.outputs[w.row]
    assert np.array_equal(state.known, outputs)
    assert np.isfinite(state.finish).all()
    assert (state.first > w.arrival).all()
    assert (state.finish >= state.first).all()
    assert ((state.where >= 0) & (state.where < 5)).all()
    counts = state.counts
    assert counts[names.STEP_TOKENS] + counts[names.FIRST_TOKENS] == outputs.sum() + counts[names.LOST]
    assert (counts[names.LOST] > 0) == (churn > 0)
    assert state.parts.sum(axis=1) == pytest.approx(
        [counts[names.REQUEST_STEPS], counts[names.DRAFTS], counts[names.STEP_TOKENS]]
    )
    assert counts[names.BUSY] <= 5 * state.finish.max()


def test_time_in_steps_is_time_of_requests():
    """With steps of one length, the requests decoded in all of them are the time that requests spent decoding."""
    settings = SimulateSettings(replicas=3, rate=30.0, duration=50.0, memory="plain")
    texts = texts_of([4, 20])
    w, state = run_fleet(settings, texts, memory="plain", table=flat_table(0.05))
    spent = (state.finish - state.first).sum()
    assert 0.05 * state.counts[names.REQUEST_STEPS] == pytest.approx(spent)
    found = measure(w, world(settings, texts, memory="plain", table=flat_table(0.05))[1], state)
    assert [found["per_token_ms"][name] for name in ("p50", "p99")] == pytest.approx([50.0, 50.0])
    assert found["tokens_per_step"] == 1.0
    assert found["acceptance"] is None


ONE_BY_ONE = [10.0 * k for k in range(40)]  # each is done long before the next comes


@pytest.mark.parametrize("replicas", [1, 4, 8])
def test_a_private_memory_learns_as_much_less_as_there_are_replicas(replicas):
    settings = SimulateSettings(replicas=replicas)
    stream = stream_of(ONE_BY_ONE, replicas=replicas)
    _, state = run_fleet(settings, texts_of([5]), stream=stream)
    assert state.seen.tolist() == [k // replicas for k in range(40)]


@pytest.mark.parametrize("replicas", [2, 7])
def test_shared_memory_without_delay_is_that_of_one_big_replica(replicas):
    texts = texts_of([25, 3, 11])
    curve = random_curve(texts, np.random.default_rng(2), levels=(0, 4, 30))
    rows, tenants = [k % 3 for k in range(40)], [k // 3 % 2 for k in range(40)]

    def finished(num, memory):
        settings = SimulateSettings(replicas=num, sync_interval=0.0, transfer=0.0)
        stream = stream_of(ONE_BY_ONE, rows=rows, tenants=tenants, replicas=num)
        _, state = run_fleet(settings, texts, memory=memory, stream=stream, curve=curve, table=line_table())
        return state.seen.tolist(), state.finish.tolist()

    assert finished(replicas, "shared") == finished(1, "private")
    assert finished(replicas, "private") != finished(1, "private")


def test_what_the_store_has_comes_with_the_next_exchange():
    """Replica 0 says something until 0.2. It tells the store at 3, and the other one hears of it at 6."""
    settings = SimulateSettings(replicas=2, sync_interval=3.0, transfer=0.5)
    arrivals = [0.0, 3.6, 3.7, 6.4, 6.5, 6.6]
    stream = stream_of(arrivals, rows=[0] * 6, tenants=[0, 0, 1, 1, 0, 0], replicas=2)
    _, state = run_fleet(settings, texts_of([2]), memory="shared", stream=stream)
    # By turns: replica 0 knows its own at once; the other has nothing before 6 + 0.5.
    assert state.where.tolist() == [0, 1, 0, 1, 0, 1]
    assert state.seen.tolist() == [0, 0, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("memory", "seen"), [("private", [0, 1, 2, 0, 1, 2]), ("shared", [0, 1, 2, 0, 4, 5])]
)
def test_restarts_forget_what_is_private_and_fetch_what_is_shared(memory, seen):
    """It goes at 4, is back at 7, and exchanges at 9.5 and 14.5; until then it has only its own."""
    settings = SimulateSettings(replicas=1, sync_interval=5.0, transfer=0.0, away=3.0)
    stream = stream_of([0.0, 1.0, 2.0, 7.5, 10.0, 14.0], restarts=[(4.0, 0)])
    stream.phase[:] = 0.5
    _, state = run_fleet(settings, texts_of([2]), memory=memory, stream=stream)
    assert state.seen.tolist() == seen


def test_requests_of_a_replica_that_restarts_go_elsewhere():
    settings = SimulateSettings(replicas=2, max_num_seqs=1, away=100.0)
    stream = stream_of([0.0, 0.0, 0.0, 0.0, 1.0], replicas=2, restarts=[(0.25, 0)])
    _, state = run_fleet(settings, texts_of([4]), stream=stream)
    assert set(state.where.tolist()) == {1}
    assert sorted(state.finish.tolist()) == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert state.counts[names.LOST] == 2


def test_without_any_replica_requests_wait_for_one():
    settings = SimulateSettings(replicas=1, away=5.0)
    stream = stream_of([0.0, 3.0], duration=10.0, restarts=[(1.0, 0)])
    _, state = run_fleet(settings, texts_of([20]), stream=stream)
    assert state.finish.tolist() == pytest.approx([8.0, 8.0])


def test_too_much_to_do_ends_after_twice_the_time():
    settings = SimulateSettings(replicas=1, rate=30.0, duration=20.0, max_num_seqs=1)
    texts = texts_of([10])
    w, state = run_fleet(settings, texts)
    rules = world(settings, texts)[1]
    found = measure(w, rules, state)
    assert (
        found["finished"] == int(np.isfinite(state.finish).sum()) == 39
    )  # a second each, from the first arrival on
    assert found["requests"] > 500
    assert found["busy"] == pytest.approx(1.0, abs=0.05)
    assert found["tokens_per_s"] == pytest.approx(10.0, rel=0.02)


def test_the_least_loaded_replica_is_chosen():
    settings = SimulateSettings(replicas=3, max_num_seqs=2, routing="least-loaded")
    # The first keeps replica 0 busy; the short ones share the others.
    arrivals = [0.0, 0.01, 0.02, 0.5, 1.0, 1.5]
    stream = stream_of(arrivals, rows=[0, 1, 1, 1, 1, 1], replicas=3, duration=20.0)
    _, state = run_fleet(settings, texts_of([100, 2]), stream=stream)
    assert state.where.tolist()[0] == 0
    assert set(state.where.tolist()[1:]) == {1, 2}


def test_seeds():
    texts = texts_of([3, 17, 30])

    def finish(seed):
        settings = SimulateSettings(
            replicas=3, rate=9.0, duration=30.0, churn=100.0, routing="random", seed=seed
        )
        return run_fleet(settings, texts, table=line_table())[1].finish

    assert np.array_equal(finish(3), finish(3), equal_nan=True)
    assert len(finish(3)) != len(finish(4)) or not np.array_equal(finish(3), finish(4), equal_nan=True)


def test_what_comes_does_not_depend_on_how_it_is_served():
    texts = texts_of([3, 17, 30])
    first = draw(SimulateSettings(replicas=3, rate=9.0, duration=30.0), texts)
    second = draw(SimulateSettings(replicas=30, rate=9.0, duration=30.0, sync_interval=7.0, churn=3.0), texts)
    for name in ("arrival", "row", "tenant", "coin", "pick"):
        assert np.array_equal(getattr(first, name), getattr(second, name)), name


def test_tenants_ask_for_every_row_once():
    texts = texts_of([3] * 10)
    stream = draw(SimulateSettings(rate=50.0, duration=20.0), texts)
    assert stream.num_tenants == -(-len(stream.arrival) // 10)
    assert stream.arrival.min() >= 0
    assert stream.arrival.max() <= 20.0
    assert (np.diff(stream.arrival) >= 0).all()
    pairs = stream.tenant * 10 + stream.row
    assert len(np.unique(pairs)) == len(pairs)
    again = draw(SimulateSettings(rate=50.0, duration=20.0, tenants=2), texts)
    rows = again.row[again.tenant == 0]
    for first in range(0, len(rows) - 10, 10):
        assert sorted(rows[first : first + 10]) == list(range(10))  # each in turn, before any comes again
    assert rows[:10].tolist() != rows[10:20].tolist()


def test_poisson_arrivals():
    stream = draw(SimulateSettings(rate=100.0, duration=1000.0), texts_of([3]))
    gaps = np.diff(stream.arrival)
    assert gaps.mean() == pytest.approx(0.01, rel=0.02)
    assert gaps.std() == pytest.approx(0.01, rel=0.02)


def test_a_sweep_keeps_the_load_of_each_replica():
    base = SimulateSettings(replicas=4, rate=8.0)
    points = Sweep.parse("replicas=1,100").points(base)
    assert [(point.replicas, point.rate) for point in points] == [(1, 2.0), (100, 200.0)]
    points = Sweep.parse("sync-interval=0,2.5").points(base)
    assert [(point.sync_interval, point.rate) for point in points] == [(0.0, 8.0), (2.5, 8.0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("replicas", "NAME=V1,V2"),
        ("replica=1", "did you mean 'replicas'?"),
        ("seed=1,2", "names that are allowed: replicas, rate, sync-interval"),
        ("replicas=1,x", "whole numbers"),
        ("churn=", "numbers separated"),
        ("rate=1,1", "twice"),
        ("replicas=0", "--replicas must be within [1, 10000], got 0"),
        ("churn=nan", "--churn"),
    ],
)
def test_wrong_sweeps(text, said):
    with pytest.raises(BenchError) as caught:
        Sweep.parse(text).points(SimulateSettings(rate=1.0))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("at", "before", "after"), [(0.4, -np.inf, 0.5), (0.5, 0.5, 0.5), (3.1, 2.5, 4.5), (4.5, 4.5, 4.5)]
)
def test_exchanges(at, before, after):
    assert kernels._last_sync(at, 0.5, 2.0) == before
    assert kernels._next_sync(at, 0.5, 2.0) == after
    assert kernels._last_sync(at, 0.0, 0.0) == kernels._next_sync(at, 0.0, 0.0) == at


def test_the_tree_finds_the_first_event():
    rng = np.random.default_rng(0)
    tree, leaves = np.full(16, np.inf), np.full(8, np.inf)
    for _ in range(500):
        leaf, value = int(rng.integers(8)), float(rng.choice([1.0, 2.0, 3.0, np.inf]))
        leaves[leaf] = value
        kernels._set(tree, leaf, value)
        assert tree[1] == leaves.min()
        assert kernels._least(tree) == int(leaves.argmin())
