"""The suffix-tree drafter's contract: what it accepts, refuses, drafts and keeps apart."""

import random
from typing import Any

import numba
import numpy as np
import pytest

from drafters import Draft, SuffixTreeDrafter
from drafters import _index_kernels as kernels
from drafters.memory import BYTES_PER_TOKEN, MIN_TOKENS

# Without the JIT, wrapping 64-bit hashes warn; the kernels rely on the wrap.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

SMALL = MIN_TOKENS * BYTES_PER_TOKEN


def new_drafter(**options: Any) -> SuffixTreeDrafter:
    return SuffixTreeDrafter(**({"memory_bytes": SMALL, "min_reach": 0.0} | options))


def draft_ids(drafter: SuffixTreeDrafter, request_id: object, max_n: int = 32) -> list[int]:
    (draft,) = drafter.propose([request_id], max_n)
    return draft.token_ids.tolist()


@pytest.mark.parametrize(
    ("token_ids", "error"),
    [
        ([-1], ValueError),
        ([3, -(2**40)], ValueError),
        ([2**31 - 1], ValueError),
        ([2**31], ValueError),
        ([2**63], ValueError),
        ([[1, 2], [3, 4]], ValueError),
        (7, ValueError),
        ([1.0, 2.0], TypeError),
        ([2**70], TypeError),
        ([True], TypeError),
        (["a"], TypeError),
        ([None], TypeError),
    ],
)
def test_invalid_tokens_are_refused_and_change_nothing(token_ids: Any, error: type[Exception]) -> None:
    drafter = new_drafter()
    with pytest.raises(error):
        drafter.start("bad", token_ids)
    assert drafter.num_live == 0
    drafter.start("good", [1, 2, 3, 1, 2])
    with pytest.raises(error):
        drafter.observe("good", token_ids)
    assert draft_ids(drafter, "good", 3) == [3, 1, 2]


@pytest.mark.parametrize(
    "token_ids",
    [
        [4, 5, 4],
        (4, 5, 4),
        np.array([4, 5, 4], np.uint16),
        np.array([4, 0, 5, 0, 4])[::2],
        np.array([4, 5, 4], ">i8"),
    ],
)
def test_any_integer_sequence_is_accepted(token_ids: Any) -> None:
    drafter = new_drafter()
    drafter.start("a", token_ids)
    assert draft_ids(drafter, "a", 2) == [5, 4]
    drafter.observe("a", token_ids[1:])
    assert draft_ids(drafter, "a", 1) == [5]


def test_the_extreme_ids_are_tokens_like_any_other() -> None:
    drafter = new_drafter()
    drafter.start("a", [2**31 - 2, 0, 2**31 - 2])
    assert draft_ids(drafter, "a", 3) == [0, 2**31 - 2, 0]


def test_the_callers_buffer_may_change_after_the_call() -> None:
    drafter = new_drafter()
    buffer = np.array([1, 2, 3, 1], dtype=np.int32)
    drafter.start("a", buffer)
    buffer[:] = 9
    step = np.array([2], dtype=np.int32)
    drafter.observe("a", step)
    step[:] = 9
    assert draft_ids(drafter, "a", 3) == [3, 1, 2]


def test_requests_that_are_not_live_are_refused() -> None:
    drafter = new_drafter()
    with pytest.raises(KeyError, match="start it first"):
        drafter.observe("a", [1])
    with pytest.raises(KeyError, match="start it first"):
        drafter.propose(["a"], 4)
    with pytest.raises(KeyError, match="start it first"):
        drafter.stop("a")
    drafter.start("a", [1])
    drafter.stop("a")
    with pytest.raises(KeyError, match="start it first"):
        drafter.stop("a")


def test_starting_a_live_request_is_refused_and_keeps_it() -> None:
    drafter = new_drafter()
    drafter.start("a", [1, 2, 1])
    with pytest.raises(ValueError, match="already live"):
        drafter.start("a", [3])
    assert draft_ids(drafter, "a", 1) == [2]
    assert drafter.num_live == 1


def test_an_id_that_comes_back_starts_from_its_new_prompt() -> None:
    drafter = new_drafter()
    drafter.start("a", [1, 2, 3] * 5, namespace=None)
    assert draft_ids(drafter, "a")
    drafter.stop("a")
    drafter.start("a", [1, 2], namespace=None)
    assert draft_ids(drafter, "a") == []
    drafter.observe("a", [7, 1, 2])
    assert set(draft_ids(drafter, "a")) == {7, 1, 2}


@pytest.mark.parametrize("prompt", [[], [5]])
def test_a_prompt_too_short_to_repeat_drafts_nothing(prompt: list[int]) -> None:
    drafter = new_drafter()
    drafter.start("a", prompt)
    assert draft_ids(drafter, "a") == []
    drafter.observe("a", [])
    assert draft_ids(drafter, "a") == []
    drafter.observe("a", [6, 5, 6])
    assert draft_ids(drafter, "a", 1) == [5]


