"""Where a simulation's drafts come from: recordings of the real drafter, and the drafter itself."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulated import line_table, stream_of, world

from drafters import SuffixTreeDrafter
from drafters.replay import Trace, replay
from vllm_specx.simulate import SimulateSettings, run_simulate
from vllm_specx.simulate import state as names
from vllm_specx.simulate.curve import THRESHOLDS, _groups, learn, levels_of
from vllm_specx.simulate.exact import ExactDrafting
from vllm_specx.simulate.loop import run
from vllm_specx.simulate.texts import Texts, load_texts
from vllm_specx.tuner import CostModel, Step, Tuner

ROOT = Path(__file__).parents[2]
SQL = ROOT.parent / "shared" / "data" / "replay" / "sql.jsonl"
TOKENIZER = ROOT / ".cache" / "SmolLM2-135M-Instruct"


def phrases(num=24, length=40, seed=0):
    """Answers that repeat themselves and one another, with surprises."""
    rng = np.random.default_rng(seed)
    known = [rng.integers(1, 50, 8).tolist() for _ in range(6)]
    traces = []
    for k in range(num):
        output = []
        while len(output) < length:
            output += known[rng.integers(6)] + [int(rng.integers(1, 50))]
        traces.append(Trace(str(k), rng.integers(1, 50, 5).tolist(), output[: length - k % 3]))
    return Texts.of(traces)


def test_levels():
    assert levels_of(1) == [0]
    assert levels_of(2) == [0, 1]
    assert levels_of(10) == [0, 1, 2, 4, 8, 9]
    assert levels_of(262) == [0, 1, 2, 4, 8, 16, 32, 64, 128, 233]


@pytest.mark.parametrize("level", [0, 1, 9, 16, 35])
def test_every_row_is_decoded_once_among_others(level):
    groups = _groups(40, level, np.random.default_rng(0))
    assert sorted(row for _, rows in groups for row in rows.tolist()) == list(range(40))
    for remembered, rows in groups:
        assert len(set(remembered.tolist())) == level
        assert not {*remembered.tolist()} & {*rows.tolist()}
        assert len(rows) <= max(1, level // 8)


@pytest.fixture(scope="module")
def learned():
    texts = phrases()
    return texts, learn(texts, max_n=8, seed=0)


def test_recordings_lead_to_the_end_of_each_answer(learned):
    texts, curve = learned
    assert curve.drafts.shape == curve.commits.shape == (7, len(THRESHOLDS), texts.outputs.sum())
    assert curve.drafts.min() >= 0
    assert curve.drafts.max() <= 8
    for level in range(7):
        for k in range(len(THRESHOLDS)):
            num_steps = num_drafts = 0
            for offset, num in zip(curve.offsets.tolist(), texts.outputs.tolist(), strict=True):
                assert (curve.commits[level, k, offset + 1 : offset + num] >= 1).all()
                at = 1
                while at < num:
                    drafts, commits = (
                        curve.drafts[level, k, offset + at],
                        curve.commits[level, k, offset + at],
                    )
                    assert commits <= drafts + 1
                    # Whoever comes in halfway has what is left of the step.
                    assert curve.commits[level, k, offset + at : offset + at + commits].tolist() == [
                        *range(commits, 0, -1)
                    ]
                    at += int(commits)
                    num_steps, num_drafts = num_steps + 1, num_drafts + int(drafts)
                assert at == num
            total = int((texts.outputs - 1).sum())
            assert curve.tokens_per_step[level, k] == pytest.approx(total / num_steps)
            assert curve.drafts_per_step[level, k] == pytest.approx(num_drafts / num_steps)


def test_more_in_memory_is_worth_more_and_a_higher_threshold_drafts_less(learned):
    _, curve = learned
    assert curve.tokens_per_step[-1, 0] > 1.3 * curve.tokens_per_step[0, 0]
    assert (np.diff(curve.drafts_per_step, axis=1) <= 0).all()
    assert curve.levels.tolist() == levels_of(24)


def test_recordings_are_reproducible(learned):
    texts, curve = learned
    again, other = learn(texts, max_n=8, seed=0), learn(texts, max_n=8, seed=1)
    assert np.array_equal(again.drafts, curve.drafts)
    assert np.array_equal(again.commits, curve.commits)
    assert not np.array_equal(other.commits, curve.commits)


class InNamespace(SuffixTreeDrafter):
    """One whose requests are a tenant's."""

    def start(self, request_id, prompt_ids, *, namespace="0"):
        super().start(request_id, prompt_ids, namespace=namespace)


class Tuned:
    """A tuner as a rule of `replay`."""

    def __init__(self, table, max_n):
        self._table, self._tuner = table, Tuner(CostModel(table), max_n=max_n)

    def lengths(self, reaches):
        return self._tuner.choose(reaches)

    def update(self, num_tokens, num_draft_tokens):
        seconds = float(self._table(1, num_draft_tokens))
        self._tuner.update(Step(1, num_draft_tokens, num_tokens, seconds))


