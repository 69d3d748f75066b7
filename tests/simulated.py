"""Small fleets for tests of the simulation, and their recorded drafts in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drafters.replay import Trace
from vllm_specx.simulate.curve import Curve, no_curve
from vllm_specx.simulate.recorded import rules_of, run_recorded, world_of
from vllm_specx.simulate.settings import SimulateSettings
from vllm_specx.simulate.state import Rules, State, World
from vllm_specx.simulate.stream import Stream, draw
from vllm_specx.simulate.texts import Texts
from vllm_specx.simulate.times import StepTimes
from vllm_specx.tuner import CostTable, Step


def texts_of(outputs: Sequence[int], prompts: Sequence[int] | int = 0) -> Texts:
    """Rows whose lengths alone matter."""
    lengths = [prompts] * len(outputs) if isinstance(prompts, int) else prompts
    return Texts.of(
        [
            Trace(str(k), [1] * p, list(range(o)))
            for k, (p, o) in enumerate(zip(lengths, outputs, strict=True))
        ]
    )


def flat_table(seconds: float = 0.1) -> CostTable:
    """Every step takes the same time, whatever is in it."""
    return CostTable([1, 64], [0, 16], np.full((2, 2), seconds))


def line_table(step: float = 0.02, request: float = 0.001, draft: float = 0.0005) -> CostTable:
    """A line in requests and draft tokens."""
    requests, drafts = np.array([1, 8, 64]), np.array([0, 1, 4, 16])
    seconds = step + request * requests[:, None] + draft * requests[:, None] * drafts
    return CostTable(requests, drafts, seconds)


def stream_of(
    arrival: Sequence[float],
    *,
    rows: Sequence[int] | None = None,
    tenants: Sequence[int] | None = None,
    replicas: int = 1,
    duration: float | None = None,
    restarts: Sequence[tuple[float, int]] = (),
) -> Stream:
    """Requests of which everything is given."""
    num = len(arrival)
    tenant = np.zeros(num, dtype=np.int64) if tenants is None else np.asarray(tenants)
    return Stream(
        duration=duration or max(arrival) + 1.0,
        arrival=np.asarray(arrival, dtype=np.float64),
        row=np.zeros(num, dtype=np.int64) if rows is None else np.asarray(rows),
        tenant=tenant,
        num_tenants=int(tenant.max()) + 1,
        coin=np.zeros(num),
        pick=np.zeros(num),
        phase=np.zeros(replicas),
        restart_at=np.array([at for at, _ in restarts], dtype=np.float64),
        restart_of=np.array([r for _, r in restarts], dtype=np.int64),
    )


def world(
    settings: SimulateSettings,
    texts: Texts,
    *,
    memory: str = "private",
    table: CostTable | None = None,
    stream: Stream | None = None,
    curve: Curve | None = None,
    most_seen: int = 1 << 30,
) -> tuple[World, Rules]:
    """What a run needs."""
    times = StepTimes.of(
        flat_table() if table is None else table,
        max_num_seqs=settings.max_num_seqs,
        max_n=settings.max_n,
        prefill_us=settings.prefill_us,
    )
    stream = draw(settings, texts) if stream is None else stream
    made = world_of(settings, texts, stream, no_curve(texts) if curve is None else curve, times)
    return made, rules_of(settings, stream, times, memory, most_seen)


def run_fleet(settings: SimulateSettings, texts: Texts, **options: Any) -> tuple[World, State]:
    """Run the kernels."""
    w, rules = world(settings, texts, **options)
    return w, run_recorded(w, rules)


def random_curve(texts: Texts, rng: np.random.Generator, levels: Sequence[int] = (0, 2, 7)) -> Curve:
    """Recordings that never were, better with more in memory."""
    offsets = np.cumsum(texts.outputs) - texts.outputs
    shape = len(levels), 2, int(texts.outputs.sum())
    drafts = rng.integers(0, 5, shape).astype(np.int16)
    commits = np.ones(shape, dtype=np.int16)
    for offset, num in zip(offsets.tolist(), texts.outputs.tolist(), strict=True):
        for p in range(1, num):
            right = rng.integers(0, drafts[:, :, offset + p] + 1)
            commits[:, :, offset + p] = np.minimum(right + 1, num - p)
    means = np.linspace(1.5, 3.0, shape[0])[:, None] * [1.0, 0.9], np.full(shape[:2], 2.0)
    return Curve(np.array(levels), np.array([0.1, 0.5]), offsets, drafts, commits, *means)


class Recorded:
    """Recorded drafts for `loop.run`: what the kernels do with them, written down once more."""

    def __init__(self, w: World) -> None:
        self._w = w
        self._level: dict[int, int] = {}

    def hear(self, r: int, until: float) -> None:
        """Nothing: the loop counts."""

    def start(self, r: int, q: int, seen: int) -> None:
        levels = self._w.levels.tolist()
        at = max(k for k, level in enumerate(levels) if level <= seen)
        if at + 1 < len(levels):
            low, high = math.log1p(levels[at]), math.log1p(levels[at + 1])
            at += self._w.coin[q] < (math.log1p(seen) - low) / (high - low)
        self._level[q] = int(at)

    def decode(self, r: int, requests: Sequence[int], known: Sequence[int]) -> tuple[list[int], list[int]]:
        w, drafts, commits = self._w, [], []
        for q, at in zip(requests, known, strict=True):
            level = self._level[q]
            k = int(w.best[len(requests), level])
            is_off = k == w.drafts.shape[1]
            token = int(w.offsets[w.row[q]]) + at
            drafts.append(0 if is_off else int(w.drafts[level, k, token]))
            commits.append(1 if is_off else int(w.commits[level, k, token]))
        return drafts, commits

    def observe(self, r: int, q: int, begin: int, end: int) -> None:
        """Nothing to learn."""

    def stop(self, r: int, q: int, stored: float) -> None:
        """Nothing to keep."""

    def account(self, r: int, step: Step) -> None:
        """Nothing to tune."""

    def restart(self, r: int) -> None:
        """Nothing to forget."""
