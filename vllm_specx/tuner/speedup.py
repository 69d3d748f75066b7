"""The formula: tokens per step over the cost of the step, and the draft length that maximises it.

    S(N) = E(N) / (T_draft(N) + 1 + alpha*N)        E(N) = 1 + h_1 + h_1*h_2 + ... + h_1*...*h_N

Times are in units of a plain decode step. Acceptance is one probability for every position, or an array of
conditional ones (hazards), the last of which stands for all later positions.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Optimum(NamedTuple):
    """A draft length and what it earns."""

    n: int
    speedup: float


class Ceilings(NamedTuple):
    """What no draft length exceeds.

    Attributes:
        perfect: the limit for p -> 1 and N -> infinity, 1 / (alpha + draft_cost_per_token).
        free: the limit for N -> infinity at the given acceptance if a draft token cost nothing, 1 / (1 - p) for one p.

    """

    perfect: float
    free: float


def expected_tokens(acceptance: ArrayLike, n: int) -> float:
    """E(n): tokens that a step with n draft tokens commits, the bonus token included."""
    return float(expected_tokens_curve(acceptance, n)[n])


def expected_tokens_curve(acceptance: ArrayLike, max_n: int) -> NDArray[np.float64]:
    """E(0), ..., E(max_n); float64[max_n + 1].

    Args:
        acceptance: probability that a draft token is accepted given that it is reached: one for all positions, or
            one per position, the last standing for all later ones. Each within [0, 1].
        max_n: at least 0.

    Raises:
        ValueError: a value out of range.

    """
    if max_n < 0:
        raise ValueError(f"the number of draft tokens must not be negative, got {max_n}")
    hazards = np.atleast_1d(np.asarray(acceptance, dtype=np.float64))
    if hazards.ndim != 1 or not len(hazards) or not np.all((hazards >= 0) & (hazards <= 1)):
        raise ValueError(f"acceptance must be one or more probabilities within [0, 1], got {acceptance!r}")
    hazards = hazards[np.minimum(np.arange(max_n), len(hazards) - 1)]
    return 1 + np.concatenate(([0.0], np.cumsum(np.cumprod(hazards))))


def line_costs(
    alpha: float,
    max_n: int,
    *,
    draft_cost: float = 0.0,
    draft_cost_per_token: float = 0.0,
    idle_cost: float = 0.0,
) -> NDArray[np.float64]:
    """Cost of a step with 0..max_n draft tokens per request, in plain decode steps; float64[max_n + 1].

    Args:
        alpha: verification overhead of one draft token.
        max_n: at least 0.
        draft_cost: the part of drafting time that does not depend on N; paid when N > 0.
        draft_cost_per_token: the part that grows with N (autoregressive drafters).
        idle_cost: what drafting costs at N = 0 (EAGLE's first pass keeps its KV in sync).

    Raises:
        ValueError: a value that is negative or not finite.

    """
    if max_n < 0:
        raise ValueError(f"the number of draft tokens must not be negative, got {max_n}")
    for name, value in (
        ("alpha", alpha),
        ("draft_cost", draft_cost),
        ("draft_cost_per_token", draft_cost_per_token),
        ("idle_cost", idle_cost),
    ):
        if not 0 <= value < np.inf:
            raise ValueError(f"{name} must be at least 0 and finite, got {value}")
    costs = 1 + draft_cost + (alpha + draft_cost_per_token) * np.arange(max_n + 1, dtype=np.float64)
    costs[0] = 1 + idle_cost
    return np.asarray(costs)


def speedup_curve(
    acceptance: ArrayLike, costs: ArrayLike, *, plain: float | None = None
) -> NDArray[np.float64]:
    """S(0), ..., S(len(costs) - 1) for any costs, measured ones too.

    Args:
        acceptance: as in `expected_tokens_curve`.
        costs: cost of a step with 0, 1, ... draft tokens per request, in any unit; positive.
        plain: cost of a step without speculation in that unit; costs[0] if not given.

    """
    seconds = np.asarray(costs, dtype=np.float64)
    if seconds.ndim != 1 or not len(seconds) or not np.all((seconds > 0) & (seconds < np.inf)):
        raise ValueError("costs must be one or more positive, finite numbers")
    reference = float(seconds[0]) if plain is None else plain
    if not 0 < reference < np.inf:
        raise ValueError(f"the cost of a plain step must be positive and finite, got {plain}")
    return np.asarray(expected_tokens_curve(acceptance, len(seconds) - 1) * (reference / seconds))


def speedup(
    acceptance: ArrayLike, n: int, alpha: float, draft_cost: float = 0.0, draft_cost_per_token: float = 0.0
) -> float:
    """S(n) over plain decoding; arguments as in `line_costs`."""
    costs = line_costs(alpha, n, draft_cost=draft_cost, draft_cost_per_token=draft_cost_per_token)
    return float(speedup_curve(acceptance, costs, plain=1.0)[n])


def best_n(
    acceptance: ArrayLike,
    alpha: float,
    *,
    max_n: int,
    draft_cost: float = 0.0,
    draft_cost_per_token: float = 0.0,
) -> Optimum:
    """The shortest draft length within 0..max_n that maximises S."""
    costs = line_costs(alpha, max_n, draft_cost=draft_cost, draft_cost_per_token=draft_cost_per_token)
    return best_n_for(acceptance, costs, plain=1.0)


def best_n_for(acceptance: ArrayLike, costs: ArrayLike, *, plain: float | None = None) -> Optimum:
    """The same for any costs; arguments as in `speedup_curve`."""
    curve = speedup_curve(acceptance, costs, plain=plain)
    n = int(np.argmax(curve))
    return Optimum(n, float(curve[n]))


def ceilings(acceptance: ArrayLike, alpha: float, draft_cost_per_token: float = 0.0) -> Ceilings:
    """Both bounds of S at any N; infinite where a denominator is zero."""
    hazards = np.atleast_1d(np.asarray(acceptance, dtype=np.float64))
    tokens = expected_tokens_curve(hazards, len(hazards) - 1)
    tail = float(np.prod(hazards[:-1]))  # chance to reach the last hazard, which goes on for ever
    last = float(hazards[-1])
    per_token = float(line_costs(alpha, 1, draft_cost_per_token=draft_cost_per_token)[1]) - 1
    return Ceilings(
        perfect=1 / per_token if per_token > 0 else np.inf,
        free=float(tokens[-1]) + (tail * last / (1 - last) if last < 1 else (np.inf if tail > 0 else 0.0)),
    )
