"""A fleet with recorded drafts, by the kernels."""

from __future__ import annotations

import numpy as np

from vllm_specx.simulate import _kernels as kernels
from vllm_specx.simulate.curve import Curve
from vllm_specx.simulate.settings import SimulateSettings
from vllm_specx.simulate.state import MEMORIES, ROUTINGS, Rules, State, World, new_state
from vllm_specx.simulate.stream import Stream
from vllm_specx.simulate.texts import Texts
from vllm_specx.simulate.times import StepTimes, best_thresholds


def world_of(
    settings: SimulateSettings, texts: Texts, stream: Stream, curve: Curve, times: StepTimes
) -> World:
    """Everything that a run reads."""
    sizes = np.bincount(stream.tenant, minlength=stream.num_tenants)
    return World(
        arrival=stream.arrival,
        row=stream.row,
        tenant=stream.tenant,
        coin=stream.coin,
        pick=stream.pick,
        first_of=np.cumsum(sizes) - sizes,
        prompts=texts.prompts,
        outputs=texts.outputs,
        restart_at=stream.restart_at,
        restart_of=stream.restart_of,
        shift=stream.phase * settings.sync_interval,
        levels=curve.levels,
        offsets=curve.offsets,
        drafts=curve.drafts,
        commits=curve.commits,
        best=best_thresholds(curve, times),
        grid=times.grid,
    )


def rules_of(
    settings: SimulateSettings, stream: Stream, times: StepTimes, memory: str, most_seen: int
) -> Rules:
    """The numbers; a fleet has as long again as requests came to finish them."""
    return Rules(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        routing=ROUTINGS[settings.routing],
        memory=MEMORIES[memory],
        most_seen=most_seen,
        interval=float(settings.sync_interval),
        transfer=float(settings.transfer),
        away=float(settings.away),
        per_prompt_token=times.per_prompt_token,
        duration=stream.duration,
        end=2 * stream.duration,
    )


def run_recorded(world: World, rules: Rules) -> State:
    """Run a fleet to its end."""
    state = new_state(len(world.shift), len(world.arrival), len(world.first_of), rules.max_num_seqs)
    kernels._simulate(world, rules, state)
    return state
