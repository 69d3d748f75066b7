"""The store of a fleet: what is kept once, for how long, within which budget, and who hears of it."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from drafters.memory_file import Snapshot
from vllm_specx.fleet import texts as fleet_texts
from vllm_specx.fleet.store import ENTRY_BYTES, Store
from vllm_specx.fleet.texts import OVERLAP, PIECE, Text, pack, piece_at, pieces, texts_of, unpack


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def ids(n, seed=0):
    return np.random.default_rng(seed).integers(0, 1000, n).astype(np.int32)


def text(n=10, seed=0, name=""):
    return pieces(name, ids(n, seed))[0]


def store(num_texts=100, clock=None, **options):
    return Store(num_texts * (40 + ENTRY_BYTES), clock=clock or Clock(), **options)


def heard(made, replica="b", after=0):
    return made.since(after, 0, replica, 1 << 30).texts


def test_a_text_is_kept_once_and_credited():
    made = store()
    assert made.add(text(), "a")
    assert not made.add(text(), "b")
    assert (len(made), made.num_tokens) == (1, 10)
    assert made.since(0, 0, "c", 1000).credits == [10]
    assert made.add(text(name="salt=1"), "b")  # another namespace is another text
    assert len(made) == 2


def test_a_replica_hears_what_others_said_since():
    made = store()
    for seed, origin in enumerate("aab"):
        made.add(text(seed=seed), origin)
    assert heard(made, "a") == [text(seed=2)]
    assert heard(made, "c") == [text(seed=0), text(seed=1), text(seed=2)]
    last = made.last
    assert heard(made, "c", last) == []
    made.add(text(seed=3), "a")
    assert heard(made, "c", last) == [text(seed=3)]


def test_a_long_answer_comes_in_pages_the_newest_first():
    made = store()
    for seed in range(7):
        made.add(text(seed=seed), "a")
    found, before = [], 0
    while True:
        page = made.since(0, before, "b", 2 * 40)
        assert len(page.texts) <= 2
        found = page.texts + found
        before = page.more
        if not before:
            break
        made.add(text(seed=100 + before % 97), "a")  # comes with the next answer
    assert found == [text(seed=seed) for seed in range(7)]


def test_the_oldest_make_room_and_what_is_of_use_stays():
    made = store(4)
    for seed in range(4):
        made.add(text(seed=seed), "a")
    made.raise_credit(text(seed=0).key, 2)
    made.raise_credit(text(seed=99).key, 2)  # unknown: nothing
    before = made.last
    made.add(text(seed=4), "a")
    assert heard(made) == [text(seed=s) for s in (2, 3, 4, 0)]
    assert heard(made, after=before) == [
        text(seed=4),
        text(seed=0),
    ]  # told again, and half its credit is left
    for seed in range(5, 9):
        made.add(text(seed=seed), "a")
        assert made.num_bytes <= made.max_bytes
    made.add(text(seed=9), "a")
    assert text(seed=0) in heard(made)
    for seed in range(10, 18):
        made.add(text(seed=seed), "a")
    assert text(seed=0) not in heard(made)


def test_a_text_beyond_the_budget_is_not_kept():
    made = Store(ENTRY_BYTES + 39, clock=Clock())
    assert not made.add(text(), "a")
    assert (len(made), made.num_bytes) == (0, 0)


def test_the_records_are_no_larger_than_they_are_counted():
    tracemalloc.start()
    try:
        made = Store(1 << 30, clock=Clock())
        begin = tracemalloc.get_traced_memory()[0]
        for seed in range(5000):
            made.add(Text("", np.full(64, seed, dtype="<i4").tobytes()), "a")
        grown = tracemalloc.get_traced_memory()[0] - begin
    finally:
        tracemalloc.stop()
    assert made.num_bytes / 2 < grown <= made.num_bytes


def test_time_to_live():
    clock = Clock()
    made = store(clock=clock, ttl=10.0)
    made.add(text(seed=0), "a")
    clock.now += 8
    made.add(text(seed=1), "a")
    assert made.expire() == 0
    clock.now += 3
    assert made.expire() == 1
    assert heard(made) == [text(seed=1)]
    made.add(text(seed=1), "b")  # said again
    clock.now += 9
    assert made.expire() == 0


def test_purge_reaches_those_who_have_not_heard():
    made = store()
    for salt in ("s", "t"):
        made.add(text(name=f"salt={salt}"), "a")
    heard_before = made.last
    assert made.purge(["salt=s"], "a") == 1
    assert heard(made) == [text(name="salt=t")]
    assert made.purges(heard_before, "b") == (("salt=s",),)
    assert made.purges(heard_before, "a") == made.purges(made.last, "b") == ()
    # What a replica says that has not heard of it was said before, for all that is known.
    assert not made.add(text(name="salt=s"), "b", heard=heard_before)
    assert made.add(text(name="salt=s"), "b", heard=made.last)
    assert made.purge([]) == 2


def test_numbers_rise_over_a_restart_and_come_back_with_their_times():
    clock = Clock()
    made = store(clock=clock)
    made.add(text(seed=0), "a")
    clock.now += 5
    after = made.last
    made.add(text(seed=1), "a", credit=3)
    saved = made.snapshot()
    clock.now += 5
    made.add(text(seed=2), "a")  # lost
    lost = made.last
    clock.now += 5
    again = store(clock=clock)
    again.restore((t, age + 10, credit) for t, age, credit in texts_of(saved))
    assert heard(again, "b", after) == [text(seed=1)]
    assert again.since(after, 0, "b", 1000).credits == [3]
    assert heard(again, "b", lost) == []
    again.add(text(seed=2), "a")
    assert heard(again, "b", lost) == [text(seed=2)]


@pytest.mark.parametrize("n", [2, 3, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 5 * PIECE + 7])
def test_pieces_overlap_and_say_it_all(n):
    answer = ids(n)
    cut = [np.frombuffer(t.token_ids, dtype="<i4") for t in pieces("x", answer)]
    assert all(2 <= len(piece) <= PIECE for piece in cut)
    joined = [*cut[0]]
    for piece in cut[1:]:
        assert joined[-OVERLAP:] == piece[:OVERLAP].tolist()
        joined += piece[OVERLAP:].tolist()
    assert joined == answer.tolist()
    for place in {0, n // 2, n - 1}:
        piece = piece_at("x", answer, place)
        assert piece in pieces("x", answer)
        assert answer[place] in np.frombuffer(piece.token_ids, dtype="<i4")


def test_an_answer_of_one_token_is_none():
    assert pieces("", ids(1)) == pieces("", ids(0)) == []


def test_a_message_comes_back():
    sent = [text(seed=0, name="salt=1"), text(5, seed=1), text(seed=2, name="salt=1")]
    got = list(texts_of(unpack(pack(sent, [1.0, 2.0, 3.0], [4, 5, 6]))))
    assert got == [(sent[0], 1.0, 4), (sent[1], 2.0, 5), (sent[2], 3.0, 6)]
    assert list(texts_of(unpack(pack([])))) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_ids", np.array([1, 2, -1], dtype="<i4")),
        ("token_ids", np.array([1, 2, 1000], dtype="<i4")),
        ("token_ids", np.array([1, 2], dtype="<i4")),
        ("lengths", np.array([2], dtype="<i8")),
        ("lengths", np.array([1, 2], dtype="<i8")),
        ("lengths", np.array([-3, 6], dtype="<i8")),
        ("namespaces", np.array([1], dtype="<i8")),
        ("namespaces", np.array([-1], dtype="<i8")),
        ("ages", np.array([np.nan], dtype="<f8")),
        ("ages", np.array([-1.0], dtype="<f8")),
        ("credits", np.array([-1], dtype="<i8")),
        ("credits", np.array([], dtype="<i8")),
        ("lengths", np.array([3, 1], dtype="<i4")),
    ],
    ids=str,
)
def test_a_message_that_makes_no_sense_is_refused(field, value):
    import msgspec

    good = pack([Text("", np.array([1, 2, 3], dtype="<i4").tobytes())])
    assert isinstance(unpack(good, 1000), Snapshot)
    with pytest.raises(ValueError):
        unpack(msgspec.structs.replace(good, **{field: value.tobytes()}), 1000)


def test_a_text_that_is_too_long_for_a_step_is_refused():
    long = Text("", ids(PIECE + 1).tobytes())
    with pytest.raises(ValueError, match="lengths"):
        unpack(pack([long]))
    assert fleet_texts.PIECE == PIECE
