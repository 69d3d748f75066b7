"""The shared memory: a budget in bytes, oldest documents first out."""

import numpy as np
import pytest
from fuzz_suffix_tree import check_memory, rebase_at

from drafters import SuffixTreeDrafter
from drafters.memory import BYTES_PER_TOKEN, MIN_TOKENS, SharedMemory

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # see test_suffix_tree

SMALL = MIN_TOKENS * BYTES_PER_TOKEN


def document(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 9, n).astype(np.int32)


def contents(memory: SharedMemory) -> list[list[int]]:
    text, mask = memory.store[0], memory.capacity - 1
    return [text[np.arange(start, end) & mask].tolist() for start, end in memory._documents]


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


def test_the_oldest_documents_make_room() -> None:
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
    assert memory.num_documents == memory.end == 0


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
    assert memory.num_documents == memory.num_tokens == memory.end == 0
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
            assert memory.end <= limit
            check_memory(memory)
    for seed, n in enumerate(lengths.tolist()):
        twin.add(document(n, seed))
    assert sum(shift > 0 for shift in shifts) > 3
    assert twin.end == memory.end + sum(shifts)
    assert contents(memory) == contents(twin)
