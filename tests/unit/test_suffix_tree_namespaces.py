"""Namespaces of the suffix-tree drafter: no draft of one shows what another was told."""

import itertools
import random
from typing import Any

import numba
import numpy as np
import pytest
from fuzz_suffix_tree import SMALL, check_integrity

from drafters import SuffixTreeDrafter
from drafters import _index_kernels as kernels

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # see test_suffix_tree


def new_drafter(**options: Any) -> SuffixTreeDrafter:
    return SuffixTreeDrafter(**({"memory_bytes": 64 * SMALL, "min_reach": 0.0} | options))


def answer(drafter: SuffixTreeDrafter, token_ids: list[int], namespace: str | None = "") -> None:
    drafter.start("answer", [], namespace=namespace)
    drafter.observe("answer", token_ids)
    drafter.stop("answer")


def drafts_for(drafter: SuffixTreeDrafter, prompt: list[int], *namespaces: str | None) -> list[list[int]]:
    for namespace in namespaces:
        drafter.start(namespace, prompt, namespace=namespace)
    drafts = [d.token_ids.tolist() for d in drafter.propose(namespaces, 32)]
    for namespace in namespaces:
        drafter.stop(namespace)
    return drafts


def test_a_request_reads_its_own_namespace_only() -> None:
    drafter = new_drafter()
    answer(drafter, [1, 2, 3, 4], "a")
    answer(drafter, [1, 2, 5, 6], "b")
    answer(drafter, [1, 2, 7, 8])
    answer(drafter, [1, 2, 9, 9], None)
    drafts = drafts_for(drafter, [1, 2], "a", "b", "", "unknown", None)
    assert drafts == [[3, 4], [5, 6], [7, 8], [], []]


def test_the_same_texts_in_two_namespaces_never_cross() -> None:
    """Same questions, same words, other endings: each tenant is drafted its own."""
    rng = random.Random(0)
    drafter = new_drafter(memory_bytes=16 * SMALL)
    drafted = dict.fromkeys("ab", 0)
    for turn in range(60):
        text = [rng.randrange(30) for _ in range(20)]
        for tenant in "ab":
            drafter.start(tenant, text[:8], namespace=tenant)
        for at in range(8, 20):
            for tenant, draft in zip("ab", drafter.propose("ab", 8), strict=True):
                foreign = 2000 if tenant == "a" else 1000
                assert not (draft.token_ids // 1000 == foreign // 1000).any()
                drafted[tenant] += len(draft)
            for tenant, mark in (("a", 1000), ("b", 2000)):
                drafter.observe(tenant, [text[at], mark + text[at]])
        for tenant in "ab":
            drafter.stop(tenant)
        check_integrity(drafter)
        if turn % 20 == 19:
            drafter.purge("b")
    assert all(drafted.values())


def test_drafts_are_the_same_with_and_without_another_tenant() -> None:
    """Text, not statistics: the weights of reach are common, so they are held still."""

    def run(with_other: bool) -> list[list[int]]:
        rng = random.Random(1)
        drafter = new_drafter(memory_bytes=1 << 24, new_seed=itertools.count(12345, 2**40).__next__)
        seen = []
        for _ in range(40):
            text = [rng.randrange(12) for _ in range(60)]
            drafter.start("a", text[:20], namespace="a")
            for at in range(20, 60, 4):
                drafter.calibration.clear()
                seen += [d.token_ids.tolist() for d in drafter.propose(["a"], 16)]
                drafter.observe("a", text[at : at + 4])
            drafter.stop("a")
            drafter._usual_luck = 0.5
            if with_other:
                answer(drafter, text, "b")
                answer(drafter, text[::-1], "")
                drafter._usual_luck = 0.5
        return seen

    alone = run(with_other=False)
    assert any(alone)
    assert run(with_other=True) == alone


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_contexts_of_two_namespaces_share_a_bucket_by_chance_only(seed: int) -> None:
    """Each is met in the other's bucket no more often than one in the number of buckets."""
    store = [np.zeros(1 << 12, dtype=np.int64)]
    store += [np.zeros((kernels.NUM_ORDERS, 1 << 12), dtype=np.int32) for _ in range(2)]
    tokens = np.arange(1000, dtype=np.int32)
    heads = []
    for tag, start in ((1 << 32, seed), (2 << 32, 2**62 + 12345)):
        for array in store:
            array[:] = 0
        kernels._append(*store, 0, 0, tokens, tag, start)
        heads.append(store[2].copy())
    same = (heads[0] == heads[1]) & (heads[0] > 0)
    assert same.sum() < 10  # of 4000 contexts; 1 is expected


def test_a_bucket_that_is_shared_shows_no_match() -> None:
    """What a walk does at a position of another namespace: compare, and go on."""
    text = np.zeros(16, dtype=np.int64)
    text[:5] = (1 << 32) + np.arange(5)
    text[5] = kernels.SEPARATOR
    context = np.arange(8, dtype=np.int32)
    for tag, length in ((1 << 32, 5), (2 << 32, 0), (0, 0)):
        assert kernels._match_length(text, 4, 0, context, 7, 4, tag) == length
        assert kernels._match_length(text, 5, 0, context, 7, 5, tag) == 0


def test_the_largest_tag_and_ids_are_kept_apart() -> None:
    drafter = new_drafter()
    drafter.memory.namespaces._last_index = 2**31 - 3
    for name in ("first", "second"):
        answer(drafter, [1, 2**31 - 2, 0, 2**31 - 2], name)
    assert [n.tag for n in drafter.memory.namespaces][1:] == [(2**31 - 2) << 32, (2**31 - 1) << 32]
    answer(drafter, [1, 2**31 - 2, 5], "second")
    drafts = drafts_for(drafter, [2**31 - 2, 0], "first", "second", "")
    assert drafts == [[2**31 - 2], [2**31 - 2], []]


def test_seeds_are_secret_unless_given() -> None:
    seeds = set()
    for _ in range(4):
        drafter = new_drafter()
        drafter.start("a", [1], namespace="a")
        drafter.start("b", [1], namespace="b")
        seeds |= {n.seed for n in drafter.memory.namespaces if n.name}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)
    drafter = new_drafter(new_seed=lambda: 42)
    drafter.start("a", [1], namespace="a")
    assert drafter.memory.namespaces.get("a").seed == 42


def test_a_name_that_comes_back_finds_nothing() -> None:
    drafter = new_drafter()
    answer(drafter, [1, 2, 3, 4], "a")
    first = drafter.memory.namespaces.get("a")
    drafter.purge("a")
    assert drafter.memory.namespaces.get("a") is None
    assert drafts_for(drafter, [1, 2], "a") == [[]]
    answer(drafter, [1, 2, 5], "a")
    assert drafts_for(drafter, [1, 2], "a") == [[5]]
    assert drafter.memory.namespaces.get("a").tag != first.tag


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="slow in plain Python")
def test_live_requests_of_many_namespaces_in_one_batch() -> None:
    rng = random.Random(3)
    drafter = new_drafter(memory_bytes=256 * SMALL)
    names = [f"tenant {n}" for n in range(40)]
    for n, name in enumerate(names):
        answer(drafter, [5, 6, 10_000 + n, 20_000 + n], name)
    rng.shuffle(names)
    for name, draft in zip(names, drafts_for(drafter, [5, 6], *names), strict=True):
        n = int(name.split()[1])
        assert draft == [10_000 + n, 20_000 + n]
