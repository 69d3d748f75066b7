"""The shared memory: a budget in bytes, who makes room, what is forgotten when."""

from typing import Any

import numpy as np
import pytest
from fuzz_suffix_tree import SMALL, check_memory, rebase_at

from drafters import SuffixTreeDrafter
from drafters import _namespaces as namespaces
from drafters import memory as memory_module
from drafters.memory import BYTES_PER_TOKEN, CREDIT_SHARE, SharedMemory

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # see test_suffix_tree


def document(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 9, n).astype(np.int32)


def contents(memory: SharedMemory) -> list[list[int]]:
    return [(memory._text(d) - d.namespace.tag).tolist() for d in memory._documents if d.is_alive]


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def new_drafter(**options: Any) -> SuffixTreeDrafter:
    return SuffixTreeDrafter(**({"memory_bytes": SMALL, "min_reach": 0.0} | options))


def answer(drafter: SuffixTreeDrafter, token_ids: list[int], **options: Any) -> None:
    drafter.start("answer", [], **options)
    drafter.observe("answer", token_ids)
    drafter.stop("answer")


def draft_ids(drafter: SuffixTreeDrafter, request_id: object, max_n: int = 32) -> list[int]:
    return drafter.propose([request_id], max_n)[0].token_ids.tolist()


@pytest.mark.parametrize("max_bytes", [-1, 1, SMALL - 1])
def test_a_budget_too_small_is_refused(max_bytes: int) -> None:
    with pytest.raises(ValueError, match=str(SMALL)):
        SharedMemory(max_bytes)


@pytest.mark.parametrize("max_bytes", [SMALL, SMALL + 1, 2 * SMALL - 1, 2 * SMALL, 1 << 20])
def test_the_store_fits_its_budget_and_uses_more_than_half_of_it(max_bytes: int) -> None:
    assert max_bytes / 2 < SharedMemory(max_bytes).num_bytes <= max_bytes


def test_a_budget_of_zero_keeps_nothing() -> None:
    memory = SharedMemory(0)
    memory.add(document(100))
    memory.clear()
    check_memory(memory)
    assert memory.num_documents == memory.num_tokens == 0
    assert memory.num_bytes <= BYTES_PER_TOKEN


def test_the_oldest_documents_make_room_if_none_was_of_use() -> None:
    memory = SharedMemory(SMALL)
    documents = [document(n, seed=n) for n in (100, 80, 60, 40, 90)]
    for i, new in enumerate(documents):
        memory.add(new)
        check_memory(memory)
        kept = [d.tolist() for d in documents[: i + 1]]
        while sum(len(d) + 1 for d in kept) > memory.capacity:
            kept.pop(0)
        assert contents(memory) == kept
    assert memory.num_documents == 3
    assert memory.num_tokens == 190


def test_a_document_that_fills_the_store_exactly_evicts_all_others() -> None:
    memory = SharedMemory(SMALL)
    memory.add(document(50))
    full = document(memory.capacity - 1, seed=1)
    memory.add(full)
    check_memory(memory)
    assert contents(memory) == [full.tolist()]


def test_of_a_document_larger_than_the_budget_the_end_is_kept() -> None:
    drafter = SuffixTreeDrafter(memory_bytes=SMALL, min_reach=0.0)
    answer = list(range(1000))
    drafter.start("a", [])
    drafter.observe("a", answer)
    drafter.stop("a")
    assert contents(drafter.memory) == [answer[-(drafter.memory.capacity - 1) :]]
    drafter.start("early", [100, 101])
    drafter.start("late", [990, 991])
    early, late = drafter.propose(["early", "late"], 4)
    assert early.token_ids.tolist() == []
    assert late.token_ids.tolist() == [992, 993, 994, 995]


@pytest.mark.parametrize("n", [0, 1])
def test_a_document_in_which_nothing_follows_is_not_kept(n: int) -> None:
    memory = SharedMemory(SMALL)
    memory.add(document(n))
    assert memory.num_documents == memory.ring.end == 0


def test_a_draft_ends_with_its_document() -> None:
    drafter = SuffixTreeDrafter(memory_bytes=SMALL, min_reach=0.0)
    for request, answer in (("a", [1, 2, 3]), ("b", [4, 5, 6])):
        drafter.start(request, [])
        drafter.observe(request, answer)
        drafter.stop(request)
    drafter.start("c", [3, 1])
    drafter.start("d", [3])
    c, d = drafter.propose(["c", "d"], 8)
    assert c.token_ids.tolist() == [2, 3]
    assert d.token_ids.tolist() == []


