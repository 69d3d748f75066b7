"""From what happened to the numbers that are reported. Pure."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_specx.simulate import state as names
from vllm_specx.simulate.state import Rules, State, World

PERCENTS: Final = (50, 95, 99)
LATENCIES: Final = ("first_token_s", "per_token_ms", "end_to_end_s")


def measure(world: World, rules: Rules, state: State) -> dict[str, Any]:
    """Numbers of one run.

    Rates are of what came before the duration ended. Latencies are those of finished requests, from arrival on: to the
    first token, per output token after it, to the last token. `cold` is the share of admitted requests whose replica
    had no answer to their tenant in memory; `seen` how many it had on average (as far as they are told apart). A
    number without anything to be counted is None.
    """
    counts, duration = state.counts, rules.duration
    done = np.isfinite(state.finish)
    arrival, first, finish = world.arrival[done], state.first[done], state.finish[done]
    outputs = world.outputs[world.row[done]]
    later = outputs > 1
    admitted = state.seen >= 0
    request_steps, drafts, tokens = (
        float(counts[name]) for name in (names.REQUEST_STEPS, names.DRAFTS, names.STEP_TOKENS)
    )
    return {
        "requests": len(world.arrival),
        "finished": int(done.sum()),
        "finished_in_time": int((finish <= duration).sum()),
        "requests_per_s": float((finish <= duration).sum() / duration),
        "tokens_per_s": float(counts[names.IN_TIME] / duration),
        "first_token_s": _percentiles(first - arrival),
        "per_token_ms": _percentiles(1000 * (finish - first)[later] / (outputs[later] - 1)),
        "end_to_end_s": _percentiles(finish - arrival),
        "tokens_per_step": _share(tokens, request_steps),
        "draft_tokens_per_step": _share(drafts, request_steps),
        "acceptance": _share(tokens - request_steps, drafts),
        "cold": _share(float((state.seen == 0).sum()), float(admitted.sum())),
        "seen": float(state.seen[admitted].mean()) if admitted.any() else None,
        "batch": _share(request_steps, float(counts[names.STEPS])),
        "largest_batch": int(counts[names.LARGEST]),
        "busy": float(counts[names.BUSY] / (len(world.shift) * _length(rules, state))),
        "steps": int(counts[names.STEPS]),
        "restarts": len(world.restart_at),
        "lost_tokens": int(counts[names.LOST]),
        "tokens_per_step_over_time": [_share(float(part[2]), float(part[0])) for part in state.parts.T],
    }


def _length(rules: Rules, state: State) -> float:
    """Seconds in which anything was done; at least the duration."""
    if np.isfinite(state.finish).all():
        return max(rules.duration, float(state.finish.max()))
    return rules.end


def _percentiles(values: NDArray[np.float64]) -> dict[str, float | None]:
    if not len(values):
        return {**{f"p{percent}": None for percent in PERCENTS}, "mean": None}
    found = np.percentile(values, PERCENTS).tolist()
    return {
        **{f"p{percent}": value for percent, value in zip(PERCENTS, found, strict=True)},
        "mean": float(values.mean()),
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
