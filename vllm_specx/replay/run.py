"""One replay, from settings and traces to the numbers that are printed."""

from collections.abc import Sequence
from typing import Any

from drafters import Drafter, SuffixTreeDrafter
from drafters.replay import Tally, Trace, replay
from vllm_specx.replay.peers import Arctic, Oracle, PromptLookup
from vllm_specx.replay.settings import ReplaySettings
from vllm_specx.tuner import PriceRule


def run_replay(settings: ReplaySettings, traces: Sequence[Trace]) -> dict[str, Any]:
    """Replay `traces`, of which there is at least one with a step.

    Returns:
        steps; tokens_per_step, the bonus token included; draft_per_step, draft tokens verified; accept_rate, their
        share that was right; speedup = tokens / sum(draft_cost + 1 + alpha * N); us_per_step, drafting time;
        calibration_error and brier_skill, of reach over all verified positions (at alpha 0 over all that were drafted),
        None for a drafter that has none.

    Raises:
        BenchError: the drafter is not installed, or its options contradict each other.

    """
    drafter = _drafter(settings, traces)
    rule = PriceRule(settings.alpha) if isinstance(drafter, SuffixTreeDrafter) else None
    tally = replay(
        drafter,
        traces,
        max_n=settings.max_n,
        alpha=settings.alpha,
        draft_cost=settings.draft_cost,
        rule=rule,
    )
    return summary(tally)


def summary(tally: Tally) -> dict[str, Any]:
    """The printed numbers, rounded to what is worth comparing."""
    steps, error, skill = tally.num_steps, tally.reliability.error, tally.reliability.skill
    return {
        "steps": steps,
        "tokens_per_step": round(tally.num_tokens / steps, 3),
        "draft_per_step": round(tally.num_draft_tokens / steps, 2),
        "accept_rate": round(tally.num_accepted / max(1, tally.num_draft_tokens), 3),
        "speedup": round(tally.speedup, 3),
        "us_per_step": round(1e6 * tally.seconds / steps, 1),
        "calibration_error": None if error is None else round(error, 4),
        "brier_skill": None if skill is None else round(skill, 4),
    }


def _drafter(settings: ReplaySettings, traces: Sequence[Trace]) -> Drafter:
    options: dict[str, Any] = settings.drafter_options()
    match settings.drafter:
        case "arctic":
            return Arctic(**options)
        case "prompt-lookup":
            return PromptLookup(**options)
        case "oracle":
            return Oracle(**options, outputs=(trace.output_ids for trace in traces))
        case _:
            return SuffixTreeDrafter(max_n=settings.max_n)
