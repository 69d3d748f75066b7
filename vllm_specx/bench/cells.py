"""From one pass over the prompts to its numbers, and from all passes to a summary. Pure."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from vllm_specx.bench.loop import CellResult, Trace
from vllm_specx.bench.methods import BASELINE
from vllm_specx.bench.stats import median, paired_ratio, percentile

MEASURES = (
    "tokens_per_s",
    "tpot_ms_p50",
    "tpot_ms_p99",
    "tokens_per_step",
    "acceptance",
    "draft_tokens_per_step",
)

_PARTS: Final = 48  # of a cell's steps, for what happens over time


def measure(result: CellResult) -> dict[str, Any]:
    """Numbers of one pass.

    A request-step is a step that verified or decoded one request; the step that ends a prompt is not one.
    `tokens_per_step` is output tokens per request-step, `draft_tokens_per_step` drafted ones; `acceptance` is
    accepted over drafted, as vLLM's scheduler counts them: tokens accepted past a request's length are among
    the accepted but not among the output. A value that has no denominator is None. `lengths_over_time` are the means
    of draft tokens per request in equal parts of the steps; `kept` see `CellResult`.
    """
    traces = [trace for trace in result.traces if trace.token_ids]
    output_tokens = sum(len(trace.token_ids) for trace in traces)
    request_steps = sum(trace.num_steps - 1 for trace in traces)
    counters = result.counters
    pace = [
        1000 * (trace.last - trace.first) / (len(trace.token_ids) - 1)
        for trace in traces
        if len(trace.token_ids) > 1
    ]
    return {
        "seconds": result.seconds,
        "engine_seconds": result.engine_seconds,
        "num_steps": result.num_steps,
        "request_steps": request_steps,
        "output_tokens": output_tokens,
        **asdict(counters),
        "tokens_per_s": output_tokens / result.seconds,
        "tpot_ms_p50": percentile(pace, 50),
        "tpot_ms_p99": percentile(pace, 99),
        "tokens_per_step": _share(output_tokens - len(traces), request_steps),
        "acceptance": _share(counters.num_accepted_tokens, counters.num_draft_tokens),
        "draft_tokens_per_step": _share(counters.num_draft_tokens, request_steps),
        "lengths_over_time": _over_time(result.drafted),
        "kept": None if result.kept is None else result.kept.tolist(),
    }


def requests(ids: Sequence[str], traces: Sequence[Trace], baseline: Sequence[Trace]) -> list[dict[str, Any]]:
    """One entry a request; `first_difference` is where it leaves the baseline's output, or None."""
    return [
        {
            "id": prompt_id,
            "output_tokens": len(trace.token_ids),
            "steps": trace.num_steps,
            "sha256": hashlib.sha256(",".join(map(str, trace.token_ids)).encode()).hexdigest()[:16],
            "first_difference": first_difference(trace.token_ids, plain.token_ids),
        }
        for prompt_id, trace, plain in zip(ids, traces, baseline, strict=True)
    ]


def first_difference(tokens: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two outputs differ, one being shorter counted; None if they are equal."""
    for position, (mine, theirs) in enumerate(zip(tokens, other, strict=False)):
        if mine != theirs:
            return position
    return None if len(tokens) == len(other) else min(len(tokens), len(other))


def summarise(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Medians over repeats, and the ratio to the baseline paired within each repeat."""
    groups: dict[tuple[str, int, str, str], dict[int, Mapping[str, Any]]] = {}
    for run in runs:
        key = (run["workload"], run["concurrency"], run["phase"], run["method"])
        groups.setdefault(key, {})[run["repeat"]] = run
    summary = []
    for (workload, concurrency, phase, method), repeats in groups.items():
        plain = groups[workload, concurrency, phase, BASELINE]
        paired = sorted(repeats.keys() & plain.keys())
        ratio = paired_ratio(
            [repeats[repeat]["tokens_per_s"] for repeat in paired],
            [plain[repeat]["tokens_per_s"] for repeat in paired],
        )
        entries = [entry for run in repeats.values() for entry in run["requests"]]
        summary.append(
            {
                "workload": workload,
                "concurrency": concurrency,
                "phase": phase,
                "method": method,
                "repeats": len(repeats),
                **{name: _median([run[name] for run in repeats.values()]) for name in MEASURES},
                "ratio": asdict(ratio),
                "identical": sum(entry["first_difference"] is None for entry in entries),
                "compared": len(entries),
                **{
                    name: sum(run[name] for run in repeats.values()) for name in ("num_preemptions", "faults")
                },
                "lengths_over_time": repeats[min(repeats)]["lengths_over_time"],
                "kept": _kept(repeats.values()),
            }
        )
    return summary


def _over_time(drafted: Sequence[tuple[int, int]]) -> list[float]:
    parts = np.array_split(
        np.array(drafted, dtype=np.int64).reshape(-1, 2), min(_PARTS, max(1, len(drafted)))
    )
    return [
        round(float(tokens / max(1, requests)), 3) for tokens, requests in (part.sum(0) for part in parts)
    ]


def _kept(runs: Iterable[Mapping[str, Any]]) -> list[list[float]] | None:
    counts = [run["kept"] for run in runs if run["kept"] is not None]
    return np.sum(counts, axis=0).tolist() if counts else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
