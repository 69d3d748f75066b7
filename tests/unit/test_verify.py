"""What `specx verify` calls a tie, wrong, not exercised and proved; no engine."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sampling_laws import BROKEN, STANDARD, most_likely, output_law, random_conditional, target_law
from scipy.stats import chi2

from vllm_specx.bench.loop import Counters
from vllm_specx.bench.prompts import Prompt
from vllm_specx.verify import judge, laws
from vllm_specx.verify.engine import Greedy, Sampled
from vllm_specx.verify.judge import BLIND, IDLE, OK, WRONG, SampledLaw, judge_greedy, judge_sampled, summarise
from vllm_specx.verify.report import sentence
from vllm_specx.verify.run import in_turns

DRAFTED = Counters(num_drafts=3, num_draft_tokens=9, num_accepted_tokens=4)
VOCAB, TOP_K, NUM_SAMPLES = 6, 5, 2000  # samples: as by default


# Greedy

PLAIN = Greedy(
    tokens=[[1, 2, 3], [4, 5, 6]],
    tops=[
        [{1: -0.1, 9: -3.0}, {2: -0.7, 8: -0.70005, 7: -0.9}, {3: -0.2}],
        [{4: -0.1}, {5: -0.1, 8: -2.0}, {6: -0.1}],
    ],
    counters=Counters(),
)


def greedy(*tokens, counters=DRAFTED):
    return judge_greedy("ab", PLAIN, Greedy([list(t) for t in tokens], [], counters), epsilon=1e-4)


def test_the_same_tokens():
    cell = greedy((1, 2, 3), (4, 5, 6))
    assert (cell["verdict"], cell["identical"], cell["ties"], cell["wrong"]) == (OK, 2, 0, 0)
    assert cell["num_draft_tokens"] == 9


def test_a_tie_is_none_of_what_follows():
    cell = greedy((1, 8, 99), (4, 5, 6))
    assert (cell["verdict"], cell["identical"], cell["ties"], cell["wrong"]) == (OK, 1, 1, 0)
    assert cell["differences"] == [
        {"id": "a", "position": 1, "plain": 2, "method": 8, "gap": pytest.approx(5e-5), "is_tie": True}
    ]


@pytest.mark.parametrize(
    ("tokens", "gap"),
    [
        ((1, 7, 3), 0.2),  # plain decoding has a tie there, but with another token
        ((9, 2, 3), 2.9),
        ((1, 6, 3), None),  # not among the most likely
        ((1, 2), None),  # too short
    ],
)
def test_wrong(tokens, gap):
    cell = greedy(tokens, (4, 5, 6))
    assert (cell["verdict"], cell["identical"], cell["ties"], cell["wrong"]) == (WRONG, 1, 0, 1)
    assert cell["differences"][0]["gap"] == (None if gap is None else pytest.approx(gap))


def test_without_drafts_nothing_is_proved_but_wrong_is_wrong():
    assert greedy((1, 2, 3), (4, 5, 6), counters=Counters())["verdict"] == IDLE
    assert greedy((1, 6, 3), (4, 5, 6), counters=Counters())["verdict"] == WRONG


# Sampled


def ahead_of(conditional):
    """Log-probabilities of the most likely tokens, in order."""

    def ahead(prefix):
        probs = conditional(prefix)
        ranked = np.argsort(-probs)[: TOP_K + 1]
        return {int(token): float(np.log(probs[token])) for token in ranked}

    return ahead


def drawn(law, seed, counters=DRAFTED):
    tokens, weights = zip(*law.items(), strict=True)
    counts = np.random.default_rng(seed).multinomial(NUM_SAMPLES, weights)
    return Sampled(Counter({t: int(n) for t, n in zip(tokens, counts, strict=True) if n}), counters)


TEMPERATURE, TOP_P = 0.6, 0.95
TARGET = random_conditional(3, VOCAB, concentration=1.0)


def cut(prefix):
    """What TARGET is sampled from."""
    return laws.processed(np.log(TARGET(prefix)), TEMPERATURE, TOP_K, TOP_P)


@pytest.fixture(scope="module")
def law():
    return SampledLaw(ahead_of(TARGET), TEMPERATURE, TOP_P, TOP_K, error=1e-6)


def test_the_law_is_that_of_plain_sampling(law):
    assert law.unsure == set()
    assert law.law == pytest.approx(target_law(cut, 3))


def step_by_step(verifier):
    """Three tokens, the first without a draft, then drafts of one or two tokens: as the engine's are."""
    return output_law(verifier, cut, most_likely(cut), lambda prefix: (0, 2, 1)[len(prefix)], 3)


