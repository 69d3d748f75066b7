"""The replay loop against hand-computed traces, and the peers against plain restatements of what they do."""

import random

import numpy as np
import pytest

from drafters import Draft
from drafters.replay import Reliability, Trace, replay
from vllm_specx.bench.errors import BenchError
from vllm_specx.replay import ReplaySettings, run_replay
from vllm_specx.replay.peers import Oracle, PromptLookup

OUTPUT = [1, 2, 3, 4, 5, 6]
SCRIPT = (([2, 3, 9], [0.9, 0.8, 0.75]), ([], []), ([6, 7, 8], [0.85, 0.3, 0.05]))


class Scripted:
    """Gives prepared drafts and notes everything that it is told."""

    def __init__(self, script):
        self.script, self.calls = list(script), []

    def start(self, request_id, prompt_ids):
        self.calls.append(("start", request_id, list(prompt_ids)))

    def observe(self, request_id, token_ids):
        self.calls.append(("observe", request_id, list(token_ids)))

    def propose(self, request_ids, max_n):
        self.calls.append(("propose", *request_ids, max_n))
        token_ids, reach = self.script.pop(0)
        return [Draft(np.array(token_ids, dtype=np.int32), np.array(reach))]

    def stop(self, request_id):
        self.calls.append(("stop", request_id))


class Lengths:
    """A rule with prepared answers."""

    def __init__(self, *lengths):
        self.left, self.updates = list(lengths), []

    def lengths(self, reaches):
        assert len(reaches) == 1
        return [self.left.pop(0)]

    def update(self, num_tokens, num_draft_tokens):
        self.updates.append((num_tokens, num_draft_tokens))


def test_whole_drafts_are_verified_and_paid_for_beyond_the_end():
    drafter = Scripted(SCRIPT)
    tally = replay(drafter, [Trace("a", [7], OUTPUT)], max_n=4, alpha=0.1, draft_cost=0.5)
    assert drafter.calls == [
        ("start", "a", [7]),
        ("observe", "a", [1]),
        ("propose", "a", 4),
        ("observe", "a", [2, 3, 4]),
        ("propose", "a", 4),
        ("observe", "a", [5]),
        ("propose", "a", 4),
        ("observe", "a", [6]),
        ("stop", "a"),
    ]
    counts = (tally.num_steps, tally.num_tokens, tally.num_draft_tokens, tally.num_accepted)
    assert counts == (3, 5, 6, 3)
    assert tally.cost == pytest.approx(3 * 1.5 + 6 * 0.1)
    assert tally.speedup == pytest.approx(5 / 5.1)
    assert tally.seconds > 0
    assert tally.reliability.error is None


def test_a_rule_cuts_drafts_and_learns_what_they_earned():
    rule = Lengths(1, 0, 1, 2)
    drafter = Scripted((*SCRIPT[:2], ([5, 6], [0.5, 0.4]), SCRIPT[2]))
    tally = replay(drafter, [Trace("a", [], OUTPUT)], max_n=9, alpha=1.0, rule=rule)
    # 1 of 2 3 9 is offered: 2 holds, 3 is the bonus; nothing: 4; 5 of 5 6 holds, 6 is the bonus and the end.
    assert rule.updates == [(2, 1), (1, 0), (2, 1)]
    assert rule.left == [2]
    assert (tally.num_steps, tally.num_tokens, tally.num_draft_tokens, tally.num_accepted) == (3, 5, 2, 2)
    assert tally.cost == 5.0
    assert tally.reliability.error == pytest.approx((0.1 + 0.5) / 2)


def test_calibration_error_by_hand():
    tally = replay(Scripted(SCRIPT), [Trace("a", [], OUTPUT)], max_n=9, alpha=0.1, rule=Lengths(3, 0, 3))
    # Bins 9: 0.9 held. 8: 0.8 and 0.85 held. 7: 0.75 did not, nor did 0.3 and 0.05 beyond the end.
    assert tally.reliability.error == pytest.approx((0.1 + 0.35 + 0.75 + 0.3 + 0.05) / 6)


