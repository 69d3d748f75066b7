"""Medians, paired ratios and their 95 % intervals. Pure: numbers in, numbers out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Ratio", "median", "paired_ratio", "percentile", "t_quantile"]


@dataclass(frozen=True)
class Ratio:
    """A ratio over paired repeats.

    `low`, `high`: 95 % t interval of the geometric mean (None with a single pair).
    `half_width`: half the interval over the geometric mean, 0.02 for plus or minus 2 %.
    """

    values: tuple[float, ...]
    median: float
    geometric_mean: float
    low: float | None
    high: float | None
    half_width: float | None


def paired_ratio(
    numerators: Sequence[float], denominators: Sequence[float], confidence: float = 0.95
) -> Ratio:
    """Ratio per pair, summarised on the log scale, where a gain and a loss of one factor weigh the same.

    Both sequences hold one positive value per repeat, in the same order. Raises ValueError otherwise.
    """
    if len(numerators) != len(denominators) or not numerators:
        raise ValueError(
            f"need equally many repeats, at least one: got {len(numerators)} and {len(denominators)}"
        )
    if min(*numerators, *denominators) <= 0:
        raise ValueError("every value of a ratio must be positive")
    values = tuple(a / b for a, b in zip(numerators, denominators, strict=True))
    logs = [math.log(value) for value in values]
    count = len(logs)
    mean = math.fsum(logs) / count
    centre = math.exp(mean)
    if count == 1:
        return Ratio(values, values[0], centre, None, None, None)
    variance = math.fsum((value - mean) ** 2 for value in logs) / (count - 1)
    reach = t_quantile(0.5 + confidence / 2, count - 1) * math.sqrt(variance / count)
    low, high = math.exp(mean - reach), math.exp(mean + reach)
    return Ratio(values, median(values), centre, low, high, (high - low) / (2 * centre))


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear interpolation between order statistics; None for no values."""
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile lies in 0..100, got {percent}")
    if not values:
        return None
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def t_quantile(probability: float, degrees: int) -> float:
    """Upper quantile of Student's t for 0.5 <= probability < 1 and a whole number of degrees of freedom."""
    if degrees < 1 or not 0.5 <= probability < 1:
        raise ValueError(f"need 0.5 <= probability < 1 and degrees >= 1, got {probability} and {degrees}")
    low, high = 0.0, math.pi / 2
    for _ in range(200):
        middle = (low + high) / 2
        if 0.5 + _central_mass(middle, degrees) / 2 < probability:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _central_mass(theta: float, degrees: int) -> float:
    # P(|T| < t) with theta = atan(t / sqrt(degrees)): Abramowitz and Stegun, 26.7.3 and 26.7.4.
    sine, cosine = math.sin(theta), math.cos(theta)
    term = cosine if degrees % 2 else 1.0
    total = term if degrees > 1 else 0.0
    for step in range(2 + degrees % 2, degrees - 1, 2):
        term *= cosine**2 * (step - 1) / step
        total += term
    return 2 / math.pi * (theta + sine * total) if degrees % 2 else sine * total