def test_a_right_sampler_passes_and_each_broken_one_fails_at_this_number_of_samples(law):
    plain = drawn(target_law(cut, 3), seed=1)
    broken = drawn(step_by_step(BROKEN["no residual"]), seed=2)  # what `broken_sampler` does to vLLM
    cell = judge_sampled(law, drawn(step_by_step(STANDARD), seed=3), plain, broken)
    assert cell["verdict"] == OK
    assert cell["samples"] == cell["broken_samples"] == NUM_SAMPLES
    for name in ("no residual", "accept the argmax", "bonus after rejection"):
        cell = judge_sampled(law, drawn(step_by_step(BROKEN[name]), seed=4), plain, broken)
        assert (name, cell["verdict"]) == (name, WRONG)
        assert max(cell["p_value"], cell["p_value_against_plain"]) < laws.ALPHA


def test_a_test_that_cannot_fail_is_no_proof(law):
    right, other = drawn(target_law(cut, 3), seed=5), drawn(target_law(cut, 3), seed=6)
    assert judge_sampled(law, right, other, broken=right)["verdict"] == BLIND
    idle = drawn(target_law(cut, 3), seed=5, counters=Counters())
    assert judge_sampled(law, idle, other, broken=right)["verdict"] == IDLE


def test_plain_sampling_itself_is_tested(law):
    assert judge_sampled(law, drawn(target_law(cut, 3), seed=7))["verdict"] == OK
    assert judge_sampled(law, drawn(step_by_step(BROKEN["no residual"]), seed=8))["verdict"] == WRONG


def test_where_numerics_could_move_an_edge_nothing_is_compared():
    def target(prefix):
        if prefix == (0,):  # 0.9 and then the edge of top_p; 0 and 1 are sure after any other
            return np.array([0.9, 0.06, 0.014, 0.012, 0.01, 0.004])
        return np.array([0.5, 0.47, 0.01, 0.01, 0.006, 0.004])

    law = SampledLaw(ahead_of(target), 1.0, 0.9 / 0.996, TOP_K, error=1e-4)
    assert law.unsure >= {(0,)}
    assert () not in law.unsure
    assert law.law[(0,)] == pytest.approx(0.5 / 0.97)
    assert sum(law.law.values()) == pytest.approx(1.0)
    assert law.counts(Sampled(Counter({(0, 1, 1): 2, (0, 0, 0): 3}), DRAFTED)) == {(0,): 5}


@pytest.mark.parametrize("freedom", [1, 7, 60, 511])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 1.5, 3.0])
def test_the_tail_of_chi_square(freedom, ratio):
    assert laws.chi_square_tail(freedom * ratio, freedom) == pytest.approx(
        chi2.sf(freedom * ratio, freedom), rel=1e-6, abs=1e-300
    )


# All together


def test_the_verdict():
    def cells(**verdicts):
        return [{"method": method, "verdict": verdict} for method, verdict in verdicts.items()]

    assert summarise(cells(none=OK, medusa=OK, lookahead=IDLE)) == OK
    assert summarise(cells(none=OK, medusa=IDLE, lookahead=BLIND)) == IDLE
    assert summarise(cells(none=WRONG, medusa=OK)) == WRONG
    assert summarise([]) == IDLE


def test_the_sentence():
    cell = greedy((1, 2, 3), (4, 8, 6)) | {"part": "greedy", "method": "medusa", "n": 4, "batch": 8}
    assert sentence({"cells": [cell]}) == "WRONG in 1 cell"
    cell = greedy((1, 8, 3), (4, 5, 6)) | {"part": "greedy", "method": "medusa", "n": 4, "batch": 8}
    assert sentence({"cells": [cell, cell | {"verdict": judge.IDLE}]}) == (
        "nothing wrong; 2 outputs and 9 draft tokens compared in 1 cell, 1 tie; 1 cell not exercised"
    )
    assert sentence({"cells": [cell | {"verdict": judge.IDLE}]}) == "nothing was proved; 1 cell not exercised"


def test_prompts_come_from_all_files():
    def rows(*ids):
        return [Prompt(name, ({"role": "user", "content": "?"},), 5, "") for name in ids]

    taken = in_turns({"a": rows("1", "2", "3"), "b": rows("1")}, 3)
    assert [prompt.id for prompt in taken] == ["a/1", "b/1", "a/2"]
