"""Cells: which requests come in which order, and how many of them run at a time.

All rules get the same work. Phases are measured in tokens, not in steps, so that a fast rule does not see more of an
easy workload than a slow one; `phase` plain decode steps at batch b are phase * b tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from drafters.replay import Trace
from vllm_specx.regret.settings import RegretSettings

_CYCLES: Final = 2  # up and down the batch sizes
_BLOCK_PHASES: Final = 0.7  # of the workload to those of the batch, where both move: all combinations meet


@dataclass(frozen=True, slots=True)
class Workload:
    """A named set of traces."""

    name: str
    traces: tuple[Trace, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens to decode; the first of each output comes from its prefill."""
        return sum(len(trace.output_ids) - 1 for trace in self.traces)


@dataclass(frozen=True, slots=True)
class Request:
    """Token ids, int32, 1-D; `ids` is the output once more."""

    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Cell:
    """One condition.

    Attributes:
        name: unique.
        stationary: neither workload nor batch moves.
        workloads: served in turns, `block` tokens each; a single one is served throughout.
        num_tokens: least tokens to decode.
        block: tokens between two changes of workload; 0 for none.
        ramp: (first token, requests in flight) by first token.

    """

    name: str
    stationary: bool
    workloads: tuple[Workload, ...]
    num_tokens: int
    block: int
    ramp: tuple[tuple[int, int], ...]

    def queue(self, seed: int) -> list[Request]:
        """Return the requests in the order in which they start, enough of them to keep all slots busy."""
        rng = np.random.default_rng(seed)
        texts = (ids for w in self.workloads for t in w.traces for ids in (t.prompt_ids, t.output_ids))
        stride = 1 + max(max(ids, default=0) for ids in texts)
        streams = [_endless(workload.traces, stride, rng) for workload in self.workloads]
        queue: list[Request] = []
        tokens = turn = 0
        while tokens < self.num_tokens:
            room = self.block or self.num_tokens
            while room > 0 and tokens < self.num_tokens:
                request = next(streams[turn % len(streams)])
                queue.append(request)
                tokens += len(request.output) - 1
                room -= len(request.output) - 1
            turn += 1
        # Requests do not end in order: what runs last may be as long as any, in every slot.
        spare = max(slots for _, slots in self.ramp) * max(
            len(t.output_ids) for w in self.workloads for t in w.traces
        )
        while spare > 0:
            queue.append(next(streams[turn % len(streams)]))
            spare -= len(queue[-1].output) - 1
        return queue


def cells(workloads: Sequence[Workload], settings: RegretSettings) -> list[Cell]:
    """Return every workload at every batch; the workloads in turns; batch ramps; and both together."""
    made = [
        Cell(
            f"{workload.name}/b{batch}",
            True,
            (workload,),
            max(workload.num_tokens, settings.steps * batch),
            0,
            ((0, batch),),
        )
        for workload in workloads
        for batch in settings.batch
    ]
    several = len(workloads) > 1
    if several:
        made += [
            Cell(
                f"switch/b{batch}",
                False,
                tuple(workloads),
                max(sum(w.num_tokens for w in workloads), settings.steps * batch),
                settings.phase * batch,
                ((0, batch),),
            )
            for batch in settings.batch
        ]
    if len(settings.batch) > 1:
        ramp, num_tokens = _ramp(sorted(settings.batch), settings.phase)
        made += [Cell(f"ramp/{w.name}", False, (w,), num_tokens, 0, ramp) for w in workloads]
        if several:
            block = max(1, round(_BLOCK_PHASES * num_tokens / len(ramp)))
            made.append(Cell("ramp+switch", False, tuple(workloads), num_tokens, block, ramp))
    return made


def _ramp(batch: Sequence[int], phase: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Up and down again; phases of equal time under plain decoding of equal step time."""
    ramp, token = [], 0
    for slots in (*batch, *reversed(batch[:-1])) * _CYCLES:
        ramp.append((token, slots))
        token += phase * slots
    return tuple(ramp), token


def _endless(traces: Sequence[Trace], stride: int, rng: np.random.Generator) -> Iterator[Request]:
    """The traces in random order, again and again.

    Every copy has a vocabulary of its own: the same patterns, but no answer that memory has seen before.
    """
    copy = 0
    while True:
        for k in rng.permutation(len(traces)).tolist():
            trace = traces[k]
            prompt, output = (
                np.asarray(ids, dtype=np.int32) + np.int32(copy * stride)
                for ids in (trace.prompt_ids, trace.output_ids)
            )
            yield Request(prompt, output, output.tolist())
        copy += 1
