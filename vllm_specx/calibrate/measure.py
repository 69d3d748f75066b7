"""The order of a calibration: for each number of requests, all draft lengths in turns, again and again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from vllm_specx.calibrate.settings import CalibrateSettings
from vllm_specx.tuner import Step

Tell = Callable[[str, int, int], None]

_WARM_UP: Final = 2  # steps of a visit that are not timed: the first of a shape are slow
_PATIENCE: Final = 8  # steps to run for each one that is wanted


class TooFewSteps(RuntimeError):
    """The engine did not run the steps that were to be measured."""


class Engine(Protocol):
    """The part of an engine that is needed; a fake of it serves the unit tests."""

    def keep(self, num_requests: int) -> None:
        """Keep so many requests in flight from now on, and return when all of them decode."""
        ...

    def offer(self, num_drafts: int) -> None:
        """Offer each request so many draft tokens from the next step on."""
        ...

    def measure_step(self) -> Sequence[Step]:
        """Run one step of the engine; return what was measured."""
        ...

    def end_all(self) -> None:
        """End all requests."""
        ...


@dataclass(frozen=True)
class Measured:
    """Rows are numbers of requests, columns draft tokens per request, as in the settings.

    Attributes:
        seconds: float64[rows, columns], medians.
        spread: float64[rows, columns], distance of the quartiles, relative to the median.
        num_steps: steps behind each number.

    """

    seconds: NDArray[np.float64]
    spread: NDArray[np.float64]
    num_steps: int


def measure(engine: Engine, settings: CalibrateSettings, tell: Tell) -> Measured:
    """Visit every cell; `tell(what, done, total)` is called at each visit.

    Raises:
        TooFewSteps: requests or drafts did not fit into the engine.

    """
    times: dict[tuple[int, int], list[float]] = {(b, n): [] for b in settings.batch for n in settings.drafts}
    total, done = len(times) * settings.repeats, 0
    for b in settings.batch:
        tell(f"{b} requests, prompts", done, total)
        engine.keep(b)
        for repeat in range(settings.repeats):
            # Contexts grow while they are measured: no length has the same place each time.
            shift = repeat * len(settings.drafts) // settings.repeats
            for n in (*settings.drafts[shift:], *settings.drafts[:shift]):
                tell(f"{b} requests, {n} draft tokens each, repeat {repeat + 1}", done, total)
                times[b, n] += _visit(engine, b, n, settings.steps)
                done += 1
        engine.end_all()
    shape = len(settings.batch), len(settings.drafts), -1
    all_times = np.array(list(times.values())).reshape(shape)
    low, median, high = np.percentile(all_times, [25, 50, 75], axis=-1)
    return Measured(median, (high - low) / median, all_times.shape[-1])


def _visit(engine: Engine, num_requests: int, num_drafts: int, num_steps: int) -> list[float]:
    """Seconds of steps that decode so many requests, verify so many draft tokens of each, and nothing else."""
    engine.offer(num_drafts)
    found: list[float] = []
    wanted = num_steps + _WARM_UP
    for _ in range(wanted * _PATIENCE):
        found += [
            step.seconds
            for step in engine.measure_step()
            if step.seconds is not None
            and step.seconds > 0
            and step.num_prefill_tokens == 0
            and step.num_requests == num_requests
            and step.num_draft_tokens == num_requests * num_drafts
        ]
        if len(found) >= wanted:
            return found[_WARM_UP:wanted]
    raise TooFewSteps(
        f"of {wanted * _PATIENCE} steps only {len(found)} decoded {num_requests} requests with {num_drafts} draft "
        "tokens each; they do not fit into the engine: give it more memory (--kv-cache-gib), or measure fewer "
        "(--batch, --drafts)"
    )