def test_reliability_within_a_bin_and_at_its_edges():
    reliability = Reliability()
    assert reliability.error is None
    reliability.add(np.empty(0), 0)
    assert reliability.error is None
    reliability.add(np.array([0.55, 0.55]), 1)  # one bin: half of them held
    assert reliability.error == pytest.approx(0.05)
    reliability.add(np.array([1.0, 0.0]), 1)  # the first and the last bin, both exact
    assert reliability.error == pytest.approx(0.05 / 2)


def test_brier_skill_by_hand():
    reliability = Reliability()
    assert reliability.skill is None
    reliability.add(np.array([0.9, 0.5]), 2)
    assert reliability.skill is None  # all held: there is nothing to tell apart
    reliability.add(np.array([0.5, 0.1]), 0)
    # squares .01 + .25 + .25 + .01, against 4 * .25 of the base rate 1/2
    assert reliability.skill == pytest.approx(1 - 0.52)


def test_outputs_without_a_step_are_no_step():
    drafter = Scripted([])
    tally = replay(drafter, [Trace("a", [1], []), Trace("b", [1], [5])], max_n=4, alpha=0.1)
    assert tally.num_steps == 0
    assert [call[0] for call in drafter.calls] == ["start", "observe", "stop"] * 2


def looked_up(text, lo, hi, n):
    """Prompt lookup as a scan: the first place where the last tokens stood before, longest context first."""
    for size in range(hi, lo - 1, -1):
        for end in range(size, len(text)):
            if text[end - size : end] == text[-size:]:
                return text[end : end + n]
    return []


@pytest.mark.parametrize(("lo", "hi", "n"), [(2, 4, 5), (1, 1, 3), (1, 3, 9), (3, 3, 1)])
def test_prompt_lookup_against_a_scan(lo, hi, n):
    rng = random.Random(lo * 100 + hi * 10 + n)
    drafted = 0
    for symbols in (2, 5, 9):
        drafter = PromptLookup(lo=lo, hi=hi, n=n)
        text = [rng.randrange(symbols) for _ in range(rng.randrange(6))]
        drafter.start("a", text)
        for _ in range(120):
            new = [rng.randrange(symbols) for _ in range(rng.randrange(1, 4))]
            drafter.observe("a", new)
            text += new
            max_n = rng.randrange(1, 9)
            (draft,) = drafter.propose(["a"], max_n)
            assert draft.token_ids.tolist() == looked_up(text, lo, hi, min(n, max_n))
            assert draft.reach.tolist() == [0.0] * len(draft)
            drafted += len(draft)
    assert drafted > 100


def test_peers_keep_requests_apart():
    lookup = PromptLookup(lo=1, hi=2, n=3)
    oracle = Oracle(n=3, outputs=[[1, 2, 3, 4, 5], [8, 9]])
    for drafter in (lookup, oracle):
        drafter.start("a", [1, 2, 3, 1])
        drafter.start("b", [8, 9, 8])
        drafter.observe("a", [2])
        drafter.observe("b", [9])
    for drafter, wanted in ((lookup, [[8], [3, 1, 2]]), (oracle, [[9], [2, 3, 4]])):
        drafts = drafter.propose(["b", "a"], [1, 3])
        assert [draft.token_ids.tolist() for draft in drafts] == wanted
        drafter.stop("a")
        with pytest.raises(KeyError):
            drafter.propose(["a"], 1)


TRACES = [Trace("a", [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])]


def numbers(drafter="suffix-tree", traces=TRACES, **settings):
    result = run_replay(ReplaySettings(drafter=drafter, **settings), traces)
    assert result.pop("us_per_step") >= 0
    return result


def test_prompt_lookup_numbers_by_hand():
    # "6 1" is new: one token, 2. After "1 2" five are drafted, 3 4 5 6 1, of which four hold and end the output.
    assert numbers("prompt-lookup") == {
        "steps": 2,
        "tokens_per_step": 2.5,
        "draft_per_step": 2.5,
        "accept_rate": 0.8,
        "speedup": 2.0,
        "calibration_error": None,
        "brier_skill": None,
    }
    assert numbers("prompt-lookup", draft_cost=0.5)["speedup"] == round(5 / 3.5, 3)
    assert numbers("prompt-lookup", options={"n": 2})["draft_per_step"] == round(4 / 3, 2)
    assert numbers("prompt-lookup", max_n=2)["draft_per_step"] == round(4 / 3, 2)


