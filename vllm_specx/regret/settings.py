"""What a regret run is told: one frozen dataclass, each knob declared once with default, range and help."""

import math
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.settings import flag, knob_default, knob_help
from vllm_specx.config import MAX_SPECULATIVE_TOKENS


def _knob(default: Any, low: float, high: float, help: str) -> Any:
    return field(default=default, metadata={"low": low, "high": high, "help": help})


@dataclass(frozen=True, kw_only=True)
class RegretSettings:
    """Validated settings of a regret run; raises BenchError at construction."""

    batch: tuple[int, ...] = _knob(
        (1, 4, 8, 16, 32), 1, 256, "Comma-separated numbers of requests in flight."
    )
    seeds: int = _knob(3, 1, 1000, "How often each cell is run, each time in another order of its requests.")
    steps: int = _knob(800, 1, 10**6, "Least plain decode steps in a cell; short trace files are repeated.")
    phase: int = _knob(150, 1, 10**6, "Plain decode steps between two changes of workload or batch.")
    max_n: int = _knob(16, 1, MAX_SPECULATIVE_TOKENS, "Most draft tokens of a request in a step.")
    noise: float = _knob(0.05, 0.0, 1.0, "Relative noise of the step times that the rules get to see.")
    stalls: float = _knob(0.001, 0.0, 0.5, "Share of steps whose measured time is a stall of up to 2 s.")
    jobs: int = _knob(1, 1, 1024, "Processes to spread the cells over.")

    def __post_init__(self) -> None:
        for knob in fields(self):
            low, high = knob.metadata["low"], knob.metadata["high"]
            value = getattr(self, knob.name)
            for number in value if isinstance(value, tuple) else (value,):
                # Written so that nan fails too.
                if not (math.isfinite(number) and low <= number <= high):
                    raise BenchError(f"{flag(knob.name)} must be within [{low:g}, {high:g}], got {number}")
        if not self.batch:
            raise BenchError("--batch needs at least one number, for example 1,8")
        if len(set(self.batch)) != len(self.batch):
            raise BenchError(f"--batch names a number twice: {','.join(map(str, self.batch))}")


default = partial(knob_default, RegretSettings)
help_text = partial(knob_help, RegretSettings)
