"""Replay: known token streams through a drafter, as an engine would verify them, without an engine.

Each output stands for what the target would say: after its first token, every step takes a draft, keeps the longest
prefix that is right, and adds the token after it. A step with N draft tokens costs `draft_cost + 1 + alpha * N` plain
decode steps, right or wrong; the drafter is never told where an output ends, and what it drafts beyond costs too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from drafters.contract import Drafter

_NUM_BINS: Final = 10


@dataclass(frozen=True, slots=True)
class Trace:
    """One request: its prompt and what was answered, as token ids. `id` need not be unique."""

    id: str
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]


class LengthRule(Protocol):
    """Chooses how much of each draft is verified."""

    def lengths(self, reaches: Sequence[NDArray[np.float64]]) -> list[int]:
        """Return how many tokens of each draft to verify, given its reach."""

    def update(self, num_tokens: int, num_draft_tokens: int) -> None:
        """Account for a step: tokens committed (bonus included) and draft tokens verified."""


class Reliability:
    """Reach against outcome: the expected calibration error over ten equal bins of reach, and the Brier skill score."""

    def __init__(self) -> None:
        """Start empty."""
        self._count = np.zeros(_NUM_BINS, dtype=np.int64)
        self._excess = np.zeros(_NUM_BINS)  # sum of reach minus outcome
        self._squares = 0.0  # sum of its square
        self._held = 0

    def add(self, reach: NDArray[np.float64], num_accepted: int) -> None:
        """Count one verified draft: its reach, shape (n,), of which the first num_accepted tokens held."""
        bins = np.minimum((reach * _NUM_BINS).astype(np.int64), _NUM_BINS - 1)
        excess = reach - (np.arange(len(reach)) < num_accepted)
        np.add.at(self._count, bins, 1)
        np.add.at(self._excess, bins, excess)
        self._squares += float(excess @ excess)
        self._held += min(num_accepted, len(reach))

    @property
    def error(self) -> float | None:
        """Mean over positions of their bin's |mean reach - accepted share|; None before the first position."""
        total = int(self._count.sum())
        return float(np.abs(self._excess).sum()) / total if total else None

    @property
    def skill(self) -> float | None:
        """1 minus the squared error over that of the base rate, known in hindsight; None without both outcomes."""
        total = int(self._count.sum())
        of_base_rate = self._held * (total - self._held) / total if total else 0.0
        return 1.0 - self._squares / of_base_rate if of_base_rate else None


@dataclass(slots=True)
class Tally:
    """What a replay added up; `cost` is in plain decode steps, `seconds` is the time spent in drafting."""

    num_steps: int = 0
    num_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    reliability: Reliability = field(default_factory=Reliability)

    @property
    def speedup(self) -> float:
        """Tokens per plain decode step's time; plain decoding has 1."""
        return self.num_tokens / self.cost


def replay(
    drafter: Drafter,
    traces: Iterable[Trace],
    *,
    max_n: int,
    alpha: float,
    draft_cost: float = 0.0,
    rule: LengthRule | None = None,
) -> Tally:
    """Run every trace, one after the other, through one drafter.

    Args:
        drafter: the source; what it learns from a trace it may use in the next.
        traces: streams; an output of fewer than 2 tokens has no step.
        max_n: most tokens that the drafter is asked for, in every step.
        alpha: cost of verifying one draft token, relative to a decode step without any.
        draft_cost: cost of drafting in each step, in the same unit.
        rule: cuts each draft by its reach. Without one whole drafts are verified and reach is not read.

    Returns:
        The sums; reliability covers every verified position, those beyond the end of an output as not accepted.

    """
    tally = Tally()
    for trace in traces:
        output = trace.output_ids
        drafter.start(trace.id, trace.prompt_ids)
        drafter.observe(trace.id, output[:1])
        at = 1
        while at < len(output):
            begin = perf_counter()
            (draft,) = drafter.propose([trace.id], max_n)
            num_draft = len(draft) if rule is None else rule.lengths([draft.reach])[0]
            token_ids = draft.token_ids[:num_draft].tolist()
            tally.seconds += perf_counter() - begin

            num_accepted = num_right(token_ids, output[at : at + num_draft])
            committed = output[at : at + num_accepted + 1]

            begin = perf_counter()
            drafter.observe(trace.id, committed)
            if rule is not None:
                rule.update(len(committed), num_draft)
            tally.seconds += perf_counter() - begin

            if rule is not None:
                tally.reliability.add(draft.reach[:num_draft], num_accepted)
            at += len(committed)
            tally.num_steps += 1
            tally.num_tokens += len(committed)
            tally.num_draft_tokens += num_draft
            tally.num_accepted += num_accepted
            tally.cost += draft_cost + 1 + alpha * num_draft
        drafter.stop(trace.id)
    return tally


def num_right(token_ids: Sequence[int], truth: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for k, (drafted, true) in enumerate(zip(token_ids, truth, strict=False)):
        if drafted != true:
            return k
    return min(len(token_ids), len(truth))
