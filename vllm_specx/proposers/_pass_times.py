"""What the passes of a head take, measured where they are made."""

from __future__ import annotations

from typing import Final, Protocol

_FADE: Final = 0.99
_CLIP: Final = 3.0  # times what was predicted; a stall counts for no more
_NUM_TRUSTED: Final = 4  # measurements before one is clipped


class Line:
    """seconds = fixed + slope * size, by least squares with fading memory; neither is negative.

    Args:
        fixed: seconds until something was measured.

    """

    def __init__(self, fixed: float) -> None:
        self._n = self._x = self._xx = self._y = self._xy = 0.0
        self._num = 0
        self._fixed, self._slope = fixed, 0.0

    def __call__(self, size: float) -> float:
        """Predicted seconds."""
        return self._fixed + self._slope * size

    def update(self, size: float, seconds: float) -> None:
        """Learn from one measurement; one that makes no sense is left out."""
        if not 0.0 <= seconds < 60.0:
            return
        self._num += 1
        if self._num > _NUM_TRUSTED:
            seconds = min(seconds, _CLIP * self(size))
        for name, value in (
            ("_n", 1.0),
            ("_x", size),
            ("_xx", size * size),
            ("_y", seconds),
            ("_xy", size * seconds),
        ):
            setattr(self, name, _FADE * getattr(self, name) + value)
        spread = self._n * self._xx - self._x**2
        slope = (
            (self._n * self._xy - self._x * self._y) / spread if spread > 1e-9 * self._n * self._xx else 0.0
        )
        slope = max(0.0, min(slope, self._xy / self._xx if self._xx else 0.0))
        self._slope, self._fixed = slope, max(0.0, (self._y - slope * self._x) / self._n)


class DraftTimes(Protocol):
    """Seconds of a step's drafting, as `DepthRule` asks for them."""

    def read(self, num_tokens: float, /) -> float:
        """Of the pass over what was verified."""

    def sample(self, num_requests: float, /) -> float:
        """Of choosing a first token."""

    def more(self, num_requests: float, /) -> float:
        """Of a further pass and its token."""

    def drafting(self, num_requests: int, depth: int, /) -> float:
        """Of drafting so many tokens, beyond the pass that reads."""


class PassTimes:
    """Seconds of a step's drafting.

    Attributes:
        read: of the pass over what was verified, by tokens.
        sample: of choosing a token, by requests.
        more: of a further pass and its token, by requests.

    """

    def __init__(self) -> None:
        self.read, self.sample, self.more = Line(2e-3), Line(5e-4), Line(2e-3)

    def drafting(self, num_requests: int, depth: int) -> float:
        """Seconds beyond the pass that reads."""
        return self.sample(num_requests) + (depth - 1) * self.more(num_requests) if depth else 0.0
