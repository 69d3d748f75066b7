"""What a sleeping head is given to read when it wakes."""

from __future__ import annotations

import torch

from vllm_specx.proposers._backlog import Backlog, Unread

WIDTH = 2


def unread(*rows: range) -> Unread:
    """Tokens at the positions of each row, all told apart by their position."""
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row))
    positions = torch.tensor([p for row in rows for p in row], dtype=torch.int64)
    states = positions[:, None].float().expand(-1, WIDTH)
    return Unread(starts, positions.int() + 1000, positions, positions + 500, states)


def rows_of(read: Unread) -> list[list[int]]:
    assert torch.equal(read.token_ids, read.positions.int() + 1000)
    assert torch.equal(read.slots, read.positions + 500)
    assert torch.equal(read.states, read.positions[:, None].float().expand(-1, WIDTH))
    return [read.part(row).positions.tolist() for row in range(len(read.starts) - 1)]


def test_rows_come_back_in_the_order_of_the_batch_and_without_gaps() -> None:
    backlog = Backlog(max_tokens=100)
    backlog.put(["a", "b"], unread(range(5, 6), range(4)))
    backlog.put(["b", "a"], unread(range(4, 5), range(6, 9)))
    assert backlog.num_tokens == 9
    read = backlog.take(["b", "c", "a"], unread(range(5, 6), range(2), range(9, 10)), room=100)
    assert rows_of(read) == [[0, 1, 2, 3, 4, 5], [0, 1], [5, 6, 7, 8, 9]]
    assert backlog.num_tokens == 0
    assert not backlog.lost


def test_what_is_over_the_budget_leaves_holes() -> None:
    backlog = Backlog(max_tokens=6)
    backlog.put(["a"], unread(range(4)))
    backlog.put(["b"], unread(range(3)))  # a's are forgotten
    assert backlog.num_tokens == 3
    assert backlog.lost == {"a"}
    read = backlog.take(["a", "b"], unread(range(4, 5), range(3, 4)), room=100)
    assert rows_of(read) == [[4], [0, 1, 2, 3]]
    backlog.prune({"b": None})
    assert not backlog.lost


def test_the_longest_are_given_up_where_one_pass_has_no_room() -> None:
    backlog = Backlog(max_tokens=100)
    for step in range(6):
        backlog.put(["long"], unread(range(3 * step, 3 * step + 3)))
    backlog.put(["short"], unread(range(7, 8)))
    read = backlog.take(["long", "short"], unread(range(18, 19), range(8, 9)), room=10)
    assert rows_of(read) == [[18], [7, 8]]
    assert backlog.lost == {"long"}


def test_a_request_that_was_preempted_starts_over() -> None:
    backlog = Backlog(max_tokens=100)
    backlog.put(["a"], unread(range(6)))
    backlog.put(["a"], unread(range(6, 7)))
    backlog.put(["a"], unread(range(4)))
    read = backlog.take(["a"], unread(range(4, 8)), room=100)
    assert rows_of(read) == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_who_is_not_in_the_batch_when_it_wakes_has_a_hole() -> None:
    backlog = Backlog(max_tokens=100)
    backlog.put(["away", "here"], unread(range(2), range(2)))
    assert rows_of(backlog.take(["here"], unread(range(2, 3)), room=100)) == [[0, 1, 2]]
    assert backlog.lost == {"away"}
