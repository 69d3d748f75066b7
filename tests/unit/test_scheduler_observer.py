"""What the observer makes of a step: who decoded, what was offered and accepted, and whose time it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specx.scheduling.observer import Observer, Outcome


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def scheduled(
    tokens: dict[str, int],
    drafts: dict[str, list[int]] | None = None,
    *,
    new: tuple[str, ...] = (),
    cut: dict[str, int] | None = None,
    n: int = 4,
) -> Any:
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_spec_decode_tokens=drafts or {},
        scheduled_new_reqs=list(new),
        num_invalid_spec_tokens=cut,
        num_spec_tokens_to_schedule=n,
    )


def ran(tokens: dict[str, list[int]]) -> Any:
    return SimpleNamespace(
        sampled_token_ids=list(tokens.values()), req_id_to_index={name: i for i, name in enumerate(tokens)}
    )


def make(clock: Clock, num_passes: Callable[[int], int] = lambda n: 0, *, is_async: bool = False) -> Observer:
    return Observer(num_passes, is_async=is_async, clock=clock)


class Everybody:
    """All requests live."""

    def __contains__(self, name: object) -> bool:
        return True


LIVE = Everybody()


def outcome_of(step: Any, result: Any, live: Container[str] = LIVE) -> Outcome:
    outcome = make(Clock()).observe(step, result, live)
    assert outcome is not None
    return outcome


def test_a_plain_step() -> None:
    outcome = outcome_of(
        scheduled({"a": 5, "b": 3, "c": 1}, {"a": [7, 8, 9, 10], "b": [5, 6]}),
        ran({"c": [1], "a": [7, 8, 3], "b": [1]}),  # the runner's rows are in another order
    )
    assert (outcome.offered, outcome.accepted) == ([4, 2], [2, 0])
    step = outcome.step
    assert (step.num_requests, step.num_draft_tokens, step.num_tokens) == (3, 6, 5)
    assert step.num_prefill_tokens == 0


def test_prompts_are_told_apart() -> None:
    outcome = outcome_of(
        scheduled({"a": 3, "part": 64, "last part": 20}, {"a": [7, 8]}, new=("part",)),
        ran({"a": [7, 8, 9], "part": [], "last part": [4]}),
    )
    step = outcome.step
    assert (step.num_requests, step.num_draft_tokens, step.num_tokens) == (2, 2, 4)
    assert step.num_prefill_tokens == 64 + 19
    assert step.seconds is None
    assert (outcome.offered, outcome.accepted) == ([2], [2])


def test_drafts_that_a_grammar_cut_are_not_rejections() -> None:
    """vLLM verifies them as padding: they cost time, and nobody judged them."""
    outcome = outcome_of(
        scheduled({"a": 5, "b": 5}, {"a": [7, -1, -1, -1], "b": [-1, -1, -1, -1]}, cut={"a": 3, "b": 4}),
        ran({"a": [7, 2], "b": [1]}),
    )
    assert (outcome.offered, outcome.accepted) == ([1], [1])
    assert outcome.step.num_draft_tokens == 8


def test_placeholders_of_async_scheduling_are_drafts() -> None:
    outcome = outcome_of(scheduled({"a": 4}, {"a": [-1, -1, -1]}), ran({"a": [5, 6]}))
    assert (outcome.offered, outcome.accepted) == ([3], [1])


def test_a_request_that_has_ended_costs_time_and_says_nothing() -> None:
    outcome = outcome_of(
        scheduled({"a": 3, "ended": 3}, {"a": [1, 2], "ended": [3, 4]}),
        ran({"a": [1, 2, 3], "ended": [3, 9]}),
        {"a"},
    )
    assert (outcome.offered, outcome.accepted) == ([2], [2])
    assert (outcome.step.num_requests, outcome.step.num_draft_tokens) == (2, 4)


def test_more_tokens_than_drafts_allow_are_no_acceptance() -> None:
    outcome = outcome_of(scheduled({"a": 2}, {"a": [4]}), ran({"a": [4, 5, 6, 7]}))
    assert (outcome.offered, outcome.accepted) == ([1], [1])


@pytest.mark.parametrize(
    ("step", "result"),
    [
        (scheduled({}), ran({})),
        (scheduled({"part": 64}), ran({"part": []})),
        (scheduled({"part": 64}), SimpleNamespace(sampled_token_ids=[], req_id_to_index={"part": 0})),
        (scheduled({"gone": 3}, {"gone": [1, 2]}), ran({})),
    ],
    ids=["empty", "part of a prompt", "nothing sampled", "unknown to the runner"],
)
def test_steps_that_decode_nothing(step: Any, result: Any) -> None:
    assert make(Clock()).observe(step, result, LIVE) is None


def test_time_runs_from_step_to_step() -> None:
    clock = Clock()
    observer = make(clock)
    step, result = scheduled({"a": 1}), ran({"a": [1]})
    seconds = []
    for pause in (5.0, 0.25, 0.5):
        clock.now += pause
        outcome = observer.observe(step, result, LIVE)
        assert outcome is not None
        seconds.append(outcome.step.seconds)
    assert math.isnan(seconds[0])
    assert seconds[1:] == [0.25, 0.5]


def test_nobody_pays_for_waiting() -> None:
    clock = Clock()
    observer = make(clock)
    step, result = scheduled({"a": 1}), ran({"a": [1]})
    observer.observe(step, result, LIVE)
    clock.now += 30
    fresh = observer.observe(scheduled({"b": 9}, new=("b",)), ran({"b": [1]}), LIVE)
    clock.now += 0.25
    after_new = observer.observe(step, result, LIVE)
    clock.now += 30
    observer.observe(scheduled({}), ran({}), LIVE)
    clock.now += 0.25
    after_empty = observer.observe(step, result, LIVE)
    assert fresh is not None
    assert after_new is not None
    assert after_empty is not None
    assert fresh.step.seconds is None
    assert after_new.step.seconds == 0.25
    assert math.isnan(after_empty.step.seconds or 0.0)


def test_a_part_of_a_prompt_takes_its_own_time() -> None:
    clock = Clock()
    observer = make(clock)
    observer.observe(scheduled({"a": 1}), ran({"a": [1]}), LIVE)
    clock.now += 2
    assert observer.observe(scheduled({"b": 64}), ran({"b": []}), LIVE) is None
    clock.now += 0.25
    outcome = observer.observe(scheduled({"a": 1}), ran({"a": [1]}), LIVE)
    assert outcome is not None
    assert outcome.step.seconds == 0.25


@pytest.mark.parametrize("is_async", [False, True])
def test_passes_count_where_their_time_goes(is_async: bool) -> None:
    """With async scheduling the drafts of a step are made in the time of the next one."""
    observer = make(Clock(), lambda n: n or 1, is_async=is_async)
    passes = []
    for n in (4, 2, 0, 3):
        outcome = observer.observe(scheduled({"a": 1}, n=n), ran({"a": [1]}), LIVE)
        assert outcome is not None
        passes.append(outcome.step.num_passes)
    assert passes == ([1, 4, 2, 1] if is_async else [4, 2, 1, 3])
