"""What a replay is told: one frozen dataclass, and the options of each drafter with default and range."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.settings import closest
from vllm_specx.config import MAX_SPECULATIVE_TOKENS

_MANY = 2**31 - 1  # what Arctic Inference's C++ takes


class Option(NamedTuple):
    """An option's default, whose type is the option's, and its range."""

    default: int | float
    low: float
    high: float


DRAFTERS: Mapping[str, Mapping[str, Option]] = {
    "suffix-tree": {},
    "arctic": {
        "depth": Option(24, 1, _MANY),
        "factor": Option(1.0, 0.0, 1e6),
        "min_prob": Option(0.1, 0.0, 1.0),
        "max_spec": Option(16, 1, _MANY),
        "cached": Option(10000, -1, _MANY),
    },
    "prompt-lookup": {"lo": Option(2, 1, 64), "hi": Option(4, 1, 64), "n": Option(5, 1, _MANY)},
    "oracle": {"n": Option(16, 1, MAX_SPECULATIVE_TOKENS)},
}


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """Validated settings of a replay; raises BenchError at construction.

    `alpha` and `draft_cost` are relative to a plain decode step; `options` holds what differs from the defaults.
    """

    drafter: str = "suffix-tree"
    alpha: float = 0.1
    max_n: int = 32
    draft_cost: float = 0.0
    options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.drafter not in DRAFTERS:
            hint = closest(self.drafter, tuple(DRAFTERS))
            raise BenchError(f"--drafter {self.drafter!r} is not known{hint}; allowed: {', '.join(DRAFTERS)}")
        for flag, value in (("--alpha", self.alpha), ("--draft-cost", self.draft_cost)):
            if not (math.isfinite(value) and value >= 0):
                raise BenchError(f"{flag} must be a finite number of 0 or more, got {value}")
        if not 1 <= self.max_n <= MAX_SPECULATIVE_TOKENS:
            raise BenchError(
                f"--max-n must be within [1, {MAX_SPECULATIVE_TOKENS}] "
                f"(vLLM verifies no more), got {self.max_n}"
            )
        options = self.drafter_options()
        if self.options and self.drafter == "oracle" and options["n"] > self.max_n:
            raise BenchError(f"--options: n {options['n']} is above --max-n {self.max_n}; raise --max-n")

    def drafter_options(self) -> dict[str, int | float]:
        """Every option of the drafter, defaults filled in."""
        known = DRAFTERS[self.drafter]
        given = self.options or {}
        for key, value in given.items():
            if not known:
                raise BenchError(f"--options: {self.drafter} takes none, got {key!r}")
            if key not in known:
                hint = closest(key, tuple(known))
                raise BenchError(
                    f"--options: {self.drafter} has no option {key!r}{hint}; allowed: {', '.join(known)}"
                )
            _check(key, value, known[key])
        return {key: given.get(key, option.default) for key, option in known.items()}


def parse_options(text: str) -> dict[str, Any]:
    """Read the JSON object of --options."""
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        raise BenchError(f"--options is not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise BenchError(f"--options is not JSON that can be read: {error}") from error
    if not isinstance(options, dict):
        raise BenchError(f"--options must be a JSON object, got {text}")
    return options


def _check(key: str, value: Any, option: Option) -> None:
    whole = isinstance(option.default, int)
    allowed = (int,) if whole else (int, float)
    # Written so that nan fails too.
    if isinstance(value, bool) or not isinstance(value, allowed) or not option.low <= value <= option.high:
        kind = "a whole number" if whole else "a number"
        raise BenchError(
            f"--options: {key} must be {kind} within [{option.low:g}, {option.high:g}], got {json.dumps(value)}"
        )
