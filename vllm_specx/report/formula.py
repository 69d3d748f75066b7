"""The formula of `vllm_specx.tuner.speedup` fitted to a bench, where a drafter ran at several fixed lengths. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_specx.bench.document import Row, cell_of
from vllm_specx.tuner import Optimum, best_n_for, expected_tokens_curve, line_costs, speedup_curve

_FILLED: Final = 0.05  # a drafter that leaves more than this share of N unused has no fixed length
_GRID: Final = np.linspace(0, 1, 501)


@dataclass(frozen=True)
class Fit:
    """One drafter in one cell.

    Attributes:
        drafter: the method without its length.
        rows: by length, the shortest first.
        lengths: int64[len(rows)].
        p: acceptance, the same at every position.
        alpha: cost of one more draft token, drafted and verified, in plain decode steps.
        draft_cost: cost of drafting at all, in the same unit.
        expected_tokens: float64[max_n + 1], E(N) by the formula; so is speedups, S(N).
        optimum: the length with the largest S, and that.

    """

    drafter: str
    rows: tuple[Row, ...]
    lengths: NDArray[np.int64]
    p: float
    alpha: float
    draft_cost: float
    expected_tokens: NDArray[np.float64]
    speedups: NDArray[np.float64]
    optimum: Optimum


def fits(rows: Iterable[Row], methods: Mapping[str, Any]) -> list[Fit]:
    """One for each drafter and cell with two fixed lengths or more; `methods` is what vLLM was told for each."""
    groups: dict[tuple[str, int, str, str], dict[int, Row]] = {}
    for row in rows:
        n = fixed_length(row, methods[row["method"]])
        if n is not None and row["tokens_per_step"]:
            key = (*cell_of(row), row["method"].partition(":")[0])
            groups.setdefault(key, {})[n] = row
    return [fit(key[-1], group) for key, group in groups.items() if len(group) > 1]


def fixed_length(row: Row, options: Mapping[str, Any]) -> int | None:
    """N, where vLLM's own drafter drafted that many tokens in every step; else None."""
    speculative = options.get("speculative_config")
    if not isinstance(speculative, dict) or "method" not in speculative:
        return None
    n, drafted = speculative.get("num_speculative_tokens"), row["draft_tokens_per_step"]
    if not isinstance(n, int) or not 1 <= n <= 128 or drafted is None:
        return None
    return n if abs(drafted - n) <= _FILLED * n else None


def fit(drafter: str, by_length: Mapping[int, Row]) -> Fit:
    """Least squares: p from the tokens per step, alpha and draft_cost from what a step cost."""
    lengths = np.array(sorted(by_length))
    rows = tuple(by_length[n] for n in lengths.tolist())
    tokens = np.array([row["tokens_per_step"] for row in rows])
    p = _acceptance(lengths, tokens)
    alpha, draft_cost = _line(lengths, np.array([step_cost(row) for row in rows]) - 1)
    max_n = max(8, 2 * int(lengths[-1]))
    costs = line_costs(alpha, max_n, draft_cost=draft_cost)
    return Fit(
        drafter,
        rows,
        lengths,
        p,
        alpha,
        draft_cost,
        expected_tokens_curve(p, max_n),
        speedup_curve(p, costs, plain=1.0),
        best_n_for(p, costs, plain=1.0),
    )


def step_cost(row: Row) -> float | None:
    """What a step took, in plain decode steps: E / S with the measured tokens per step and speedup."""
    tokens: float | None = row["tokens_per_step"]
    return None if tokens is None else tokens / float(row["ratio"]["geometric_mean"])


def _acceptance(lengths: NDArray[np.int64], tokens: NDArray[np.float64]) -> float:
    powers = _GRID[:, None] ** np.arange(int(lengths[-1]) + 1)
    errors = ((np.cumsum(powers, axis=1)[:, lengths] - tokens) ** 2).sum(axis=1)
    return float(_GRID[int(np.argmin(errors))])


def _line(lengths: NDArray[np.int64], extra: NDArray[np.float64]) -> tuple[float, float]:
    centred = lengths - lengths.mean()
    slope = max(0.0, float(centred @ extra / (centred @ centred)))
    return slope, max(0.0, float(extra.mean() - slope * lengths.mean()))
