"""A drafter that misbehaves in every way costs drafts, never a request."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from engine_prompts import token_prompts
from engines import N, proposer_of
from vllm import SamplingParams

from drafters import Draft

V = 49152


def _rows(row):
    return lambda ids, limits: [Draft(np.asarray(row), np.ones(np.size(row))) for _ in ids]


def _raise(ids, limits):
    raise RuntimeError("drafter is out of order")


HOSTILE = {
    "twice too many": _rows([7] * (2 * N)),
    "negative": _rows([-1, 5]),
    "beyond the vocabulary": _rows([V, 5]),
    "far beyond": _rows([2**40]),
    "not integers": _rows([1.5, 2.5]),
    "two-dimensional": _rows([[1, 2], [3, 4]]),
    "no list": lambda ids, limits: None,
    "a row too few": lambda ids, limits: _rows([5])(ids, limits)[1:],
    "a row too many": lambda ids, limits: _rows([5])([*ids, "x"], limits),
    "raises": _raise,
}


@pytest.fixture(scope="module")
def expected(plain):
    params = SamplingParams(temperature=0, max_tokens=12)
    return [
        list(o.outputs[0].token_ids)
        for o in plain.generate(token_prompts(plain)[8:12], params, use_tqdm=False)
    ]


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_drafter_costs_drafts_only(specx, expected, monkeypatch, kind):
    proposer = proposer_of(specx)
    before = proposer.faults
    monkeypatch.setattr(proposer.drafter, "propose", HOSTILE[kind])
    params = SamplingParams(temperature=0, max_tokens=12)
    outputs = specx.generate(token_prompts(specx)[8:12], params, use_tqdm=False)
    assert [list(o.outputs[0].token_ids) for o in outputs] == expected
    assert proposer.faults > before


def draft_with(monkeypatch, proposer, fault):
    """Let what `fault()` returns draft in a step, if anything; the list gets what is drafted in the others."""
    original, drafted = proposer.drafter.propose, []

    def propose(ids, limits):
        other = fault()
        if other is not None:
            return other(ids, limits)
        drafts = original(ids, limits)
        drafted.append(sum(map(len, drafts)))
        return drafts

    monkeypatch.setattr(proposer.drafter, "propose", propose)
    return drafted


def test_drafting_goes_on_after_a_fault(specx, plain, monkeypatch):
    """A fault in the middle of a request: its state is read anew and drafts come again."""
    params = SamplingParams(temperature=0, max_tokens=64)
    prompts = token_prompts(plain)[8:12]
    expected = [list(o.outputs[0].token_ids) for o in plain.generate(prompts, params, use_tqdm=False)]
    proposer = proposer_of(specx)
    proposer.reset_memory()
    calls = []

    def once():
        calls.append(1)
        return _raise if len(calls) == 3 else None

    drafted = draft_with(monkeypatch, proposer, once)
    before = proposer.faults
    outputs = specx.generate(prompts, params, use_tqdm=False)
    assert [list(o.outputs[0].token_ids) for o in outputs] == expected
    assert proposer.faults == before + 1
    assert sum(drafted[3:]) > 0


@pytest.mark.parametrize("reach", [np.nan, -1.0, 2.0])
def test_promises_that_cannot_be_cost_drafts_only(specx, expected, monkeypatch, reach):
    proposer = proposer_of(specx)
    monkeypatch.setattr(
        proposer.drafter,
        "propose",
        lambda ids, limits: [Draft(np.array([5, 6]), np.full(2, reach)) for _ in ids],
    )
    params = SamplingParams(temperature=0, max_tokens=12)
    outputs = specx.generate(token_prompts(specx)[8:12], params, use_tqdm=False)
    assert [list(o.outputs[0].token_ids) for o in outputs] == expected


def test_faults_at_random_steps(specx, plain, monkeypatch):
    """Any fault at any step: the tokens are those of plain decoding, and drafts come in between."""
    params = SamplingParams(temperature=0, max_tokens=96)
    prompts = token_prompts(plain)[8:12]
    expected = [list(o.outputs[0].token_ids) for o in plain.generate(prompts, params, use_tqdm=False)]
    proposer = proposer_of(specx)
    proposer.reset_memory()
    rng, bad = random.Random(3), []

    def sometimes():
        if rng.random() >= 0.5:
            return None
        bad.append(rng.choice(list(HOSTILE)))
        return HOSTILE[bad[-1]]

    drafted = draft_with(monkeypatch, proposer, sometimes)
    before = proposer.faults
    outputs = specx.generate(prompts, params, use_tqdm=False)
    assert [list(o.outputs[0].token_ids) for o in outputs] == expected
    assert len(bad) > 2
    assert proposer.faults > before, "one that nobody would have verified is not looked at"
    assert sum(drafted) > 20


def test_a_drafter_that_sleeps_costs_its_time(specx_measuring, plain, monkeypatch):
    """Two seconds of one step: no request fails, no token changes, and drafts come again."""
    params = SamplingParams(temperature=0, max_tokens=96)
    prompts = token_prompts(plain)[8:12]
    expected = [list(o.outputs[0].token_ids) for o in plain.generate(prompts, params, use_tqdm=False)]
    proposer = proposer_of(specx_measuring)
    original, drafted = proposer._draft, []

    def sleepy(*arguments):
        if len(drafted) == 8:
            time.sleep(2.0)  # the fault itself
        drafts = original(*arguments)
        drafted.append(sum(map(len, drafts)))
        return drafts

    monkeypatch.setattr(proposer, "_draft", sleepy)
    before, accepted = proposer.faults, proposer.num_accepted_tokens
    outputs = specx_measuring.generate(prompts, params, use_tqdm=False)
    assert [list(o.outputs[0].token_ids) for o in outputs] == expected
    assert proposer.faults == before
    assert len(drafted) > 8
    assert proposer.num_accepted_tokens > accepted


def test_a_drafter_that_cannot_even_stop_is_replaced(specx, expected, monkeypatch):
    proposer = proposer_of(specx)
    broken = proposer.drafter
    monkeypatch.setattr(broken, "propose", _raise)
    monkeypatch.setattr(broken, "stop", lambda request_id: _raise([], []))
    params = SamplingParams(temperature=0, max_tokens=12)
    outputs = specx.generate(token_prompts(specx)[8:12], params, use_tqdm=False)
    assert [list(o.outputs[0].token_ids) for o in outputs] == expected
    assert proposer.drafter is not broken
    assert proposer.drafter.num_live > 0