def test_oracle_numbers_by_hand():
    # Two drafted and one bonus, then the two that are left: 4 draft tokens in 2 steps.
    assert numbers("oracle", options={"n": 2}, alpha=0.25) == {
        "steps": 2,
        "tokens_per_step": 2.5,
        "draft_per_step": 2.0,
        "accept_rate": 1.0,
        "speedup": round(5 / 3, 3),
        "calibration_error": None,
        "brier_skill": None,
    }
    assert numbers("oracle")["steps"] == 1
    assert numbers("oracle", max_n=3)["draft_per_step"] == 2.0  # 3, then the 1 that is left


def test_suffix_tree_goes_by_the_price():
    rng = random.Random(7)
    answer = [rng.randrange(1000) for _ in range(60)]
    traces = [Trace(str(i), [rng.randrange(1000) for _ in range(5)], answer) for i in range(4)]
    cheap, dear = numbers(traces=traces, alpha=0.02), numbers(traces=traces, alpha=0.4)
    assert cheap["speedup"] > 1.5
    assert cheap["draft_per_step"] > dear["draft_per_step"] > 0
    assert 0 <= cheap["calibration_error"] <= 1
    # At a price above any reach nothing is drafted, and nothing can be judged.
    assert numbers(traces=traces, alpha=50.0) == {
        "steps": 4 * 59,
        "tokens_per_step": 1.0,
        "draft_per_step": 0.0,
        "accept_rate": 0.0,
        "speedup": 1.0,
        "calibration_error": None,
        "brier_skill": None,
    }


def test_ids_may_repeat():
    assert numbers("oracle", traces=TRACES * 2)["steps"] == 2
    assert numbers("prompt-lookup", traces=TRACES * 2)["steps"] == 4
    assert numbers(traces=TRACES * 2)["steps"] <= 10


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"drafter": "sufix-tree"}, ["'sufix-tree'", "did you mean 'suffix-tree'?", "oracle"]),
        ({"alpha": -0.1}, ["--alpha", "0 or more", "-0.1"]),
        ({"alpha": float("nan")}, ["--alpha", "nan"]),
        ({"draft_cost": float("inf")}, ["--draft-cost", "inf"]),
        ({"max_n": 0}, ["--max-n", "[1, 128]", "got 0"]),
        ({"max_n": 129}, ["--max-n", "[1, 128]", "got 129"]),
        ({"options": {"n": 3}}, ["suffix-tree takes none", "'n'"]),
        ({"drafter": "arctic", "options": {"dept": 3}}, ["'dept'", "did you mean 'depth'?", "min_prob"]),
        ({"drafter": "arctic", "options": {"depth": 0}}, ["depth", "whole number", "got 0"]),
        ({"drafter": "arctic", "options": {"depth": 2.5}}, ["depth", "whole number", "2.5"]),
        ({"drafter": "arctic", "options": {"cached": True}}, ["cached", "true"]),
        ({"drafter": "arctic", "options": {"min_prob": float("nan")}}, ["min_prob", "[0, 1]", "NaN"]),
        ({"drafter": "arctic", "options": {"factor": "2"}}, ["factor", "a number", '"2"']),
        ({"drafter": "oracle", "options": {"n": None}}, ["n must be", "null"]),
        ({"drafter": "oracle", "options": {"n": 33}}, ["n 33", "--max-n 32"]),
        ({"drafter": "prompt-lookup", "options": {"lo": 5}}, ["lo 5", "hi 4"]),
    ],
)
def test_wrong_settings(settings, said):
    with pytest.raises(BenchError) as caught:
        run_replay(ReplaySettings(**settings), TRACES)
    for part in said:
        assert part in str(caught.value)
