"""Counts what a proposer does, on a page."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_specx.metrics import _kernels as kernels
from vllm_specx.metrics.layout import DRAFTERS, LENGTHS, NUM_VALUES, OFFSETS, POSITIONS, REACH_BINS, REASONS
from vllm_specx.tuner import Decision, Step

_BUCKET: Final = [bisect_left(LENGTHS, n) for n in range(LENGTHS[-1] + 1)]
_REASON: Final = {reason: i for i, reason in enumerate(REASONS)}
_DRAFTER: Final = {drafter: i for i, drafter in enumerate(DRAFTERS)}
_PLACES: Final = tuple(
    OFFSETS[name]
    for name in (
        "specx_drafts",
        "specx_drafter_accepted_tokens",
        "specx_draft_tokens",
        "specx_accepted_tokens",
        "specx_reach_tokens",
        "specx_reach_promised_tokens",
        "specx_reach_accepted_tokens",
    )
)


class DraftMeter:
    """Turns steps into numbers of the layout.

    Args:
        page: see `page.new_page`.

    """

    def __init__(self, page: NDArray[np.float64]) -> None:
        """Start from a page of zeros."""
        self._page = page
        self._views = {name: page[at:] for name, at in OFFSETS.items()}
        self._count(*3 * [np.empty(0, dtype=np.int64)], np.empty(0))  # compiles

    def chosen(self, lengths: Sequence[int], decision: Decision | None, reason: str, seconds: float) -> None:
        """Count a choice.

        Args:
            lengths: of the drafts that are offered, by request.
            decision: of the tuner, if it decided.
            reason: why these lengths.
            seconds: that drafting took.

        """
        views = self._views
        if lengths:
            histogram, total = views["specx_draft_length"], sum(lengths)
            for (
                n
            ) in lengths:  # numpy, whose code has left the processor's caches since the last step, is slower
                histogram[_BUCKET[n]] += 1
            histogram[len(LENGTHS) + 1] += total
            views["specx_steps"][_REASON.get(reason, 0)] += 1
            views["specx_steps_without_draft"][0] += total == 0
        self.drafted(seconds)
        if decision is not None:
            views["specx_estimated_speedup"][0] = decision.speedup
            views["specx_alpha"][0] = decision.alpha

    def drafted(self, seconds: float) -> None:
        """Count time that drafting took."""
        self._views["specx_draft_seconds"][0] += seconds

    def verified(self, drafts: Sequence[tuple[str, NDArray[np.float64], int]]) -> None:
        """Count what became of drafts.

        Args:
            drafts: of each, its drafter, the reach of its verified tokens, float64 (n,) with n above 0, and how many
                were accepted.

        """
        if not drafts:
            return
        self._count(
            np.array([_DRAFTER[drafter] for drafter, _, _ in drafts], dtype=np.int64),
            np.array([len(reach) for _, reach, _ in drafts], dtype=np.int64),
            np.array([num for _, _, num in drafts], dtype=np.int64),
            np.concatenate([reach for _, reach, _ in drafts], dtype=np.float64),
        )

    def _count(self, *drafts: NDArray[Any]) -> None:
        kernels._count_verified(self._page, _PLACES, (POSITIONS, REACH_BINS), *drafts)

    def kept(self) -> NDArray[np.float64]:
        """By tenths of reach: tokens verified, what was promised, tokens accepted; float64 (3, 10), a copy."""
        names = ("specx_reach_tokens", "specx_reach_promised_tokens", "specx_reach_accepted_tokens")
        return np.stack([self._views[name][:REACH_BINS] for name in names])

    def stepped(self, step: Step, plain_seconds: Callable[[int], float]) -> None:
        """Count a decode step without prompts whose time is known.

        Args:
            step: what it did.
            plain_seconds: returns seconds of a step of so many requests without drafts, by the tuner's costs.

        """
        if step.seconds is None or step.num_prefill_tokens or not step.num_requests:
            return
        plain = plain_seconds(step.num_requests)
        if not (0.0 < step.seconds < 60.0 and 0.0 < plain < 60.0):
            return
        views = self._views
        views["specx_tokens"][0] += step.num_tokens
        views["specx_step_seconds"][0] += step.seconds
        views["specx_plain_step_seconds"][0] += plain
        views["specx_plain_seconds"][0] += plain * step.num_tokens / step.num_requests

    def state(self, numbers: Mapping[str, float]) -> None:
        """Set metrics of one number."""
        for name, number in numbers.items():
            self._views[name][0] = number


def no_meter() -> DraftMeter:
    """Of a worker whose drafts are not used: nobody reads it."""
    return DraftMeter(np.zeros(NUM_VALUES))


def meter_of(vllm_config: Any) -> DraftMeter:
    """The meter of the worker whose drafts are used."""
    from vllm_specx.metrics.page import new_page

    parallel = vllm_config.parallel_config
    return DraftMeter(
        new_page(str(vllm_config.instance_id), int(getattr(parallel, "data_parallel_index", 0)))
    )
