"""The measured loop: keeps exactly `concurrency` requests in flight and times every engine step."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


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
    """What one pass gave. `seconds` is the wall time, `engine_seconds` the part inside steps."""

    traces: list[Trace]
    counters: Counters
    num_steps: int
    seconds: float
    engine_seconds: float


class Engine(Protocol):
    """The part of an engine that the loop needs; a fake of it serves the unit tests."""

    counters: Counters

    def add(self, request_id: str, prompt: Sequence[int], length: int, natural: bool) -> None: ...

    def step(self) -> list[tuple[str, list[int], bool]]:
        """Run one step: (request id, its new tokens, is finished) for each request with news."""
        ...


def drive(engine: Engine, job: Job, clock: Callable[[], float] = time.perf_counter) -> CellResult:
    """Run a job to its end. The next prompt enters in the step after one finishes, in the order given."""
    traces = [Trace() for _ in job.prompts]
    by_id: dict[str, Trace] = {}
    before = Counters(**vars(engine.counters))
    submitted = num_steps = 0
    engine_seconds = 0.0
    start = clock()
    while by_id or submitted < len(traces):
        while len(by_id) < job.concurrency and submitted < len(traces):
            request_id = f"{job.label}-{submitted}"
            engine.add(request_id, job.prompts[submitted], job.lengths[submitted], job.natural)
            by_id[request_id] = traces[submitted]
            submitted += 1
        began = clock()
        news = engine.step()
        now = clock()
        num_steps += 1
        engine_seconds += now - began
        for request_id, token_ids, is_finished in news:
            trace = by_id[request_id]
            if token_ids:
                trace.first = trace.first if trace.token_ids else now
                trace.last = now
                trace.num_steps += 1
                trace.token_ids.extend(token_ids)
            if is_finished:
                del by_id[request_id]
    after = vars(engine.counters)
    counters = Counters(**{name: after[name] - value for name, value in vars(before).items()})
    return CellResult(traces, counters, num_steps, clock() - start, engine_seconds)
