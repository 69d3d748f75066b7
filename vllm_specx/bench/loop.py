"""The measured loop: keeps exactly `concurrency` requests in flight and times every engine step."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Job:
    """One pass over the prompts. `lengths` are the tokens to generate, or caps if `natural`."""

    label: str
    prompts: Sequence[Sequence[int]]
    lengths: Sequence[int]
    concurrency: int
    natural: bool = False


@dataclass
class Counters:
    """vLLM's own speculation counts, summed over steps; `faults` are those of our proposer's gate."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0
    faults: int = 0


@dataclass
class Trace:
    """One request: its tokens, the number of steps that brought tokens, and when the first and last came."""

    token_ids: list[int] = field(default_factory=list)
    num_steps: int = 0
    first: float = 0.0
    last: float = 0.0


@dataclass(frozen=True)
class CellResult:
    """What one pass gave. `seconds` is the wall time of its turns, `engine_seconds` the part inside steps.

    `drafted` has, step by step, the draft tokens verified and the requests that got tokens. `kept` is float64
    (3, 10): draft tokens by tenths of their reach, what that promised, and how many were accepted; None where
    nobody counts that.
    """

    traces: list[Trace]
    counters: Counters
    num_steps: int
    seconds: float
    engine_seconds: float
    drafted: list[tuple[int, int]]
    kept: NDArray[np.float64] | None


class Engine(Protocol):
    """The part of an engine that the loop needs; a fake of it serves the unit tests."""

    counters: Counters

    def add(self, request_id: str, prompt: Sequence[int], length: int, natural: bool) -> None: ...

    def step(self) -> list[tuple[str, list[int], bool]]:
        """Run one step: (request id, its new tokens, is finished) for each request with news."""
        ...

    def kept(self) -> NDArray[np.float64] | None:
        """Return what has become of drafts so far; see `CellResult`."""
        ...


class Run:
    """A job under way. Pauses between turns are no part of its times.

    The next prompt enters in the step after one finishes, in the order given.
    """

    def __init__(self, engine: Engine, job: Job, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine, self._job, self._clock = engine, job, clock
        self._traces = [Trace() for _ in job.prompts]
        self._by_id: dict[str, Trace] = {}
        self._before = Counters(**vars(engine.counters))
        self._kept = engine.kept()
        self._drafted: list[tuple[int, int]] = []
        self._num_submitted = self._num_steps = self._num_tokens = 0
        self._seconds = self._engine_seconds = 0.0

    @property
    def is_done(self) -> bool:
        return not self._by_id and self._num_submitted == len(self._traces)

    def advance(self, num_tokens: int | None = None) -> bool:
        """Take steps until there are so many output tokens since the job's beginning, or to its end.

        Returns whether that was its end.
        """
        start = self._clock() - self._seconds
        while not self.is_done and (num_tokens is None or self._num_tokens < num_tokens):
            self._fill()
            began = self._clock() - start
            num_drafted = self._engine.counters.num_draft_tokens
            news = self._engine.step()
            now = self._clock() - start
            num_drafted = self._engine.counters.num_draft_tokens - num_drafted
            self._drafted.append((num_drafted, sum(bool(tokens) for _, tokens, _ in news)))
            self._num_steps += 1
            self._engine_seconds += now - began
            for request_id, token_ids, is_finished in news:
                self._take(request_id, token_ids, now)
                if is_finished:
                    del self._by_id[request_id]
        self._seconds = self._clock() - start
        return self.is_done

    def result(self) -> CellResult:
        after = vars(self._engine.counters)
        counters = Counters(**{name: after[name] - value for name, value in vars(self._before).items()})
        kept = self._engine.kept()
        return CellResult(
            self._traces,
            counters,
            self._num_steps,
            self._seconds,
            self._engine_seconds,
            self._drafted,
            None if kept is None or self._kept is None else kept - self._kept,
        )

    def _fill(self) -> None:
        job = self._job
        while len(self._by_id) < job.concurrency and self._num_submitted < len(self._traces):
            number = self._num_submitted
            request_id = f"{job.label}-{number}"
            self._engine.add(request_id, job.prompts[number], job.lengths[number], job.natural)
            self._by_id[request_id] = self._traces[number]
            self._num_submitted += 1

    def _take(self, request_id: str, token_ids: list[int], now: float) -> None:
        if not token_ids:
            return
        trace = self._by_id[request_id]
        trace.first = trace.first if trace.token_ids else now
        trace.last = now
        trace.num_steps += 1
        trace.token_ids.extend(token_ids)
        self._num_tokens += len(token_ids)


def drive(engine: Engine, job: Job, clock: Callable[[], float] = time.perf_counter) -> CellResult:
    """Run a job to its end."""
    run = Run(engine, job, clock)
    run.advance()
    return run.result()
