"""What requests under way find in each other's answers."""

from __future__ import annotations

import pytest

from drafters import SuffixTreeDrafter

ANSWER = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


def make(**options: int) -> SuffixTreeDrafter:
    return SuffixTreeDrafter(**({"max_n": 8, "memory_bytes": 1 << 16, "min_reach": 0.0} | options))


def draft(drafter: SuffixTreeDrafter, request: str) -> list[int]:
    return drafter.propose([request], 8)[0].token_ids.tolist()


def two(drafter: SuffixTreeDrafter, first: str | None = "", second: str | None = "") -> None:
    """One that has answered for a while, and another that has said two of its tokens."""
    drafter.start("a", [1, 2, 3], namespace=first)
    drafter.observe("a", ANSWER)
    drafter.start("b", [4, 5, 6], namespace=second)
    drafter.observe("b", ANSWER[2:4])


@pytest.mark.parametrize("namespace", ["", "tenant"])
def test_an_answer_under_way_is_drafted_from_up_to_its_end(namespace: str) -> None:
    drafter = make()
    two(drafter, namespace, namespace)
    assert draft(drafter, "b") == ANSWER[4:]
    drafter.observe("a", [21, 22])
    assert draft(drafter, "b") == [*ANSWER[4:], 21, 22]
    drafter.observe("b", ANSWER[4:6])
    assert draft(drafter, "b")[:4] == ANSWER[6:]


@pytest.mark.parametrize(("first", "second"), [("", "t"), ("t", ""), ("t", "u"), (None, ""), ("", None)])
def test_not_across_namespaces(first: str | None, second: str | None) -> None:
    drafter = make()
    two(drafter, first, second)
    assert draft(drafter, "b") == []


def test_not_without_shared_memory() -> None:
    drafter = make(memory_bytes=0)
    two(drafter)
    assert draft(drafter, "b") == []


def test_a_prompt_is_context_at_its_end_and_never_a_draft() -> None:
    drafter = make()
    drafter.start("a", [*range(100, 140)])
    drafter.observe("a", ANSWER[:3])
    drafter.start("b", [*range(100, 120)])
    drafter.observe("b", [120])
    assert draft(drafter, "b") == []  # which would follow in a's prompt
    drafter.start("c", [*range(130, 140)])
    assert draft(drafter, "c") == ANSWER[:3]


def test_who_ends_is_found_in_memory_instead() -> None:
    drafter = make()
    two(drafter)
    drafter.stop("a")
    assert draft(drafter, "b") == ANSWER[4:]
    drafter.start("c", [7])  # takes a's place
    drafter.observe("c", [30, 31])
    assert draft(drafter, "c") == []
    assert draft(drafter, "b") == ANSWER[4:]


@pytest.mark.parametrize("act", ["purge", "clear"])
def test_what_was_purged_is_not_found_any_more(act: str) -> None:
    drafter = make()
    two(drafter)
    if act == "purge":
        drafter.purge("another")
        assert draft(drafter, "b") == ANSWER[4:]
        drafter.purge("")
    else:
        drafter.clear()
    assert draft(drafter, "b") == []
    drafter.observe("a", [13, 14, 40, 41])
    assert draft(drafter, "b") == [40, 41]  # said since then


def test_entries_of_a_full_index_make_room() -> None:
    drafter = make()
    two(drafter)
    drafter.start("long", [9])
    drafter.observe("long", [*range(1000, 1000 + (1 << 16))])
    assert draft(drafter, "b") == []
    drafter.observe("b", [70_000 - 5_000, 65_001])
    assert draft(drafter, "b")[:2] == [65_002, 65_003]
