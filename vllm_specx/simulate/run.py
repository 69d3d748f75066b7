"""One simulation, from settings to the document that is printed and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from time import process_time
from typing import Any, Final

from vllm_specx.simulate.curve import Curve, learn, no_curve
from vllm_specx.simulate.exact import ExactDrafting
from vllm_specx.simulate.loop import run
from vllm_specx.simulate.outcome import measure
from vllm_specx.simulate.recorded import rules_of, run_recorded, world_of
from vllm_specx.simulate.settings import SimulateSettings, Sweep
from vllm_specx.simulate.stream import Stream, draw
from vllm_specx.simulate.texts import Texts
from vllm_specx.simulate.times import StepTimes
from vllm_specx.tuner import CostTable

FORMAT: Final = "specx-simulate/1"
_ALL: Final = 2**31 - 1

Tell = Callable[[str, int, int], None]


def run_simulate(
    settings: SimulateSettings,
    texts: Texts,
    table: CostTable,
    origin: Mapping[str, Any],
    *,
    sweep: Sweep | None = None,
    tell: Tell = lambda *_: None,
) -> dict[str, Any]:
    """Simulate every value of the sweep with every memory.

    Args:
        settings: the fleet.
        texts: what it serves.
        table: step times.
        origin: where the numbers come from, for the document.
        sweep: several fleets instead of one.
        tell: called with what is done, how much of it is done and how much there is.

    Raises:
        BenchError: settings that do not go with one another, the texts or the table.

    """
    points = sweep.points(settings) if sweep else [settings]
    times = [_times(point, table) for point in points]
    streams = [draw(point, texts) for point in points]
    memories = settings.memories
    curve = None
    if settings.drafting == "recorded" and memories != ("plain",):
        curve = learn(texts, max_n=settings.max_n, seed=settings.seed, tell=tell)
    runs: list[dict[str, Any]] = []
    for point, point_times, stream in zip(points, times, streams, strict=True):
        for memory in memories:
            what = f"{memory}, {point.replicas} replicas, {len(stream.arrival):,} requests"
            tell(what, len(runs), len(points) * len(memories))
            swept = {sweep.name: getattr(point, sweep.name)} if sweep else {}
            began = process_time()
            result = simulate(point, texts, stream, curve, point_times, table, memory)
            runs.append(
                {"memory": memory, **swept, "rate": point.rate, **result, "cpu_s": process_time() - began}
            )
    tell("done", len(runs), len(runs))
    return {
        "format": FORMAT,
        "provenance": dict(origin),
        "settings": asdict(settings),
        "sweep": None if sweep is None else {"name": sweep.name, "values": list(sweep.values)},
        "texts": {
            "rows": len(texts),
            "prompt_tokens": float(texts.prompts.mean()),
            "output_tokens": float(texts.outputs.mean()),
        },
        "costs": {
            "source": dict(table.source),
            "most_requests": int(table.requests[-1]),
            "prefill_us": 1e6 * times[0].per_prompt_token,
        },
        "curve": None if curve is None else curve.as_json(),
        "runs": runs,
    }


def simulate(
    settings: SimulateSettings,
    texts: Texts,
    stream: Stream,
    curve: Curve | None,
    times: StepTimes,
    table: CostTable,
    memory: str,
) -> dict[str, Any]:
    """One run, measured; `curve` is None where drafts are exact or there are none."""
    used = no_curve(texts) if curve is None or memory == "plain" else curve
    world = world_of(settings, texts, stream, used, times)
    if settings.drafting == "exact" and memory != "plain":
        rules = rules_of(settings, stream, times, memory, most_seen=_ALL)
        drafting = ExactDrafting(texts, world, table, max_n=settings.max_n, seed=settings.seed)
        state = run(world, rules, drafting)
    else:
        rules = rules_of(settings, stream, times, memory, most_seen=int(used.levels[-1]))
        state = run_recorded(world, rules)
    return {"tenants": stream.num_tenants, "duration_s": stream.duration, **measure(world, rules, state)}


def _times(settings: SimulateSettings, table: CostTable) -> StepTimes:
    return StepTimes.of(
        table, max_num_seqs=settings.max_num_seqs, max_n=settings.max_n, prefill_us=settings.prefill_us
    )
