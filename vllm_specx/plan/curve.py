"""What the formula says for one acceptance and one set of costs."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_specx.bench.costs import load_costs
from vllm_specx.bench.errors import BenchError
from vllm_specx.config import MAX_SPECULATIVE_TOKENS
from vllm_specx.tuner import (
    best_n_for,
    ceilings,
    expected_tokens_curve,
    line_costs,
    speedup_curve,
)

_MAX_BATCH: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Validated settings of a plan; raises BenchError at construction.

    Attributes:
        p: acceptance by draft position, given that it is reached; the last stands for all later ones.
        alpha: cost of verifying a draft token, in plain decode steps; None where `costs` says it.
        draft_cost: cost of drafting a token, in plain decode steps (autoregressive drafters).
        draft_cost_fixed: cost of drafting that does not grow with N, paid where N > 0.
        costs: measured step times.
        batch: requests in flight, for `costs`.
        max_n: largest draft length looked at.

    """

    p: tuple[float, ...]
    alpha: float | None = None
    draft_cost: float = 0.0
    draft_cost_fixed: float = 0.0
    costs: Path | None = None
    batch: int | None = None
    max_n: int = 32

    def __post_init__(self) -> None:
        # Comparisons are written so that nan fails too.
        for p in self.p:
            if not 0 <= p <= 1:
                raise BenchError(f"--p must be within [0, 1], got {p}")
        for flag, value in (
            ("--alpha", self.alpha),
            ("--draft-cost", self.draft_cost),
            ("--draft-cost-fixed", self.draft_cost_fixed),
        ):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise BenchError(f"{flag} must be a finite number of 0 or more, got {value}")
        if not 1 <= self.max_n <= MAX_SPECULATIVE_TOKENS:
            raise BenchError(
                f"--max-n must be within [1, {MAX_SPECULATIVE_TOKENS}] (vLLM verifies no more), got {self.max_n}"
            )
        if self.costs is None and self.alpha is None:
            raise BenchError("give --alpha, or --costs with --batch")
        if self.costs is not None and self.alpha is not None:
            raise BenchError("--alpha and --costs contradict each other: give one of them")
        if (self.costs is None) != (self.batch is None):
            raise BenchError(
                "--costs and --batch go together: the table has a row for each number of requests"
            )
        if self.batch is not None and not 1 <= self.batch <= _MAX_BATCH:
            raise BenchError(f"--batch must be within [1, {_MAX_BATCH}], got {self.batch}")


@dataclass(frozen=True)
class Plan:
    """The answer.

    Attributes:
        settings: the question.
        optimal_n: the shortest draft length with the largest speedup; 0 where speculation does not pay.
        speedup: there.
        ceiling: the limit for p -> 1 and N -> infinity; infinite where a draft token costs nothing.
        free_ceiling: the limit for N -> infinity at this p if a draft token cost nothing; infinite for p = 1.
        expected_tokens: float64[max_n + 1], by N; so are cost, in plain decode steps, and speedups.

    """

    settings: PlanSettings
    optimal_n: int
    speedup: float
    ceiling: float
    free_ceiling: float
    expected_tokens: NDArray[np.float64]
    cost: NDArray[np.float64]
    speedups: NDArray[np.float64]

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`; infinite ceilings are null."""
        settings = self.settings
        return {
            "p": settings.p[0] if len(settings.p) == 1 else list(settings.p),
            "alpha": settings.alpha,
            "draft_cost": settings.draft_cost,
            "draft_cost_fixed": settings.draft_cost_fixed,
            "costs": None if settings.costs is None else str(settings.costs),
            "batch": settings.batch,
            "optimal_n": self.optimal_n,
            "speedup": round(self.speedup, 6),
            "ceiling": _finite(self.ceiling),
            "ceilings": {
                "perfect_acceptance": _finite(self.ceiling),
                "free_drafts": _finite(self.free_ceiling),
            },
            "curve": [
                {
                    "n": n,
                    "expected_tokens": round(float(self.expected_tokens[n]), 6),
                    "cost": round(float(self.cost[n]), 6),
                    "speedup": round(float(self.speedups[n]), 6),
                }
                for n in range(len(self.speedups))
            ],
        }


def make_plan(settings: PlanSettings) -> Plan:
    """Evaluate the formula. Raises BenchError if the cost table cannot be used."""
    costs, alpha = _costs(settings)
    best = best_n_for(settings.p, costs, plain=1.0)
    limits = ceilings(settings.p, alpha, settings.draft_cost)
    return Plan(
        settings,
        best.n,
        best.speedup,
        float(limits.perfect),
        float(limits.free),
        expected_tokens_curve(settings.p, settings.max_n),
        costs,
        speedup_curve(settings.p, costs, plain=1.0),
    )


def _costs(settings: PlanSettings) -> tuple[NDArray[np.float64], float]:
    """Cost of 0..max_n draft tokens per request in plain decode steps, and of one more where N is large."""
    drafting: dict[str, float] = {
        "draft_cost": settings.draft_cost_fixed,
        "draft_cost_per_token": settings.draft_cost,
    }
    if settings.costs is None or settings.batch is None:
        alpha = settings.alpha or 0.0
        return line_costs(alpha, settings.max_n, **drafting), alpha
    table, batch = load_costs(settings.costs), settings.batch
    n = np.arange(settings.max_n + 1)
    plain = float(table(batch, 0))
    far = int(max(table.drafts[-1], settings.max_n)) + 1  # beyond the table its last slope goes on
    before, after = table(batch, np.array([far, far + 1]) * batch) / plain
    alpha = max(0.0, float(after - before))
    return table(batch, n * batch) / plain + line_costs(0.0, settings.max_n, **drafting) - 1, alpha


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