def test_clear_forgets_every_document() -> None:
    memory = SharedMemory(SMALL)
    for seed in range(5):
        memory.add(document(100, seed))
    memory.clear()
    check_memory(memory)
    assert memory.num_documents == memory.num_tokens == memory.ring.end == 0
    memory.add(document(100, 7))
    check_memory(memory)
    assert contents(memory) == [document(100, 7).tolist()]


def test_positions_shift_down_before_they_outgrow_int32() -> None:
    memory, twin = SharedMemory(SMALL), SharedMemory(SMALL)
    limit = 900
    rng = np.random.default_rng(3)
    lengths = rng.integers(2, 200, 60)
    with rebase_at(limit) as shifts:
        for seed, n in enumerate(lengths.tolist()):
            memory.add(document(n, seed))
            assert memory.ring.end <= limit
            check_memory(memory)
    for seed, n in enumerate(lengths.tolist()):
        twin.add(document(n, seed))
    assert sum(shift > 0 for shift in shifts) > 3
    assert twin.ring.end == memory.ring.end + sum(shifts)
    assert contents(memory) == contents(twin)


@pytest.mark.parametrize(
    ("credit", "is_kept"), [(99 // CREDIT_SHARE, False), (100 // CREDIT_SHARE + 1, True)]
)
def test_a_document_that_was_of_use_gets_another_round(credit: int, is_kept: bool) -> None:
    memory = SharedMemory(SMALL)
    useful = memory.add(document(100), credit=credit, birth=0.0)
    for seed in (1, 2):
        memory.add(document(100, seed))
    check_memory(memory)
    assert useful is not None
    assert useful.is_alive == is_kept
    assert contents(memory)[-1] == document(100, 2).tolist()
    assert (document(100).tolist() in contents(memory)) == is_kept
    if is_kept:
        assert useful.credit == credit // 2
        assert useful.birth == 0.0  # not younger by it


def test_credit_fades_and_its_document_goes_in_the_end() -> None:
    memory = SharedMemory(SMALL)
    useful = memory.add(document(100), credit=100, birth=0.0)
    credits = []
    for seed in range(1, 30):
        memory.add(document(100, seed))
        assert useful is not None
        if useful.is_alive and (not credits or credits[-1] != useful.credit):
            credits.append(useful.credit)
    assert credits == [100, 50, 25, 12, 6]  # and then it goes: 6 is less than a sixteenth
    assert not useful.is_alive
    check_memory(memory)


def test_an_addition_moves_about_twice_its_tokens_at_most() -> None:
    memory = SharedMemory(64 * SMALL)
    while not memory._lacks(200):
        memory.add(document(199, memory.ring.end), credit=10_000)
    before = memory.ring.end
    memory.add(document(210))
    moved = memory.ring.end - before - 211
    assert moved == 600  # two documents of 200 positions are less than 2 * 211
    check_memory(memory)


def test_accepted_tokens_are_credited_to_the_document_that_led() -> None:
    drafter = new_drafter()
    led, other = list(range(10, 30)), list(range(40, 60))
    answer(drafter, led)
    answer(drafter, other)
    drafter.start("a", [10, 11])
    assert draft_ids(drafter, "a", 5) == [12, 13, 14, 15, 16]
    drafter.observe("a", [12, 13, 14, 99])
    drafter.observe("a", [11])  # no draft, no credit
    drafter.propose(["a"], 0)
    assert drafter.snapshot().credits.tolist() == [3, 0]
    check_memory(drafter.memory, sources=drafter._slots.source)


def test_what_a_live_request_reads_is_kept_though_it_earned_nothing() -> None:
    drafter = new_drafter()
    read = list(range(1000, 1100))
    answer(drafter, read)
    drafter.start("reader", read[:3])
    assert draft_ids(drafter, "reader", 4) == read[3:7]
    for seed in range(20):
        answer(drafter, document(100, seed).tolist())
        assert read in contents(drafter.memory)
    drafter.observe("reader", [1005, 1006])  # it goes on beside what it was given
    assert draft_ids(drafter, "reader", 4) == read[7:11]
    drafter.stop("reader")
    for seed in range(20, 24):
        answer(drafter, document(100, seed).tolist())
    assert read not in contents(drafter.memory)
    check_memory(drafter.memory, sources=drafter._slots.source)


def test_a_document_for_which_pinned_ones_leave_no_room_is_not_kept() -> None:
    drafter = new_drafter()
    read = list(range(1000, 1200))
    answer(drafter, read)
    drafter.start("reader", read[:3])
    assert draft_ids(drafter, "reader", 1) == read[3:4]
    answer(drafter, document(54).tolist())
    assert contents(drafter.memory) == [read, document(54).tolist()]
    answer(drafter, document(54, 1).tolist())
    assert contents(drafter.memory) == [read, document(54, 1).tolist()]
    assert drafter.memory.num_refused == 0
    answer(drafter, document(55, 2).tolist())
    assert drafter.memory.num_refused == 1
    assert read in contents(drafter.memory)
    drafter.stop("reader")
    answer(drafter, document(55, 2).tolist())
    assert drafter.memory.num_refused == 1
    assert document(55, 2).tolist() in contents(drafter.memory)


def test_there_are_no_more_documents_than_the_budget_has_room_for_records() -> None:
    drafter = new_drafter()
    for n in range(100):
        answer(drafter, [n, n + 1])
    assert drafter.memory.num_documents == drafter.memory.capacity // memory_module._TOKENS_PER_DOCUMENT
    check_memory(drafter.memory)
    for n in range(100):  # also if each is being read
        drafter.start(n, [n])
    drafter.propose(range(100), 1)
    answer(drafter, [500, 501])
    assert drafter.memory.num_refused == 1


def test_the_same_answer_again_credits_the_older_one() -> None:
    clock = Clock()
    drafter = new_drafter(clock=clock)
    said = list(range(20))
    answer(drafter, said)
    clock.now += 5.0
    answer(drafter, said)
    answer(drafter, said, namespace="other")
    snapshot = drafter.snapshot()
    assert snapshot.lengths.tolist() == [20, 20]
    assert [snapshot.names[i] for i in snapshot.namespaces] == ["", "other"]
    assert snapshot.credits.tolist() == [20, 0]
    assert snapshot.ages.tolist() == [0.0, 0.0]


def test_texts_whose_hashes_collide_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "hash", lambda _: 1, raising=False)
    memory = SharedMemory(SMALL)
    for seed in (0, 0, 1, 1):
        memory.add(document(20, seed))
    assert contents(memory) == [document(20, 0).tolist(), document(20, 1).tolist()]
    for seed in range(2, 40):
        memory.add(document(20, seed))
    assert memory.num_documents <= 12
    assert contents(memory)[-1] == document(20, 39).tolist()


def test_a_purge_overwrites_the_namespace_and_nothing_else() -> None:
    drafter = new_drafter()
    answer(drafter, list(range(100, 130)), namespace="a")
    answer(drafter, list(range(200, 230)), namespace="b")
    answer(drafter, list(range(300, 330)), namespace="a")
    drafter.start("reader", [100, 101], namespace="a")
    assert draft_ids(drafter, "reader", 2) == [102, 103]
    assert drafter.purge("a") == 2
    assert contents(drafter.memory) == [list(range(200, 230))]
    ids = drafter.memory.ring.store[0] & 0xFFFFFFFF
    assert not np.isin(ids, [*range(100, 130), *range(300, 330)]).any()
    check_memory(drafter.memory, sources=drafter._slots.source)
    drafter.observe("reader", [102, 103])  # of a draft that nobody leads any more
    assert draft_ids(drafter, "reader") == []
    assert drafter.purge("a") == drafter.purge("unknown") == 0
    drafter.stop("reader")
    assert contents(drafter.memory) == [list(range(200, 230)), [100, 101, 102, 103]]
    assert drafter.purge("a") == 1
    assert drafter.purge("b") == 1
    assert len(drafter.memory.namespaces) == 1


def test_the_room_of_a_finished_request_is_overwritten() -> None:
    drafter = new_drafter()
    drafter.start("a", [7000] * 300)
    drafter.observe("a", [7000] * 300)
    drafter.propose(["a"], 8)
    drafter.observe("a", [7000] * 300)
    drafter.stop("a")
    drafter.purge("")
    assert not (drafter._live.arrays[0] == 7000).any()
    assert not (drafter._slots.token_ids == 7000).any()
    assert not (drafter.memory.ring.store[0] == 7000).any()


def test_an_answer_expires() -> None:
    clock = Clock()
    drafter = new_drafter(ttl=10.0, clock=clock)
    answer(drafter, [1, 2, 3, 4])
    clock.now += 6.0
    answer(drafter, [5, 6, 7, 8])
    drafter.start("a", [2])
    drafter.start("b", [6])
    clock.now += 4.0
    assert draft_ids(drafter, "a") == [3, 4]
    clock.now += 1.0
    assert draft_ids(drafter, "a") == []
    assert draft_ids(drafter, "b") == [7, 8]
    check_memory(drafter.memory, sources=drafter._slots.source)
    clock.now += 10.0
    assert drafter.snapshot().lengths.tolist() == []
    assert (drafter.memory.ring.store[0] <= 0).all()


def test_what_has_expired_is_overwritten_also_if_nobody_drafts() -> None:
    clock = Clock()
    drafter = new_drafter(ttl=10.0, clock=clock)
    answer(drafter, list(range(7000, 7020)))
    drafter.start("a", [1])
    clock.now += 11.0
    drafter.stop("a")
    assert not (drafter.memory.ring.store[0] >= 7000).any()
    assert drafter.memory.num_documents == 0


def test_ages_are_looked_at_once_a_second_and_before_a_snapshot() -> None:
    clock = Clock()
    drafter = new_drafter(ttl=0.5, clock=clock)
    drafter.start("a", [2])
    assert draft_ids(drafter, "a") == []
    answer(drafter, [1, 2, 3, 4])
    clock.now += 0.75
    assert draft_ids(drafter, "a") == [3, 4]
    clock.now += 0.25
    assert draft_ids(drafter, "a") == []
    answer(drafter, [1, 2, 3, 4])
    clock.now += 0.75
    assert len(drafter.snapshot()) == 0


def test_another_round_does_not_make_a_document_younger() -> None:
    clock = Clock()
    drafter = new_drafter(ttl=10.0, clock=clock)
    read = list(range(1000, 1100))
    answer(drafter, read)
    drafter.start("reader", read[:3])
    assert draft_ids(drafter, "reader", 1) == [1003]
    clock.now += 9.0
    for seed in range(4):
        answer(drafter, document(100, seed).tolist())
    assert read in contents(drafter.memory)
    clock.now += 2.0
    assert draft_ids(drafter, "reader", 1) == []
    assert read not in contents(drafter.memory)


def test_added_documents_are_drafted_from() -> None:
    drafter = new_drafter()
    assert drafter.add_document([1, 2, 3, 4])
    assert drafter.add_document(np.array([5, 6, 7], np.uint16), "a")
    assert not drafter.add_document([9])
    assert not drafter.add_document([])
    drafter.start("common", [2])
    drafter.start("a", [6], namespace="a")
    assert [d.token_ids.tolist() for d in drafter.propose(["common", "a"], 8)] == [[3, 4], [7]]
    for bad, error in (([-1], ValueError), ([1.5], TypeError), ([[1], [2]], ValueError)):
        with pytest.raises(error):
            drafter.add_document(bad)
    assert drafter.memory.num_documents == 2
    assert not new_drafter(memory_bytes=0).add_document([1, 2, 3])


@pytest.mark.parametrize("namespace", [0, b"a", ["a"], 1.5])
def test_a_namespace_that_is_no_str_is_refused(namespace: Any) -> None:
    drafter = new_drafter()
    with pytest.raises(TypeError, match="namespace must be a str"):
        drafter.start("a", [1], namespace=namespace)
    with pytest.raises(TypeError, match="namespace must be a str"):
        drafter.add_document([1, 2], namespace)
    with pytest.raises(TypeError, match="namespace must be a str"):
        drafter.purge(namespace)
    with pytest.raises(TypeError, match="namespace must be a str"):
        drafter.purge(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="namespace must be a str"):
        drafter.add_document([1, 2], None)  # type: ignore[arg-type]
    assert drafter.num_live == 0
    assert len(drafter.memory.namespaces) == 1


def test_namespaces_are_kept_no_longer_than_their_users() -> None:
    drafter = new_drafter()
    for n in range(200):
        answer(drafter, [n, n + 1, n + 2], namespace=f"tenant {n}")
    assert len(drafter.memory.namespaces) == drafter.memory.num_documents + 1
    drafter.start("a", [1], namespace="tenant 5")
    drafter.start("b", [1], namespace="tenant 5")
    drafter.stop("b")
    assert drafter.memory.namespaces.get("tenant 5") is not None
    drafter.stop("a")
    drafter.clear()
    assert [n.name for n in drafter.memory.namespaces] == [""]


def test_indices_of_namespaces_come_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "_MAX_INDEX", 4)
    names = namespaces.Namespaces(lambda: 7)
    held = [names.acquire(name) for name in "abc"]
    for n in range(10):
        names.release(names.acquire(str(n)))
    names.release(held.pop(1))
    tags = {names.acquire(name).tag >> 32 for name in ("x", "y")}
    assert tags == {2, 4}