def exact(texts, settings, stream, memory="private", table=None):
    table = line_table() if table is None else table
    w, rules = world(settings, texts, memory=memory, table=table, stream=stream)
    drafting = ExactDrafting(texts, w, table, max_n=settings.max_n, seed=0)
    return run(w, rules, drafting), drafting


def one_by_one(num, replicas=1):
    return stream_of([10.0 * k for k in range(num)], rows=list(range(num)), replicas=replicas)


def test_one_request_at_a_time_is_a_replay():
    texts, table = phrases(), line_table()
    state, _ = exact(texts, SimulateSettings(replicas=1, max_n=8), one_by_one(24))
    rng = np.random.default_rng((0, 7))
    drafter = InNamespace(max_n=8, memory_bytes=64 << 20, new_seed=lambda: int(rng.integers(1 << 63)))
    tally = replay(drafter, texts.traces, max_n=8, alpha=0.0, rule=Tuned(table, 8))
    assert state.counts[names.STEPS] - 24 == tally.num_steps  # and a step for each prompt
    assert state.counts[names.STEP_TOKENS] == tally.num_tokens
    assert state.counts[names.DRAFTS] == tally.num_draft_tokens
    assert tally.num_steps < tally.num_tokens / 1.3  # something was accepted


@pytest.mark.parametrize("memory", ["private", "shared"])
def test_exact_memories_hold_what_they_should(memory):
    settings = SimulateSettings(replicas=3, max_n=8, sync_interval=0.0, transfer=0.0)
    state, drafting = exact(phrases(), settings, one_by_one(24, replicas=3), memory)
    held = [drafter.num_documents for drafter in drafting._drafters]
    # The last ones to speak were heard by nobody, who had no step after that.
    assert held == ([8, 8, 8] if memory == "private" else [22, 23, 24])
    assert state.seen.tolist() == [k // 3 if memory == "private" else k for k in range(24)]


def test_exact_shared_memory_without_delay_is_as_good_as_one_replicas():
    texts, settings = phrases(60), SimulateSettings(replicas=4, max_n=8, sync_interval=0.0, transfer=0.0)

    def tokens_per_step(num, memory):
        state, _ = exact(texts, replace(settings, replicas=num), one_by_one(60, replicas=num), memory)
        return state.counts[names.STEP_TOKENS] / state.counts[names.REQUEST_STEPS]

    one, shared, private = (
        tokens_per_step(1, "private"),
        tokens_per_step(4, "shared"),
        tokens_per_step(4, "private"),
    )
    assert shared == pytest.approx(one, rel=0.08)  # calibration is each replica's own
    assert private < shared


def test_a_restart_brings_back_from_the_store_what_was_said_before():
    settings = SimulateSettings(replicas=1, max_n=8, sync_interval=4.0, transfer=0.0, away=1.0)
    stream = one_by_one(6)
    stream = replace(stream, restart_at=np.array([35.0]), restart_of=np.array([0]))
    for memory, held in (("private", 2), ("shared", 6)):
        state, drafting = exact(phrases(6), settings, stream, memory)
        assert np.isfinite(state.finish).all()
        assert drafting._drafters[0].num_documents == held


def test_exact_runs_are_reproducible():
    texts = phrases()
    settings = SimulateSettings(
        replicas=2, rate=3.0, duration=8.0, drafting="exact", memory="all", churn=200.0
    )
    first, second = (run_simulate(settings, texts, line_table(), {})["runs"] for _ in range(2))
    for run_of in (*first, *second):
        run_of.pop("cpu_s")
    assert first == second
    assert [run_of["memory"] for run_of in first] == ["plain", "private", "shared"]


def test_recorded_drafts_are_worth_about_as_much_as_exact_ones():
    texts = phrases(80)
    settings = SimulateSettings(replicas=2, rate=4.0, duration=40.0)
    exactly = run_simulate(replace(settings, drafting="exact"), texts, line_table(), {})["runs"]
    recorded = run_simulate(settings, texts, line_table(), {})["runs"]
    for one, other in zip(exactly, recorded, strict=True):
        assert other["tokens_per_step"] == pytest.approx(one["tokens_per_step"], rel=0.1)
        assert other["tokens_per_s"] == pytest.approx(one["tokens_per_s"], rel=0.05)
    assert recorded[1]["tokens_per_step"] > recorded[0]["tokens_per_step"]  # shared over private


@pytest.mark.skipif(not (SQL.exists() and TOKENIZER.exists()), reason="needs traces and a tokenizer")
def test_queries_are_drafted_the_better_the_more_of_them_are_known():
    texts = load_texts(SQL, TOKENIZER, 100)
    curve = learn(texts, max_n=16, seed=0)
    assert curve.levels.tolist() == [0, 1, 2, 4, 8, 16, 32, 64, 89]
    assert (np.diff(curve.tokens_per_step[:, 0]) > 0).all()
    assert curve.tokens_per_step[-1, 0] > 1.4 * curve.tokens_per_step[0, 0]
