"""The texts that a fleet serves: prompts, the answers to them, and when they were asked where a row says so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from drafters.replay import Trace
from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.rows import decode_row
from vllm_specx.replay import load_traces

_LATEST = 1e12  # seconds: 30,000 years


@dataclass(frozen=True, eq=False)
class Texts:
    """Rows of a trace file.

    Attributes:
        traces: prompt and answer of each row.
        prompts: int64[rows], tokens of each prompt.
        outputs: int64[rows], tokens of each answer, at least 1.
        at: float64[rows], seconds from the first row to each, not falling; None where rows say none.

    """

    traces: tuple[Trace, ...]
    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]
    at: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, traces: Sequence[Trace], at: NDArray[np.float64] | None = None) -> Texts:
        """Count the tokens."""
        return cls(
            tuple(traces),
            np.array([len(trace.prompt_ids) for trace in traces], dtype=np.int64),
            np.array([len(trace.output_ids) for trace in traces], dtype=np.int64),
            at,
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.traces)


def load_texts(path: Path, tokenizer: Path, limit: int | None = None, *, timed: bool = False) -> Texts:
    """Read and tokenise a trace file as `specx replay` does.

    Args:
        path: JSON lines of {"id", "prompt", "output"}; if `timed`, with "at" as well.
        tokenizer: folder with a tokenizer.json.
        limit: use only the first rows.
        timed: read when each row was asked.

    Raises:
        BenchError: naming what is wrong, and where.

    """
    if limit is not None and limit < 1:
        raise BenchError(f"--limit must be at least 1, got {limit}")
    times = _times(path) if timed else {}
    traces = load_traces(path, tokenizer)[:limit]
    if not timed:
        return Texts.of(traces)
    at = np.array([times[trace.id] for trace in traces])
    return Texts.of(traces, at - at[0])


def _times(path: Path) -> Mapping[str, float]:
    """Seconds by id; other faults of the file are left to `load_traces`."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BenchError(f"--traces {path}: {error.strerror or error}") from error
    times: dict[str, float] = {}
    last = -math.inf
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = decode_row(line)
            value = row.get("at")
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LATEST:
                raise BenchError('without --rate, each row needs its time in seconds as "at"')
            if value < last:
                raise BenchError(f'"at" must not fall from row to row, got {value:g} after {last:g}')
            if str(row.get("id")) in times:
                raise BenchError(
                    f'without --rate, each row needs an "id" of its own, got {row.get("id")!r} again'
                )
        except BenchError as error:
            raise BenchError(f"{path}:{number}: {error}") from error
        last = times[str(row.get("id"))] = float(value)
    return times
