"""A table of measured step times, with where it comes from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

FORMAT: Final = "specx-costs/1"
_MOST_SECONDS: Final = 1e9
_FIELDS: Final = ("requests", "draft_tokens_per_request", "seconds")


class CostTableError(ValueError):
    """A cost table that cannot be used; the message says which field."""


@dataclass(frozen=True, slots=True, eq=False)
class CostTable:
    """Seconds of a step by requests and draft tokens per request.

    JSON: {"format": "specx-costs/1", "requests": [...], "draft_tokens_per_request": [...], "seconds": [[...], ...],
    "source": {...}}; a row per entry of `requests`.

    Attributes:
        requests: int64[rows], increasing, at least 1.
        drafts: int64[columns], draft tokens per request, increasing, the first is 0.
        seconds: float64[rows, columns], positive.
        source: provenance (model, machine, date, command); free-form.

    Raises:
        CostTableError: shapes or values that do not fit.

    """

    requests: NDArray[np.int64]
    drafts: NDArray[np.int64]
    seconds: NDArray[np.float64]
    source: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check shapes and values; arrays are copied and made read-only."""
        for name, kind in (("requests", np.int64), ("drafts", np.int64), ("seconds", np.float64)):
            try:
                given = np.asarray(getattr(self, name), dtype=np.float64)
            except (TypeError, ValueError, OverflowError) as error:
                raise CostTableError(f"{name}: not an array of numbers") from error
            with np.errstate(invalid="ignore"):  # of numbers beyond int64, which are not equal then
                array = given.astype(kind)
            if not np.array_equal(array, given):  # NaN too
                raise CostTableError(f"{name}: not an array of {'whole ' if kind is np.int64 else ''}numbers")
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        for name, least in (("requests", 1), ("drafts", 0)):
            array = getattr(self, name)
            if array.ndim != 1 or not len(array) or array[0] < least or np.any(np.diff(array) <= 0):
                raise CostTableError(
                    f"{name}: increasing numbers from {least} on are wanted, got {array.tolist()}"
                )
        if self.drafts[0] != 0:
            raise CostTableError("drafts: the first column must be 0, a step without speculation")
        if self.seconds.shape != (len(self.requests), len(self.drafts)):
            raise CostTableError(
                f"seconds: shape {self.seconds.shape} does not fit {len(self.requests)} x {len(self.drafts)}"
            )
        if not np.all((self.seconds > 0) & (self.seconds < _MOST_SECONDS)):
            raise CostTableError(f"seconds: positive numbers below {_MOST_SECONDS:g} are wanted")

    @classmethod
    def load(cls, path: str | Path) -> "CostTable":
        """Read a JSON file.

        Raises:
            CostTableError: not such a file; the message names it.
            OSError: it cannot be read.

        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise CostTableError(f"{path}: not JSON: {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CostTableError(f'{path}: not a cost table ("format" must be "{FORMAT}")')
        known = {"format", *_FIELDS, "source"}
        if unknown := set(content) - known:
            raise CostTableError(
                f"{path}: unknown field {min(unknown)!r}; known are {', '.join(sorted(known))}"
            )
        if missing := [name for name in _FIELDS if name not in content]:
            raise CostTableError(f"{path}: {missing[0]!r} is missing")
        source = content.get("source", {})
        if not isinstance(source, dict):
            raise CostTableError(f"{path}: source: an object is wanted")
        try:
            return cls(content[_FIELDS[0]], content[_FIELDS[1]], content[_FIELDS[2]], source)
        except CostTableError as error:
            raise CostTableError(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write a JSON file."""
        content = {
            "format": FORMAT,
            "requests": self.requests.tolist(),
            "draft_tokens_per_request": self.drafts.tolist(),
            "seconds": self.seconds.tolist(),
            "source": dict(self.source),
        }
        Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def __call__(self, num_requests: int, num_draft_tokens: ArrayLike) -> NDArray[np.float64]:
        """Seconds of steps with `num_requests` requests and, in all, `num_draft_tokens` draft tokens.

        Linear between the measured points, in requests and in draft tokens per request; beyond them the last slope
        goes on (never falling).
        """
        per_request = np.asarray(num_draft_tokens, dtype=np.float64) / num_requests
        return np.asarray(_line(self.drafts, self._row(num_requests), per_request))

    def _row(self, num_requests: int) -> NDArray[np.float64]:
        """Seconds for one number of requests, float64[columns]."""
        return np.array([float(_line(self.requests, column, num_requests)) for column in self.seconds.T])


def _line(x: NDArray[np.int64], y: NDArray[np.float64], at: ArrayLike) -> NDArray[np.float64]:
    """Straight lines through the points, going on at both ends without falling (to the left: without rising)."""
    where = np.asarray(at, dtype=np.float64)
    inside = np.interp(where, x, y)
    if len(x) == 1:
        return np.asarray(inside)
    last = max(0.0, float((y[-1] - y[-2]) / (x[-1] - x[-2])))
    first = max(0.0, float((y[1] - y[0]) / (x[1] - x[0])))
    below = np.maximum(inside - first * np.maximum(0, x[0] - where), 0.5 * y[0])
    return np.asarray(np.where(where < x[0], below, inside + last * np.maximum(0, where - x[-1])))
