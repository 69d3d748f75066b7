"""Lengths from costs that are measured in service: right output, and a tuner that really learns."""

from __future__ import annotations

import math

import pytest
from engine_prompts import token_prompts
from engines import accepted, proposer_of
from vllm import SamplingParams

# Eight steps at least, were all of it remembered and drafted 16 tokens at a time.
PARAMS = SamplingParams(temperature=0, max_tokens=128)


@pytest.mark.parametrize("batch", [1, 8])
def test_lengths_from_measured_costs(specx_measuring, plain, batch):
    prompts = token_prompts(plain)[8 : 8 + batch]
    expected = plain.generate(prompts, PARAMS, use_tqdm=False)
    proposer = proposer_of(specx_measuring)
    before, costs = accepted(specx_measuring), proposer._policy.costs
    learned = costs.num_learned
    outputs = specx_measuring.generate(prompts, PARAMS, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in expected]
    assert proposer.faults == 0
    assert accepted(specx_measuring) > before
    assert costs.num_learned - learned >= 5
    seconds = costs.seconds(batch, [0, batch, 8 * batch])
    assert 1e-3 < seconds[0] <= seconds[1] <= seconds[2] < 10  # of real steps
    decision = proposer._policy.tuner.last
    assert 1 <= decision.num_requests <= batch
    assert decision.speedup >= 1
    assert math.isfinite(decision.price)


def test_a_batch_of_one_and_one_of_eight_cost_differently(specx_measuring):
    """The first draft tokens of eight requests cost a larger part of a step than those of one."""
    costs = proposer_of(specx_measuring)._policy.costs
    for batch in (1, 8):
        prompts = token_prompts(specx_measuring)[8 : 8 + batch]
        specx_measuring.generate(prompts, PARAMS, use_tqdm=False)
    share = {b: costs.seconds(b, 8 * b) / costs.seconds(b, 0) for b in (1, 8)}
    assert share[8] > share[1]
