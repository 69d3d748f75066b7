"""What the kernels read and write, as tuples of arrays.

R replicas, I requests, G tenants, S = max_num_seqs; L, K, T as in `Curve`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROUTINGS: Final = {"round-robin": 0, "random": 1, "least-loaded": 2}
MEMORIES: Final = {"plain": 0, "private": 1, "shared": 2}
NUM_PARTS: Final = 10  # of the duration

# What is counted, of steps that came to their end: steps, requests decoded in them, draft tokens, tokens committed,
# first tokens (of prompts). Then: tokens before the duration ended, those lost to restarts, busy seconds, and the
# largest batch.
STEPS, REQUEST_STEPS, DRAFTS, STEP_TOKENS, FIRST_TOKENS, IN_TIME, LOST, BUSY, LARGEST = range(9)
NUM_COUNTS: Final = 9


class World(NamedTuple):
    """What does not change.

    Attributes:
        arrival, row, tenant, coin, pick: (I,), see `Stream`.
        first_of: (G,), where the answers to a tenant begin.
        prompts, outputs: (rows,), tokens.
        restart_at, restart_of: see `Stream`.
        shift: (R,), seconds from a replica's start to its first exchange.
        levels, offsets, drafts, commits: see `Curve`.
        best: (S + 1, L), see `best_thresholds`.
        grid: see `StepTimes`.

    """

    arrival: NDArray[np.float64]
    row: NDArray[np.int64]
    tenant: NDArray[np.int64]
    coin: NDArray[np.float64]
    pick: NDArray[np.float64]
    first_of: NDArray[np.int64]
    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]
    restart_at: NDArray[np.float64]
    restart_of: NDArray[np.int64]
    shift: NDArray[np.float64]
    levels: NDArray[np.int64]
    offsets: NDArray[np.int64]
    drafts: NDArray[np.int16]
    commits: NDArray[np.int16]
    best: NDArray[np.int64]
    grid: NDArray[np.float64]


class Rules(NamedTuple):
    """Numbers that do not change; seconds, unless a name says otherwise.

    Nothing happens after `end`. More answers in memory than `most_seen` are not told apart.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    routing: int
    memory: int
    most_seen: int
    interval: float
    transfer: float
    away: float
    per_prompt_token: float
    duration: float
    end: float


class State(NamedTuple):
    """What changes.

    Attributes:
        tree: (2 * P,), a winner tree: when each replica has its next event, from P on (P >= R, a power of two).
        is_up, boot: (R,), whether it runs, and since (or from) when.
        running, num_running: (R, S) requests in the batch, in order of admission; (R,).
        link, head, tail, num_waiting: the queue of each replica as a linked list of requests, -1 for none;
            (I,), (R,), (R,), (R,).
        known: (I,), tokens of the answer that a request has.
        prompt_left: (I,), tokens before the first of them.
        coming: (I,), tokens that the step under way will add.
        level: (I,), of memory.
        texts: (3, I), from `first_of` of each tenant on: when and with whom an answer ended, when the store has it.
        num_texts: (G,).
        own: (R, G), how many of them were said by a replica since its start.
        began, num_decoding, num_drafts: (R,), of the step under way.
        moved: (I,), room for requests that are to be routed.
        first, finish: (I,), when the first and the last token came; nan: not.
        seen: (I,), answers to its tenant that the replica knew when the request was admitted, at most `most_seen`;
            -1: it was not.
        where: (I,), the replica that finished it; -1: none.
        counts: (NUM_COUNTS,).
        parts: (3, NUM_PARTS), requests decoded, draft tokens and tokens committed, by when the step ended.

    """

    tree: NDArray[np.float64]
    is_up: NDArray[np.bool_]
    boot: NDArray[np.float64]
    running: NDArray[np.int64]
    num_running: NDArray[np.int64]
    link: NDArray[np.int64]
    head: NDArray[np.int64]
    tail: NDArray[np.int64]
    num_waiting: NDArray[np.int64]
    known: NDArray[np.int64]
    prompt_left: NDArray[np.int64]
    coming: NDArray[np.int64]
    level: NDArray[np.int64]
    texts: NDArray[np.float64]
    num_texts: NDArray[np.int64]
    own: NDArray[np.int32]
    began: NDArray[np.float64]
    num_decoding: NDArray[np.int64]
    num_drafts: NDArray[np.int64]
    moved: NDArray[np.int64]
    first: NDArray[np.float64]
    finish: NDArray[np.float64]
    seen: NDArray[np.int64]
    where: NDArray[np.int64]
    counts: NDArray[np.float64]
    parts: NDArray[np.float64]


def new_state(num_replicas: int, num_requests: int, num_tenants: int, max_num_seqs: int) -> State:
    """A fleet at rest."""
    size = 1 << max(0, num_replicas - 1).bit_length()

    def whole(num: int, value: int = 0) -> NDArray[np.int64]:
        return np.full(num, value, dtype=np.int64)

    return State(
        tree=np.full(2 * size, np.inf),
        is_up=np.ones(num_replicas, dtype=np.bool_),
        boot=np.zeros(num_replicas),
        running=np.zeros((num_replicas, max_num_seqs), dtype=np.int64),
        num_running=whole(num_replicas),
        link=whole(num_requests, -1),
        head=whole(num_replicas, -1),
        tail=whole(num_replicas, -1),
        num_waiting=whole(num_replicas),
        known=whole(num_requests),
        prompt_left=whole(num_requests),
        coming=whole(num_requests),
        level=whole(num_requests),
        texts=np.zeros((3, num_requests)),
        num_texts=whole(num_tenants),
        own=np.zeros((num_replicas, num_tenants), dtype=np.int32),
        began=np.zeros(num_replicas),
        num_decoding=whole(num_replicas),
        num_drafts=whole(num_replicas),
        moved=whole(num_requests),
        first=np.full(num_requests, np.nan),
        finish=np.full(num_requests, np.nan),
        seen=whole(num_requests, -1),
        where=whole(num_requests, -1),
        counts=np.zeros(NUM_COUNTS),
        parts=np.zeros((3, NUM_PARTS)),
    )
