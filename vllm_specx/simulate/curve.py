"""What drafts are worth, by how many similar answers a memory holds: recorded from the real drafter, row by row.

For each level n of memory, every row is decoded in a memory that holds n other rows, drawn at random, and for each
threshold on reach once more (which is what the price of a second comes to, see `PriceRule`). A simulated request then
follows the recording of its row for as much memory as its replica has, and for the threshold that pays at its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from drafters import SuffixTreeDrafter
from drafters._index_kernels import PROMPT_TAIL
from drafters.replay import Trace, num_right
from vllm_specx.simulate.texts import Texts

THRESHOLDS: Final = (0.02, 0.05, 0.15, 0.3, 0.5, 0.7, 0.9)
_LIVE: Final = 64  # rows decoded at a time
_SHARE: Final = 8  # a memory of n answers serves n / 8 rows, which add to it
_BYTES_PER_TOKEN: Final = 44
_LEAST_BYTES: Final = 1 << 20

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Curve:
    """Recordings of L levels of memory, K thresholds and T tokens of answers, row after row.

    Attributes:
        levels: int64[L], answers in memory, increasing from 0 on.
        thresholds: float64[K].
        offsets: int64[rows], where a row's answer begins; its token p, counted from 0, is at offset + p.
        drafts: int16[L, K, T], draft tokens of the step that decodes from token p on.
        commits: int16[L, K, T], tokens that it commits, the bonus token included; 1 or more where p > 0.
        tokens_per_step: float64[L, K].
        drafts_per_step: float64[L, K].

    """

    levels: NDArray[np.int64]
    thresholds: NDArray[np.float64]
    offsets: NDArray[np.int64]
    drafts: NDArray[np.int16]
    commits: NDArray[np.int16]
    tokens_per_step: NDArray[np.float64]
    drafts_per_step: NDArray[np.float64]

    def as_json(self) -> dict[str, Any]:
        """The means, for a reader."""
        return {
            "answers_in_memory": self.levels.tolist(),
            "thresholds": self.thresholds.tolist(),
            "tokens_per_step": self.tokens_per_step.round(4).tolist(),
            "draft_tokens_per_step": self.drafts_per_step.round(4).tolist(),
        }


def learn(texts: Texts, *, max_n: int, seed: int, tell: Tell = lambda *_: None) -> Curve:
    """Record all rows at all levels.

    Args:
        texts: the rows.
        max_n: most tokens of a draft.
        seed: of who remembers what.
        tell: called with what is recorded, how much is done and how much there is.

    """
    levels, offsets = levels_of(len(texts)), np.cumsum(texts.outputs) - texts.outputs
    shape = len(levels), len(THRESHOLDS), int(texts.outputs.sum())
    drafts, commits = np.zeros(shape, dtype=np.int16), np.zeros(shape, dtype=np.int16)
    means = np.ones((2, *shape[:2]))
    for at, level in enumerate(levels):
        tell(f"drafting for {len(texts)} rows with {level} others in memory", at, len(levels))
        groups = _groups(len(texts), level, np.random.default_rng((seed, 6, at)))
        for k, threshold in enumerate(THRESHOLDS):
            steps = _decode(texts, groups, threshold, max_n, np.random.default_rng((seed, 8, at, k)))
            row, begin, num_drafts, num_commits = np.array(steps, dtype=np.int64).reshape(-1, 4).T
            if len(row):
                means[:, at, k] = num_commits.mean(), num_drafts.mean()
            where = np.repeat(offsets[row] + begin, num_commits)
            within = np.arange(len(where)) - np.repeat(np.cumsum(num_commits) - num_commits, num_commits)
            # Who comes into a recorded step halfway has what is left of it.
            drafts[at, k, where + within] = np.repeat(num_drafts, num_commits)
            commits[at, k, where + within] = np.repeat(num_commits, num_commits) - within
    return Curve(np.array(levels), np.array(THRESHOLDS), offsets, drafts, commits, *means)


def no_curve(texts: Texts) -> Curve:
    """A curve without any drafts."""
    none = np.zeros((1, 0, 0), dtype=np.int16)
    offsets = np.zeros(len(texts), dtype=np.int64)
    return Curve(np.zeros(1, dtype=np.int64), np.zeros(0), offsets, none, none, *np.zeros((2, 1, 0)))


def levels_of(num_rows: int) -> list[int]:
    """0, 1, 2, 4, ... and the most that leaves rows to be decoded."""
    most = max(n for n in range(num_rows) if n + _served(n) <= num_rows)
    levels = [0]
    while levels[-1] < most:
        levels.append(min(most, max(1, 2 * levels[-1])))
    return levels


def _served(level: int) -> int:
    return max(1, level // _SHARE)


def _groups(
    num_rows: int, level: int, rng: np.random.Generator
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows that are remembered, and those that are decoded one after the other with them."""
    order, made = rng.permutation(num_rows), []
    for first in range(0, num_rows, _served(level)):
        rows = order[first : first + _served(level)]
        others = np.delete(order, slice(first, first + len(rows)))
        made.append((rng.permutation(others)[:level], rows))
    return made


