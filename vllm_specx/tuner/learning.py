"""What policies learn beside acceptance and costs: whether reach can be trusted, and when to try something else."""

from math import sqrt
from typing import Final

_DRIFT: Final = 1e-4  # of trust, variance per step
_DRIFT_OFF: Final = 5e-3  # while distrust keeps drafts from being tried
_MOST_DOUBT: Final = 0.25  # variance
_DISTRUST: Final = 0.7
_OVERDISPERSION: Final = 2.0  # outcomes of one step are alike
_OLD: Final = 0.9  # weight of what was, in the mean of recent errors
_ALARM: Final = 1.0  # such a mean, in standard deviations of one, is a change


class Trend:
    """Tells a change from noise: the mean of recent errors, in standard deviations.

    Without a change that mean has a deviation of 0.23, so that it reaches 1 by chance once in some ten thousand steps.
    """

    def __init__(self) -> None:
        """Start from no error."""
        self._mean = 0.0

    def is_change(self, error: float) -> bool:
        """Add an error; after a change it starts anew."""
        self._mean = _OLD * self._mean + (1 - _OLD) * error
        if abs(self._mean) <= _ALARM:
            return False
        self._mean = 0.0
        return True


def outcome_deviation(expected: float, variance: float) -> float:
    """Standard deviation of accepted tokens; outcomes of one step are more alike than independent ones."""
    return sqrt(_OVERDISPERSION * (max(variance, 0.1 * expected) + 0.05))


class Trust:
    """Accepted over expected tokens, by a Kalman filter.

    A calibrated drafter has 1. Where a workload stops accepting faster than the drafter notices, this falls; drafts
    are then offered rarely, and doubt about it grows until some are accepted again.
    """

    def __init__(self) -> None:
        """Believe the drafter."""
        self.value = 1.0
        self.variance = 0.02
        self._trend = Trend()

    @property
    def is_low(self) -> bool:
        """Whether outcomes say that reach promises far too much."""
        return self.value < _DISTRUST

    def update(self, expected: float, variance: float, accepted: float) -> None:
        """Account for a step: expected accepted tokens and their variance, both at trust 1, and accepted tokens."""
        idle = expected <= 0 and self.is_low
        self.variance = min(_MOST_DOUBT, self.variance + (_DRIFT_OFF if idle else _DRIFT))
        if expected <= 0:
            return
        noise = outcome_deviation(expected, variance) ** 2
        error = accepted - self.value * expected
        spread = expected * expected * self.variance + noise
        if self._trend.is_change(error / sqrt(spread)):
            self.variance = _MOST_DOUBT
            spread = expected * expected * self.variance + noise
        gain = self.variance * expected / spread
        self.value = min(1.25, max(0.0, self.value + gain * error))
        self.variance *= 1 - gain * expected


class Probe:
    """When to try something else: after `first` steps, then after twice as many, up to `last`."""

    def __init__(self, first: int, last: int) -> None:
        """Start counting."""
        self._first, self._last = first, last
        self._interval = first
        self._steps = 0

    def due(self, limit: int | None = None) -> bool:
        """Count a step; True when it is time (or `limit` steps have passed)."""
        self._steps += 1
        if self._steps < (self._interval if limit is None else min(limit, self._interval)):
            return False
        self._steps = 0
        return True

    def report(self, surprising: bool) -> None:
        """Say how a probe went: the next comes soon if something was learned, else later."""
        self._interval = self._first if surprising else min(self._last, 2 * self._interval)

    def again(self) -> None:
        """Probe in the next step too."""
        self._steps = self._last


NUM_BUCKETS: Final = 12


def bucket(num_requests: int) -> int:
    """Size of a batch, in powers of two: 1, 2, 3..4, 5..8, ..."""
    return min((num_requests - 1).bit_length(), NUM_BUCKETS - 1)