def test_max_n_limits_each_row() -> None:
    drafter = new_drafter(max_n=6)
    for request in "abc":
        drafter.start(request, [1, 2, 3, 1, 2, 3])
    assert [len(d) for d in drafter.propose("abc", [0, 2, 50])] == [0, 2, 6]
    assert [len(d) for d in drafter.propose("abc", np.int64(4))] == [4, 4, 4]
    assert [len(d) for d in drafter.propose("abc", 0)] == [0, 0, 0]


@pytest.mark.parametrize("max_n", [-1, [1, -1], [1], [1, 2, 3], [[1, 2]], []])
def test_a_max_n_that_does_not_fit_the_batch_is_refused(max_n: Any) -> None:
    drafter = new_drafter()
    drafter.start("a", [1, 1])
    drafter.start("b", [1, 1])
    with pytest.raises(ValueError):
        drafter.propose(["a", "b"], max_n)


def test_an_empty_batch_gets_an_empty_answer() -> None:
    drafter = new_drafter()
    assert drafter.propose([], 4) == []
    assert drafter.propose([], []) == []


def test_repeated_requests_are_refused() -> None:
    drafter = new_drafter()
    drafter.start("a", [1, 1])
    with pytest.raises(ValueError, match="repeated"):
        drafter.propose(["a", "a"], 4)


