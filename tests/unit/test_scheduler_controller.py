"""N within the limits: the token budget while prompts wait, what requests can still use, the ladder; and the loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vllm_specx.metrics.layout import DRAFTERS, LENGTHS, NUM_VALUES, OFFSETS
from vllm_specx.metrics.meter import DraftMeter
from vllm_specx.scheduling.controller import Controller
from vllm_specx.scheduling.methods import Drafting
from vllm_specx.tuner import CostModel

NGRAM = Drafting(is_autoregressive=False, idle_passes=0)
EAGLE = Drafting(is_autoregressive=True, idle_passes=1)
MUCH = 1000


def make(drafting: Drafting = NGRAM, *, max_n: int = 8, **options: Any) -> Controller:
    defaults = {"candidates": range(max_n + 1), "token_budget": 256, "max_draft_share": 0.5}
    return Controller(drafting, CostModel(), max_n=max_n, **(defaults | options))


def always(controller: Controller, n: int) -> Controller:
    """Let the tuner choose n."""
    controller.tuner.choose = lambda num_requests: n  # type: ignore[method-assign]
    return controller


@pytest.mark.parametrize(
    ("num_requests", "has_prefills", "n"),
    [
        (16, False, 8),
        (16, True, 8),
        (17, True, 7),
        (32, True, 4),
        (100, True, 1),
        (129, True, 0),
        (129, False, 8),
    ],
)
def test_drafts_leave_prompts_their_share(num_requests: int, has_prefills: bool, n: int) -> None:
    assert always(make(), 8).choose(num_requests, MUCH, has_prefills=has_prefills) == n


@pytest.mark.parametrize(("share", "n"), [(0.0, 0), (0.25, 2), (1.0, 8)])
def test_the_share_is_an_option(share: float, n: int) -> None:
    assert always(make(max_draft_share=share), 8).choose(32, MUCH, has_prefills=True) == n


def test_drafts_never_take_more_than_their_share() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        budget, batch, share = int(rng.integers(1, 4096)), int(rng.integers(1, 512)), float(rng.random())
        controller = always(make(token_budget=budget, max_draft_share=share), int(rng.integers(9)))
        assert batch * controller.choose(batch, MUCH, has_prefills=True) <= share * budget


@pytest.mark.parametrize(("num_useful", "n"), [(-2, 0), (0, 0), (1, 1), (5, 4), (7, 4), (8, 8), (9, 8)])
def test_no_more_than_requests_can_use_and_only_rungs(num_useful: int, n: int) -> None:
    controller = always(make(candidates=[0, 1, 2, 4, 8]), 8)
    assert controller.choose(4, num_useful, has_prefills=False) == n
    assert controller.n == n


def test_nobody_decodes() -> None:
    assert make().choose(0, 0, has_prefills=True) == 0


def test_passes() -> None:
    assert [NGRAM.num_passes(n) for n in (0, 1, 5)] == [0, 0, 0]
    assert [EAGLE.num_passes(n) for n in (0, 1, 5)] == [1, 1, 5]


class Engine:
    """A world with a price per draft token and per pass, on its own clock."""

    def __init__(self, controller: Controller, *, per_token: float, per_pass: float = 0.0) -> None:
        self.controller = controller
        self.now = 0.0
        self.per_token, self.per_pass = per_token, per_pass
        controller._observer._clock = lambda: self.now
        self.n = 0  # drafts to verify

    def run(self, batch: int, accept: float, num_steps: int, rng: np.random.Generator) -> list[int]:
        chosen = []
        for _ in range(num_steps):
            n = self.controller.choose(batch, MUCH, has_prefills=False)
            names = [str(i) for i in range(batch)]
            accepted = np.minimum(rng.geometric(1 - accept, batch) - 1, self.n)
            passes = max(n, 1) * self.per_pass
            self.now += (0.02 + self.per_token * batch * self.n + passes) * float(np.exp(0.05 * rng.normal()))
            self.controller.learn(
                SimpleNamespace(
                    num_scheduled_tokens=dict.fromkeys(names, 1 + self.n),
                    total_num_scheduled_tokens=batch * (1 + self.n),
                    scheduled_spec_decode_tokens={name: [0] * self.n for name in names if self.n},
                    scheduled_new_reqs=[],
                    num_invalid_spec_tokens=None,
                    num_spec_tokens_to_schedule=n,
                ),
                SimpleNamespace(
                    sampled_token_ids=[[0] * (1 + int(a)) for a in accepted],
                    req_id_to_index={name: i for i, name in enumerate(names)},
                ),
                names,
            )
            self.n = n
            chosen.append(n)
        return chosen


@pytest.mark.parametrize("drafting", [NGRAM, EAGLE], ids=["ngram", "eagle"])
def test_it_finds_what_pays(drafting: Drafting) -> None:
    rng = np.random.default_rng(1)
    engine = Engine(make(drafting), per_token=0.001, per_pass=0.0005 if drafting is EAGLE else 0.0)
    assert np.median(engine.run(2, 0.9, 200, rng)[100:]) >= 6  # nearly free, and nearly all hold
    assert np.mean(engine.run(2, 0.02, 300, rng)[100:]) < 1  # hopeless
    assert np.median(engine.run(2, 0.9, 300, rng)[200:]) >= 6  # back


def test_what_vllms_own_drafters_do_is_counted() -> None:
    page = np.zeros(NUM_VALUES)
    controller = make(EAGLE, drafter="eagle3", meter=DraftMeter(page))
    per_pass = 0.002
    engine = Engine(controller, per_token=0.001, per_pass=per_pass)
    chosen = engine.run(2, 0.9, 200, np.random.default_rng(1))
    count = {name: page[at:] for name, at in OFFSETS.items()}
    judged = chosen[:-1]  # the last are not verified yet
    assert count["specx_draft_length"][len(LENGTHS) + 1] == 2 * sum(chosen)
    assert count["specx_draft_tokens"][: max(judged)].sum() == 2 * sum(judged)
    assert count["specx_drafts"][DRAFTERS.index("eagle3")] == 2 * np.count_nonzero(judged)
    assert count["specx_drafter_accepted_tokens"][DRAFTERS.index("eagle3")] > 0
    promised, kept = (
        count["specx_reach_promised_tokens"][:10].sum(),
        count["specx_reach_accepted_tokens"][:10].sum(),
    )
    assert promised == pytest.approx(kept, rel=0.1)
    assert count["specx_plain_seconds"][0] > count["specx_step_seconds"][0]  # it gained
    passes = sum(max(n, 1) for n in chosen)
    assert count["specx_draft_seconds"][0] == pytest.approx(per_pass * passes, rel=0.5)


def test_a_crowd_turns_drafts_off() -> None:
    rng = np.random.default_rng(2)
    engine = Engine(make(), per_token=0.0005)
    assert np.median(engine.run(1, 0.6, 200, rng)[100:]) >= 3
    assert np.mean(engine.run(128, 0.6, 200, rng)[100:]) < 1


def test_the_tuner_of_a_drafter_without_passes_expects_none() -> None:
    controller = make()
    controller.choose(1, MUCH, has_prefills=False)
    assert list(controller.tuner._passes) == [0] * 9
    assert controller.last is not None
    assert "requests=1" in str(controller.last)


def test_rows_of_several_lengths_are_judged_by_their_own() -> None:
    """Of a short draft that held, nothing is known about later positions."""
    from vllm_specx.tuner import Step

    controller = make(max_n=4)
    for _ in range(100):
        controller.tuner.update(Step(2, 5, 6, None), [1, 4], [1, 4])
    assert controller.tuner.acceptance.mean.min() > 0.9
