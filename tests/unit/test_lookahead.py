"""Lookahead: what enters the pool, what is drafted from it, and that nothing crosses from one tenant to another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drafters import FallbackDrafter, LookaheadDrafter, SuffixTreeDrafter
from drafters import _lookahead_kernels as kernels
from drafters._lookahead_prior import WEIGHTS

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # hashes wrap


def new_drafter(**options: Any) -> LookaheadDrafter:
    return LookaheadDrafter(**({"min_reach": 0.0, "max_n": 8} | options))


def draft(drafter: LookaheadDrafter, request: str = "a", n: int = 8) -> list[int]:
    return drafter.propose([request], n)[0].token_ids.tolist()


def test_every_feature_has_a_place_and_a_prior() -> None:
    assert [len(group) for group in WEIGHTS] == list(kernels.GROUP_SIZES[: kernels.NUM_FITTED])
    assert [sum(kernels.GROUP_SIZES[:g]) for g in range(kernels.NUM_GROUPS)] == kernels.OFFSETS.tolist()


def test_an_ngram_that_the_target_wrote_goes_on() -> None:
    drafter = new_drafter(ngram=4)
    drafter.start("a", [9])
    drafter.observe("a", [1, 2, 3, 4, 5, 1, 2])
    # After (1, 2): 3 4 5, of which an n-gram of four holds no more; then what followed 5, and so on around.
    assert draft(drafter) == [3, 4, 5, 1, 2, 3, 4, 5]


def test_the_longest_key_wins_and_then_the_newest() -> None:
    drafter = new_drafter(ngram=2)
    drafter.start("a", [])
    drafter.observe("a", [1, 2, 3, 7, 2, 4, 8, 2, 5, 1, 2])
    assert draft(drafter, n=1) == [3]  # (1, 2) was followed by 3 once; 2 by 5 last
    drafter.observe("a", [6, 2])
    assert draft(drafter, n=1) == [6]  # (6, 2) is new: 2 was followed by 6 last
    drafter.start("b", [])
    drafter.observe("b", [1, 2, 1, 3, 1])
    assert draft(drafter, "b", 1) == [3]


def test_candidates_of_a_key_are_few() -> None:
    """The oldest of a bucket goes: with one candidate, what followed first is forgotten."""
    for candidates, known in ((1, [3]), (2, [2, 3])):
        drafter = new_drafter(ngram=2, candidates=candidates, pool_ngrams=1 << 16)
        drafter.start("a", [])
        drafter.observe("a", [1, 2, 8, 1, 3, 9])
        table = drafter._tables[drafter._pool[drafter._slot_of["a"]]]
        drafter.propose(["a"], 0)
        hashed = kernels._hash(np.array([1], dtype=np.int32), 1, 1, drafter._seed[drafter._slot_of["a"]])
        bucket = table[(int(hashed) >> 32) & (len(table) - 1)]
        found = sorted(record[kernels.RECORD] for record in bucket if record[0] == 1)
        assert set(known) <= set(found)
        assert len(found) <= candidates


def test_the_prompt_is_the_context_of_what_comes_and_enters_the_pool_on_request() -> None:
    for from_prompt in (False, True):
        drafter = new_drafter(from_prompt=from_prompt)
        drafter.start("a", [1, 2, 3, 4, 1])
        assert (draft(drafter, n=1) == [2]) == from_prompt
        drafter.observe("a", [7, 4, 1])
        assert draft(drafter, n=1) == [7]  # (4, 1) was followed by 7, across the end of the prompt


def test_choices_after_a_rejection_are_ngrams_and_the_next_guess() -> None:
    drafter = new_drafter(ngram=3)
    drafter.start("a", [])
    drafter.observe("a", [1, 2, 3, 4, 1, 2])
    assert draft(drafter, n=4) == [3, 4, 1, 2]
    # The target said 3, then 9 in the place of 4; had 4 been right, 5 after it, 6 after 1 and 7 after 2.
    drafter.verified("a", [3, 9, 5, 6, 7])
    drafter.observe("a", [3, 9])
    assert draft(drafter) == [5, 6, 7]  # nothing follows 9 in the pool: the shifted Jacobi iterate
    # What the target said after (3, 4) beyond the rejection is an n-gram of the trajectory.
    drafter.verified("a", [8, 8, 8, 8])
    drafter.observe("a", [8, 3, 4])
    assert draft(drafter, n=1) == [1]  # what the target wrote itself goes before it
    drafter.start("b", [])
    drafter.observe("b", [3, 4, 1, 3, 4])
    assert draft(drafter, "b", 2) == [1, 3]
    drafter.verified("b", [1, 7, 6])
    drafter.observe("b", [1, 7])
    assert draft(drafter, "b") == [6]
    drafter.observe("b", [2, 2, 3])
    assert draft(drafter, "b", 2) == [4, 1]  # (2, 3) is unknown, (3) was followed by (4, 1)


def test_the_trajectory_alone_makes_ngrams() -> None:
    """Of tokens that the text never held one after another."""
    drafter = new_drafter(ngram=3)
    drafter.start("a", [])
    drafter.observe("a", [1, 2, 3, 4, 1, 2])
    assert draft(drafter, n=4) == [3, 4, 1, 2]
    drafter.verified("a", [9, 20, 21, 22, 23])
    drafter.observe("a", [9])
    assert draft(drafter) == [20, 21, 22, 23]
    drafter.verified("a", [5, 30, 31, 32, 33])
    drafter.observe("a", [5])
    # Iterates 20 -> 30 and 21 -> 31: 20 was followed by 30, in the place after it.
    drafter.observe("a", [20])
    assert draft(drafter, n=1) == [30]


def test_an_older_guess_goes_on_behind_what_was_said() -> None:
    drafter = new_drafter(ngram=3)
    drafter.start("a", [])
    drafter.observe("a", [1, 2, 1, 2, 1])
    assert draft(drafter, n=4) == [2, 1, 2, 1]
    drafter.verified("a", [7, 20, 21, 22, 23])
    drafter.observe("a", [7])
    assert draft(drafter) == [20, 21, 22, 23]
    drafter.observe("a", [40])  # nothing was verified this time
    assert draft(drafter) == [21, 22, 23]
    drafter.observe("a", [41, 42])
    assert draft(drafter) == [23]


def test_choices_of_another_draft_are_not_taken() -> None:
    drafter = new_drafter()
    drafter.start("a", [])
    drafter.observe("a", [1, 2, 1])
    drafter.propose(["a"], 1)
    drafter.verified("a", [5, 6, 7, 8])  # the last draft had one token
    drafter.verified("nobody", [5])
    drafter.observe("a", [9])
    assert draft(drafter) == []


def test_pools_are_private_or_of_a_namespace() -> None:
    text = [1, 2, 3, 4, 5, 6]
    private = new_drafter()
    shared = new_drafter(shared=True)
    for drafter in (private, shared):
        for name, namespace in (("a", "one"), ("b", "one"), ("c", "two"), ("d", None)):
            drafter.start(name, [], namespace=namespace)
        drafter.observe("a", text)
        for name in "bcd":
            drafter.observe(name, text[:3])
    assert [draft(private, name, 2) for name in "bcd"] == [[], [], []]
    assert [draft(shared, name, 2) for name in "bcd"] == [[4, 5], [], []]
    for name in "abcd":
        shared.stop(name)
    shared.start("e", text[:3], namespace="one")
    assert draft(shared, "e", 2) == [4, 5]
    assert shared.num_documents == 2
    assert shared.purge("one") == 1
    assert draft(shared, "e", 2) == []
    assert shared.purge("nobody") == 0


def test_private_pools_leave_nothing_to_the_next_user() -> None:
    drafter = new_drafter()
    drafter.start("a", [])
    drafter.observe("a", [1, 2, 3, 1, 2])
    assert draft(drafter, n=1) == [3]
    drafter.stop("a")
    drafter.start("a", [1, 2, 3, 1, 2])
    assert draft(drafter) == []


def test_shared_pools_are_bounded_and_the_longest_idle_goes() -> None:
    drafter = new_drafter(shared=True, max_pools=2, pool_ngrams=64)
    for space in ("x", "y", "x", "z"):
        drafter.start("a", [], namespace=space)
        drafter.observe("a", [1, 2, 3])
        drafter.stop("a")
    assert set(drafter.namespaces) == {"x", "z"}
    assert drafter.num_bytes <= 4 * drafter._tables[0].nbytes


def test_a_long_text_takes_no_more_room() -> None:
    drafter = new_drafter(pool_ngrams=256)
    drafter.start("a", [])
    before = drafter.num_bytes
    random = np.random.default_rng(0)
    for _ in range(50):
        drafter.observe("a", random.integers(0, 1000, 100))
        draft(drafter)
    drafter.observe("a", [5, 6, 7, 5, 6])
    assert draft(drafter, n=1) == [7]
    assert drafter.num_bytes == before


def test_reach_becomes_what_really_happens() -> None:
    """A text whose every third token is free: by then calibration knows which ones."""
    drafter = LookaheadDrafter(max_n=8)
    random = np.random.default_rng(1)
    text = [x for _ in range(2500) for x in (1, 2, int(random.integers(10, 14)))]
    drafter.start("a", [], namespace="n")
    drafter.observe("a", text[:30])
    at, promised, held = 30, [], []
    while at < len(text) - 10:
        (made,) = drafter.propose(["a"], 3)
        right = 0
        for k, (token, reach) in enumerate(zip(made.token_ids.tolist(), made.reach.tolist(), strict=True)):
            right += right == k and token == text[at + k]
            promised.append(reach)
            held.append(right > k)
        drafter.observe("a", text[at : at + right + 1])
        at += right + 1
    first = len(promised) // 2
    assert len(held) > 1000
    assert np.mean(promised[first:]) == pytest.approx(np.mean(held[first:]), abs=0.04)
    (made,) = drafter.propose(["a"], 8)
    assert (np.diff(made.reach) <= 0).all()
    assert made.reach.max(initial=0.0) <= 1.0


def test_only_what_was_said_is_drafted_whatever_happens() -> None:
    """Random requests, tenants, drafts cut anywhere, choices: no crash, and nothing of another tenant."""
    random = np.random.default_rng(2)
    for shared in (False, True):
        drafter = LookaheadDrafter(max_n=6, window=5, ngram=4, candidates=2, shared=shared, pool_ngrams=64)
        live: dict[int, int] = {}
        for step in range(2000):
            if len(live) < 8:
                live[step] = tenant = int(random.integers(3))
                base = 100 * tenant
                drafter.start(
                    step, base + random.integers(0, 9, int(random.integers(5))), namespace=f"{tenant}"
                )
            drafts = drafter.propose(list(live), random.integers(0, 9, len(live)))
            for (request, tenant), made in zip(list(live.items()), drafts, strict=True):
                assert ((made.token_ids // 100) == tenant).all()
                assert len(made) == len(made.reach) <= 6
                verified = int(random.integers(len(made) + 1))
                choices = 100 * tenant + random.integers(0, 9, verified + 1)
                drafter.verified(request, choices)
                right = int(random.integers(verified + 1))
                drafter.observe(request, [*made.token_ids[:right].tolist(), int(choices[right])])
                if random.random() < 0.05:
                    drafter.stop(request)
                    del live[request]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": 0}, "window must be at least 1 and at most 128, got 0"),
        ({"ngram": 1}, "ngram must be at least 2 and at most 16, got 1"),
        ({"ngram": 10**9}, "ngram must be at least 2 and at most 16"),
        ({"candidates": 0}, "candidates must be at least 1 and at most 64, got 0"),
        ({"max_n": 0}, "max_n must be at least 1, got 0"),
        ({"min_reach": 2.0}, "min_reach must be within"),
    ],
)
def test_absurd_sizes(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LookaheadDrafter(**options)


def test_bad_calls() -> None:
    drafter = new_drafter()
    drafter.start("a", [1])
    with pytest.raises(ValueError, match="already live"):
        drafter.start("a", [1])
    with pytest.raises(KeyError, match="is not live"):
        drafter.observe("b", [1])
    with pytest.raises(ValueError, match="is repeated"):
        drafter.propose(["a", "a"], 1)
    with pytest.raises(ValueError, match="must not be negative"):
        drafter.propose(["a"], -1)
    with pytest.raises(ValueError, match="one number or one per request"):
        drafter.propose(["a"], [1, 2])
    assert drafter.propose([], 3) == []


def test_clear_forgets_calibration_and_idle_pools() -> None:
    drafter = new_drafter(shared=True)
    drafter.start("a", [], namespace="x")
    drafter.observe("a", [1, 2, 1, 2, 1])
    draft(drafter)
    drafter.observe("a", [9])
    drafter.stop("a")
    drafter.clear()
    assert drafter.num_documents == 0
    assert np.array_equal(drafter.calibration.model[0], drafter.calibration.prior)


def test_with_the_suffix_tree_the_better_draft_is_taken() -> None:
    first, second = SuffixTreeDrafter(max_n=8, memory_bytes=0), new_drafter()
    both = FallbackDrafter(first, second)
    both.start("a", [], namespace=None)
    both.observe("a", [1, 2, 3, 4, 1, 2])
    (made,) = both.propose(["a"], 4)
    assert made.token_ids.tolist() == [3, 4, 1, 2]
    both.verified("a", [3, 9, 5, 6, 7])
    both.observe("a", [3, 9])
    (made,) = both.propose(["a"], 4)
    assert made.token_ids.tolist() in ([5, 6, 7], [])  # where Lookahead's draft was the one that was verified
    both.price = 2.0
    (made,) = both.propose(["a"], 4)
    assert made.token_ids.tolist() == first.propose(["a"], 4)[0].token_ids.tolist()  # none is worth a thing
    both.clear()
    assert both.purge("x") == 0
    both.stop("a")
    assert first.num_live == second.num_live == 0
