"""A server without an engine: slots that decode known outputs, one drafter call and one policy call a step.

A step verifies `lengths[i]` draft tokens of request i, commits the longest prefix that is right and the token after
it, and costs what the table says for that many requests and tokens. What is drafted beyond the end of an output is
paid for. Prefills cost nothing here: no rule changes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from drafters import SuffixTreeDrafter
from drafters.replay import num_right
from vllm_specx.regret.cells import Cell, Request
from vllm_specx.regret.costs import CostGrid
from vllm_specx.tuner import Step

NUM_BUCKETS: Final = 9  # batches of up to 256
_MEMORY_BYTES: Final = 8 << 20  # far more than a cell says; room is cleared for each run
_LONGEST_STALL: Final = 2.0  # seconds
_SHORTEST_STALL: Final = 0.2


class Policy(Protocol):
    """Chooses lengths."""

    needs_drafts: bool  # False: chooses 0 whatever is drafted

    def choose(self, request_ids: Sequence[int], reaches: Sequence[NDArray[np.float64]]) -> Sequence[int]:
        """Return how many tokens of each draft to verify, given its reach."""

    def update(self, step: Step) -> None:
        """Learn what the step has earned and taken."""


@dataclass(slots=True)
class Run:
    """What a run added up; the arrays are by bucket of the batch (`bucket`)."""

    num_steps: int = 0
    num_draft_tokens: int = 0
    tokens: NDArray[np.float64] = field(default_factory=lambda: np.zeros(NUM_BUCKETS))
    cost: NDArray[np.float64] = field(default_factory=lambda: np.zeros(NUM_BUCKETS))
    plain: NDArray[np.float64] = field(
        default_factory=lambda: np.zeros(NUM_BUCKETS)
    )  # tokens, in the same cost

    @property
    def speedups(self) -> NDArray[np.float64]:
        """Over plain decoding at the same batch, by bucket; 1 where it never was."""
        return np.divide(self.tokens, self.plain, out=np.ones(NUM_BUCKETS), where=self.plain > 0)

    @property
    def rate(self) -> float:
        """Tokens per unit of cost."""
        return float(self.tokens.sum() / self.cost.sum())


@dataclass(frozen=True, slots=True)
class Clock:
    """How the true costs look to the rules: lognormal noise, and rare stalls."""

    noise: float = 0.0
    stalls: float = 0.0

    def factors(self, rng: np.random.Generator, num: int) -> tuple[list[float], list[float]]:
        """Return `num` factors and as many seconds to add."""
        factors = np.exp(rng.normal(-(self.noise**2) / 2, self.noise, num))
        stalled = rng.random(num) < self.stalls
        return factors.tolist(), (stalled * rng.uniform(_SHORTEST_STALL, _LONGEST_STALL, num)).tolist()


def bucket(batch: int) -> int:
    """Powers of two: 1, 2..3, 4..7, ..."""
    return batch.bit_length() - 1


@dataclass(slots=True)
class _Slot:
    request: Request
    at: int = 1  # tokens that it has


def simulate(
    cell: Cell,
    queue: Sequence[Request],
    policy: Policy,
    costs: CostGrid,
    *,
    max_n: int,
    clock: Clock = Clock(),
    seed: int = 0,
) -> Run:
    """Run one cell once.

    Args:
        cell: what to serve.
        queue: its requests, `cell.queue(...)`.
        policy: a fresh one; it learns.
        costs: the true ones.
        max_n: most tokens of a draft.
        clock: what the policy sees of the costs.
        seed: of the clock's noise.

    """
    run = Run()
    drafter = SuffixTreeDrafter(max_n=max_n, memory_bytes=_MEMORY_BYTES) if policy.needs_drafts else None
    rng = np.random.default_rng((seed, 1))
    waiting = iter(queue)
    ramp = list(cell.ramp)
    live: dict[int, _Slot] = {}
    started = committed = target = 0
    factors: list[float] = []
    extra: list[float] = []
    while committed < cell.num_tokens:
        while ramp and ramp[0][0] <= committed:
            target = ramp.pop(0)[1]
        while len(live) < target:
            request = next(waiting)
            live[started] = _Slot(request)
            if drafter is not None:
                drafter.start(started, request.prompt)
                drafter.observe(started, request.output[:1])
            started += 1
        request_ids = list(live)
        batch = len(request_ids)
        if drafter is None:
            lengths: Sequence[int] = [0] * batch
            drafted: list[list[int]] = [[]] * batch
        else:
            drafts = drafter.propose(request_ids, max_n)
            lengths = policy.choose(request_ids, [draft.reach for draft in drafts])
            drafted = [
                draft.token_ids[:n].tolist() if n else [] for draft, n in zip(drafts, lengths, strict=True)
            ]
        num_draft_tokens = sum(lengths)
        num_tokens = 0
        for request_id, token_ids in zip(request_ids, drafted, strict=True):
            slot = live[request_id]
            at = slot.at
            ids = slot.request.ids
            end = min(len(ids), at + num_right(token_ids, ids[at : at + len(token_ids)]) + 1)
            num_tokens += end - at
            if drafter is not None:
                drafter.observe(request_id, slot.request.output[at:end])
            if end == len(ids):
                del live[request_id]
                if drafter is not None:
                    drafter.stop(request_id)
            else:
                slot.at = end
        row = costs[batch]
        cost = float(row[num_draft_tokens])
        if not factors:
            factors, extra = clock.factors(rng, 4096)
        policy.update(Step(batch, num_draft_tokens, num_tokens, cost * factors.pop() + extra.pop()))
        committed += num_tokens
        at_bucket = bucket(batch)
        run.num_steps += 1
        run.num_draft_tokens += num_draft_tokens
        run.tokens[at_bucket] += num_tokens
        run.cost[at_bucket] += cost
        run.plain[at_bucket] += cost * batch / float(row[0])
    return run