@pytest.mark.parametrize(
    "options",
    [
        {"max_n": 0},
        {"min_reach": -0.1},
        {"min_reach": 1.1},
        {"memory_bytes": -1},
        {"memory_bytes": SMALL - 1},
        {"ttl": 0},
        {"ttl": -1.0},
        {"ttl": float("nan")},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        SuffixTreeDrafter(**options)


def test_rows_are_requests_not_positions() -> None:
    """Four requests over disjoint alphabets, the second ends early, a fifth takes its slot."""
    rng = random.Random(0)
    drafter = new_drafter()
    live = [0, 1, 2, 3]
    drafted = dict.fromkeys(range(5), 0)
    for request in live:
        drafter.start(request, [100 * request + rng.randrange(4) for _ in range(8)], namespace=None)
    for step in range(60):
        if step == 20:
            drafter.stop(1)
            drafter.start(4, [400, 401], namespace=None)
            live = [3, 4, 0, 2]
        rng.shuffle(live)
        for request, draft in zip(live, drafter.propose(live, 8), strict=True):
            assert all(token // 100 == request for token in draft.token_ids.tolist())
            drafted[request] += len(draft)
            drafter.observe(request, [100 * request + rng.randrange(4) for _ in range(rng.randint(0, 3))])
    assert all(drafted.values())


def test_memory_lends_finished_answers_to_later_requests() -> None:
    drafter = new_drafter()
    drafter.start("a", [1, 2])
    drafter.observe("a", [3, 4, 5, 6])
    drafter.stop("a")
    drafter.start("b", [9, 1, 2])  # the end of the prompt is the context of the answer's beginning
    assert draft_ids(drafter, "b") == [3, 4, 5, 6]
    drafter.start("c", [4])
    assert draft_ids(drafter, "c") == [5, 6]
    drafter.clear()
    assert draft_ids(drafter, "b") == []


def test_a_request_without_a_namespace_neither_reads_nor_writes_memory() -> None:
    drafter = new_drafter()
    drafter.start("a", [1, 2])
    drafter.observe("a", [3, 4, 5, 6])
    drafter.stop("a")
    before = [array.copy() for array in drafter.memory.ring.store]
    drafter.start("private", [1, 2, 3], namespace=None)
    drafter.start("public", [1, 2, 3])
    private, public = drafter.propose(["private", "public"], 8)
    assert private.token_ids.tolist() == []
    assert public.token_ids.tolist() == [4, 5, 6]
    drafter.observe("private", [7, 8, 7, 8, 9])
    drafter.stop("private")
    assert drafter.memory.num_documents == 1
    assert all(np.array_equal(a, b) for a, b in zip(before, drafter.memory.ring.store, strict=True))
    drafter.start("reader", [7, 8])
    assert draft_ids(drafter, "reader") == []


def test_memory_of_zero_bytes_keeps_nothing() -> None:
    drafter = new_drafter(memory_bytes=0)
    drafter.start("a", [1, 2])
    drafter.observe("a", [3, 4, 5])
    drafter.stop("a")
    assert drafter.memory.num_tokens == drafter.memory.num_documents == 0
    drafter.start("b", [1, 2])
    assert draft_ids(drafter, "b") == []


def test_a_request_that_answered_nothing_enters_no_memory() -> None:
    drafter = new_drafter()
    drafter.start("a", list(range(50)))
    drafter.stop("a")
    assert drafter.memory.num_documents == 0


def test_drafts_are_copies() -> None:
    drafter = new_drafter()
    drafter.start("a", [1, 2, 3, 1, 2])
    (draft,) = drafter.propose(["a"], 4)
    expected = draft.token_ids.tolist(), draft.reach.tolist()
    draft.token_ids[:] = 99
    draft.reach[:] = 99.0
    drafter.observe("a", [3, 1])  # judged by what was drafted, not by what the caller made of it
    assert drafter.propose(["a"], 0)[0].token_ids.size == 0
    prior, weights = drafter.calibration.prior, drafter.calibration.model[0]
    assert (weights >= prior).all()
    assert (weights > prior).any()
    drafter.stop("a")
    drafter.clear()
    drafter.start("a", [1, 2, 3, 1, 2])
    (again,) = drafter.propose(["a"], 4)
    assert (again.token_ids.tolist(), again.reach.tolist()) == expected


def test_a_period_goes_on_past_the_end_of_the_text() -> None:
    drafter = new_drafter()
    drafter.start("a", [1, 2, 3, 1, 2])
    assert draft_ids(drafter, "a") == ([3, 1, 2] * 11)[:32]


def test_the_longer_context_wins() -> None:
    drafter = new_drafter()
    drafter.start("a", [5, 6, 7, 8, 1, 7, 9, 1, 7, 9, 1, 5, 6, 7])
    assert draft_ids(drafter, "a", 1) == [8]


def test_the_place_that_the_last_draft_was_read_from_outvotes_a_newer_one() -> None:
    gap = list(range(100, 100 + 2 * kernels.NEAR))
    text = [1, 2, 3, 4, *gap, 9, 3, 5, *[token + 100 for token in gap], 1]
    reader, control = new_drafter(), new_drafter()
    reader.start("a", text)
    assert draft_ids(reader, "a", 3) == [2, 3, 4]
    reader.observe("a", [8, 3])  # the draft was wrong, yet the text goes on beside where it was read
    control.start("a", [*text, 8, 3])
    assert draft_ids(control, "a", 1) == [5]
    assert draft_ids(reader, "a", 1) == [4]
    reader.stop("a")
    reader.clear()
    reader.start("a", [*text, 8, 3])  # a request begins without such a place
    assert draft_ids(reader, "a", 1) == [5]


def test_reach_falls_within_the_unit_interval_and_ends_at_min_reach() -> None:
    rng = random.Random(1)
    drafter = new_drafter(min_reach=0.2)
    drafter.start("a", [rng.randrange(6) for _ in range(100)])
    seen: list[Draft] = []
    for _ in range(200):
        (draft,) = drafter.propose(["a"], 32)
        seen.append(draft)
        drafter.observe("a", [*draft.token_ids[: rng.randint(0, len(draft))], rng.randrange(6)])
    for draft in seen:
        assert draft.reach.shape == draft.token_ids.shape == (len(draft),)
        assert (np.diff(draft.reach) <= 0.0).all()
        assert ((draft.reach >= 0.2) & (draft.reach <= 1.0)).all()
    assert {len(d) for d in seen} >= {1, 2, 3}


def test_texts_outlive_a_larger_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drafters._live_store.FIRST_TOKENS", 512)
    drafter = new_drafter()
    before = drafter.num_bytes
    drafter.start("a", [1, 2, 3, 4, 1, 2])
    assert draft_ids(drafter, "a", 2) == [3, 4]
    for request in range(8):
        drafter.start(request, [5] * 500)
    drafter.propose(range(8), 1)
    assert drafter.num_bytes > before
    drafter.observe("a", [3])
    assert draft_ids(drafter, "a", 2) == [4, 1]


def test_nothing_leaks_over_a_thousand_requests() -> None:
    rng = random.Random(2)
    drafter = new_drafter()
    sizes = []
    cycles = 200 if numba.config.DISABLE_JIT else 1000
    for cycle in range(cycles):
        request = f"r{cycle % 3}"
        drafter.start(request, [rng.randrange(50) for _ in range(rng.choice([0, 3, 300]))])
        drafter.observe(request, [rng.randrange(50)] * rng.choice([1, 20, 600]))  # the long ones grow
        drafter.propose([request], 4)
        drafter.stop(request)
        if cycle in (99, cycles - 1):
            sizes.append((drafter.num_bytes, drafter._live.used, len(drafter._slots)))
    assert sizes[0] == sizes[1]
    assert drafter.num_live == 0
    assert not drafter._pending
    assert drafter.memory.num_bytes <= SMALL