def _decode(
    texts: Texts,
    groups: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
    threshold: float,
    max_n: int,
    rng: np.random.Generator,
) -> list[tuple[int, int, int, int]]:
    """Steps as (row, token that it starts from, draft tokens, tokens committed)."""
    size = int(texts.outputs.sum()) + (PROMPT_TAIL + 1) * len(texts)
    held = sum(len(remembered) + len(rows) for remembered, rows in groups)
    drafter = SuffixTreeDrafter(
        max_n=max_n,
        memory_bytes=max(_LEAST_BYTES, 2 * _BYTES_PER_TOKEN * (size * held // len(texts) + size)),
        new_seed=lambda: int(rng.integers(1 << 63)),  # or no recording would be like another
    )
    waiting = list(enumerate(groups))
    live: dict[int, _Decoding] = {}
    steps: list[tuple[int, int, int, int]] = []
    while waiting or live:
        while waiting and len(live) < _LIVE:
            number, (remembered, rows) = waiting.pop()
            for row in remembered.tolist():
                trace = texts.traces[row]
                drafter.add_document([*trace.prompt_ids[-PROMPT_TAIL:], *trace.output_ids], str(number))
            live[number] = _Decoding(drafter, str(number), [(r, texts.traces[r]) for r in rows.tolist()])
        live = {number: each for number, each in live.items() if each.begin_next()}
        drafts = drafter.propose([each.row for each in live.values()], max_n) if live else []
        for each, draft in zip(live.values(), drafts, strict=True):
            n = int(np.searchsorted(-draft.reach, -threshold, side="right"))
            steps.append(each.step(draft.token_ids[:n].tolist()))
    return steps


class _Decoding:
    """Rows of one memory, one after the other; each is a request of the drafter, named by its number."""

    def __init__(self, drafter: SuffixTreeDrafter, namespace: str, rows: list[tuple[int, Trace]]) -> None:
        self._drafter, self._namespace, self._waiting = drafter, namespace, rows[::-1]
        self.row, self._at = -1, 0
        self._output: Sequence[int] = ()

    def begin_next(self) -> bool:
        """Have a row under way; False if all are done."""
        while self._at >= len(self._output):
            if self.row >= 0:
                self._drafter.stop(self.row)
            if not self._waiting:
                return False
            self.row, trace = self._waiting.pop()
            self._output, self._at = trace.output_ids, 1
            self._drafter.start(self.row, trace.prompt_ids, namespace=self._namespace)
            self._drafter.observe(self.row, self._output[:1])
        return True

    def step(self, token_ids: list[int]) -> tuple[int, int, int, int]:
        """Verify a draft."""
        at, output = self._at, self._output
        right = num_right(token_ids, output[at : at + len(token_ids)])
        self._at = min(len(output), at + right + 1)
        self._drafter.observe(self.row, output[at : self._at])
        return self.row, at, len(token_ids), self._at - at
