"""The measured loop and the numbers made from it, on a fake engine with a fake clock."""

from itertools import count

import pytest

from vllm_specx.bench.cells import first_difference, measure, requests, summarise
from vllm_specx.bench.loop import Counters, Job, Run, Trace, drive


class FakeEngine:
    """Each step gives every running request `pace` tokens, as if pace - 1 of pace drafts were accepted."""

    def __init__(self, pace=1):
        self.pace = pace
        self.counters = Counters(num_drafts=1000, num_draft_tokens=5000, num_accepted_tokens=2000)
        self.running = {}
        self.most = 0
        self.order = []

    def add(self, request_id, prompt, length, natural):
        self.order.append((request_id, tuple(prompt), length, natural))
        self.running[request_id] = [0, length]
        self.most = max(self.most, len(self.running))

    def kept(self):
        return None

    def step(self):
        news = []
        for request_id, state in list(self.running.items()):
            done, length = state
            new = 1 if done == 0 else min(self.pace, length - done)
            if done and self.pace > 1:
                self.counters.num_drafts += 1
                self.counters.num_draft_tokens += self.pace
                self.counters.num_accepted_tokens += self.pace - 1
            state[0] += new
            if state[0] == length:
                del self.running[request_id]
            news.append((request_id, list(range(done, done + new)), state[0] == length))
        return news


def ticking():
    ticks = count()
    return lambda: float(next(ticks))


def job(lengths, concurrency, natural=False):
    return Job("cell", [[number] for number in range(len(lengths))], lengths, concurrency, natural)


def test_every_request_gets_its_length_and_concurrency_is_kept():
    lengths = [3, 1, 5, 2, 4, 4, 1]
    engine = FakeEngine()
    result = drive(engine, job(lengths, 3, natural=True))
    assert [len(trace.token_ids) for trace in result.traces] == lengths
    assert engine.most == 3
    assert [entry[0] for entry in engine.order] == [f"cell-{number}" for number in range(7)]
    assert all(natural for *_, natural in engine.order)


def test_counters_are_differences_over_the_cell():
    engine = FakeEngine(pace=4)
    counters = drive(engine, job([9, 9], 1)).counters
    # 9 tokens: 1 from the prompt, then two steps of 4 that verified 4 drafts and accepted 3; twice.
    assert counters == Counters(num_drafts=4, num_draft_tokens=16, num_accepted_tokens=12)


def test_measures_by_hand():
    result = drive(FakeEngine(pace=4), job([9, 9], 1), clock=ticking())
    # Clock: start 0; each step reads it twice (began, now): first tokens at 2 and 8, last ones at 6 and 12.
    numbers = measure(result)
    assert numbers["num_steps"] == 6
    assert numbers["output_tokens"] == 18
    assert numbers["seconds"] == 13.0
    assert numbers["engine_seconds"] == 6.0
    assert numbers["tokens_per_s"] == pytest.approx(18 / 13)
    assert numbers["tpot_ms_p50"] == pytest.approx(500.0)
    assert numbers["tokens_per_step"] == 4.0
    assert numbers["acceptance"] == 0.75
    assert numbers["draft_tokens_per_step"] == 4.0
    assert numbers["lengths_over_time"] == [0.0, 4.0, 4.0, 0.0, 4.0, 4.0]
    assert numbers["kept"] is None


def test_what_happens_over_time_is_told_in_parts():
    numbers = measure(drive(FakeEngine(pace=2), job([400], 1)))
    assert numbers["num_steps"] > 200
    assert len(numbers["lengths_over_time"]) == 48
    assert set(numbers["lengths_over_time"][1:]) == {2.0}


def test_pauses_between_turns_are_not_counted():
    at_once = drive(FakeEngine(pace=4), job([9, 9, 5], 2), clock=ticking())
    clock = count()
    run = Run(FakeEngine(pace=4), job([9, 9, 5], 2), clock=lambda: float(next(clock)))
    turns = 0
    while not run.advance(2 * (turns := turns + 1)):
        for _ in range(1000):
            next(clock)
    assert turns > 3
    in_turns = run.result()
    assert [trace.token_ids for trace in in_turns.traces] == [trace.token_ids for trace in at_once.traces]
    assert in_turns.engine_seconds == at_once.engine_seconds
    assert in_turns.seconds < at_once.seconds + 2 * turns  # reading the clock takes a tick
    assert in_turns.traces[2].last < in_turns.seconds


def test_a_turn_ends_at_its_share():
    run = Run(FakeEngine(), job([4, 4], 1))
    assert run.advance(3) is False
    assert len(run.result().traces[0].token_ids) == 3
    assert run.advance(3) is False  # has them already
    assert run.result().num_steps == 3
    assert run.advance() is True


def test_nothing_to_divide_by_is_none():
    numbers = measure(drive(FakeEngine(), job([1, 1], 2)))
    for name in ("tpot_ms_p50", "tpot_ms_p99", "tokens_per_step", "acceptance", "draft_tokens_per_step"):
        assert numbers[name] is None


def test_first_difference():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([1, 2, 3], [1, 2]) == 2
    assert first_difference([], []) is None


def test_requests_digest_differs_exactly_where_the_tokens_do():
    traces = [Trace([1, 23], 2), Trace([12, 3], 2), Trace([1, 23], 1)]
    entries = requests(["a", "b", "c"], traces, [traces[0]] * 3)
    assert [entry["first_difference"] for entry in entries] == [None, 0, None]
    assert entries[0]["sha256"] == entries[2]["sha256"] != entries[1]["sha256"]


def run(method, repeat, tokens_per_s, difference=None, **more):
    row = {
        "workload": "w",
        "concurrency": 1,
        "phase": "cold",
        "method": method,
        "repeat": repeat,
        "tokens_per_s": tokens_per_s,
        "tpot_ms_p50": 1.0,
        "tpot_ms_p99": 2.0,
        "tokens_per_step": 1.0,
        "acceptance": None,
        "draft_tokens_per_step": 0.0,
        "num_preemptions": 0,
        "faults": 0,
        "lengths_over_time": [float(repeat)],
        "kept": None if method == "none" else [[2.0], [1.5], [1.0]],
        "requests": [{"first_difference": difference}, {"first_difference": None}],
    }
    return {**row, **more}


def test_summary_pairs_within_repeats():
    runs = [
        run("none", 0, 10.0),
        run("ngram", 0, 20.0, difference=3, acceptance=0.5),
        run("ngram", 1, 90.0, acceptance=0.7, faults=2),
        run("none", 1, 30.0),
        run("none", 1, 1.0, phase="warm"),
        run("ngram", 1, 4.0, phase="warm"),
    ]
    rows = {(row["phase"], row["method"]): row for row in summarise(runs)}
    cold = rows["cold", "ngram"]
    assert cold["ratio"]["values"] == (2.0, 3.0)
    assert cold["ratio"]["median"] == 2.5
    assert cold["tokens_per_s"] == 55.0
    assert cold["acceptance"] == pytest.approx(0.6)
    assert (cold["identical"], cold["compared"], cold["faults"]) == (3, 4, 2)
    assert cold["lengths_over_time"] == [0.0]  # of the first repeat
    assert cold["kept"] == [[4.0], [3.0], [2.0]]
    assert rows["cold", "none"]["kept"] is None
    assert rows["warm", "ngram"]["ratio"]["values"] == (4.0,)
    assert rows["cold", "none"]["ratio"]["half_width"] == pytest.approx(0.0)
    assert rows["cold", "none"]["acceptance"] is None
