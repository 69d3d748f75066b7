"""Every rule on every cell, and how they compare."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, Final, TypeVar

import numpy as np

from vllm_specx.bench.errors import EngineFailed
from vllm_specx.bench.stats import paired_ratio, t_quantile
from vllm_specx.regret.baselines import Bandit, BatchTable, Ema, FixedN, PrefixArgmax, ema_grid
from vllm_specx.regret.cells import Cell, Workload, cells
from vllm_specx.regret.costs import CostGrid, profiled
from vllm_specx.regret.oracle import best_informed
from vllm_specx.regret.settings import RegretSettings
from vllm_specx.regret.simulate import NUM_BUCKETS, Clock, Policy, Run, simulate
from vllm_specx.regret.tuned import Tuned
from vllm_specx.tuner import CostTable

BASELINES: Final = ("batch_table", "ema", "bandit", "prefix_argmax", "prefix_argmax_lagged")
POLICIES: Final = ("tuner", "tuner_calibrated", "best_fixed", "oracle", "none", *BASELINES)

K = TypeVar("K")
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class _Job:
    cell: Cell
    settings: RegretSettings
    table: CostTable


def run_regret(
    settings: RegretSettings, workloads: Sequence[Workload], table: CostTable, tell: Tell = lambda *_: None
) -> dict[str, Any]:
    """Run every cell under every rule.

    Args:
        settings: sizes, seeds and noise.
        workloads: at least one, with distinct names.
        table: the true costs.
        tell: called with a cell's name, how many are done and how many there are.

    Raises:
        EngineFailed: a process of several died.

    Returns:
        `cells`, one object each, and `summary`; rates are tokens per unit of cost (seconds, for a measured table).

    """
    jobs = [_Job(cell, settings, table) for cell in cells(workloads, settings)]
    done = []
    for result in _map(jobs, settings.jobs):
        done.append(result)
        tell(result["name"], len(done), len(jobs))
    return {
        "settings": asdict(settings),
        "costs": dict(table.source),
        "cells": done,
        "summary": summary(done),
    }


def _map(jobs: Sequence[_Job], num_processes: int) -> Iterator[dict[str, Any]]:
    if num_processes == 1 or len(jobs) == 1:
        yield from map(run_cell, jobs)
        return
    # Unlike multiprocessing's pool, this one reports a process that died instead of waiting for it.
    with ProcessPoolExecutor(min(num_processes, len(jobs)), mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(run_cell, jobs)
        except BrokenProcessPool as error:
            raise EngineFailed("a process of --jobs died; out of memory? use fewer") from error


def run_cell(job: _Job) -> dict[str, Any]:
    """One cell under every rule, over all seeds."""
    cell, settings = job.cell, job.settings
    costs = CostGrid(job.table, settings.max_n)
    seeds = range(settings.seeds)

    queues = [cell.queue(seed) for seed in seeds]
    clock = Clock(settings.noise, settings.stalls)

    def run(seed: int, policy: Policy) -> Run:
        return simulate(cell, queues[seed], policy, costs, max_n=settings.max_n, clock=clock, seed=seed)

    def over_seeds(make: Callable[[int], Policy]) -> list[Run]:
        return [run(seed, make(seed)) for seed in seeds]

    def hindsight(makers: Mapping[str, Callable[[int], Policy]]) -> tuple[str, list[Run]]:
        return _best({name: over_seeds(make) for name, make in makers.items()})

    fixed = {n: over_seeds(lambda _, n=n: FixedN(n)) for n in ladder(settings.max_n)}  # type: ignore[misc]
    best_fixed_n, best_fixed = _best(fixed)
    runs = {"none": fixed[0], "best_fixed": best_fixed}
    runs["oracle"] = [best_informed(partial(run, seed), costs) for seed in seeds]
    runs["tuner"] = over_seeds(lambda _: Tuned(settings.max_n))
    runs["tuner_calibrated"] = over_seeds(lambda _: Tuned(settings.max_n, job.table))
    chosen: dict[str, str] = {}
    if len({slots for _, slots in cell.ramp}) == 1:  # then a table is one number
        chosen["batch_table"], runs["batch_table"] = f"N {best_fixed_n}", best_fixed
    else:
        n_by_bucket = _best_table(fixed)
        chosen["batch_table"] = f"N {','.join(map(str, n_by_bucket))} for batches from 1,2,4,..."
        runs["batch_table"] = over_seeds(lambda _: BatchTable(n_by_bucket))
    grids = {
        "ema": _emas(settings.max_n),
        "bandit": _bandits(settings.max_n),
        "prefix_argmax": _prefixes(job, lagged=False),
        "prefix_argmax_lagged": _prefixes(job, lagged=True),
    }
    for name, makers in grids.items():
        chosen[name], runs[name] = hindsight(makers)

    rates = {name: [each.rate for each in runs[name]] for name in POLICIES}
    return {
        "name": cell.name,
        "stationary": cell.stationary,
        **{name: mean_interval(rates[name]) for name in POLICIES},
        "best_fixed_n": best_fixed_n,
        "parameters": chosen,
        "ratios": {name: _ratio(rates["tuner"], rates[name]) for name in POLICIES if name != "tuner"},
        "tokens_per_step": {
            name: round(sum(float(each.tokens.sum()) for each in of) / sum(each.num_steps for each in of), 3)
            for name, of in runs.items()
        },
        "draft_per_step": {
            name: round(sum(each.num_draft_tokens for each in of) / sum(each.num_steps for each in of), 3)
            for name, of in runs.items()
        },
        "fixed": {str(n): _mean([each.rate for each in of]) for n, of in fixed.items()},
    }


def summary(done: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Ratios of the tuner to each rule: geometric means and the worst cell, over all cells and by kind."""
    kinds = {
        "all": list(done),
        "stationary": [cell for cell in done if cell["stationary"]],
        "shifting": [cell for cell in done if not cell["stationary"]],
    }
    return {
        kind: {
            "cells": len(of),
            "over_none": {
                name: _geometric([c[name]["mean"] / c["none"]["mean"] for c in of]) for name in POLICIES
            },
            "tuner_over": {
                name: {
                    "geometric_mean": _geometric([c["ratios"][name]["mean"] for c in of]),
                    **_worst(of, name),
                }
                for name in POLICIES
                if name != "tuner"
            },
        }
        for kind, of in kinds.items()
        if of
    }


def mean_interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean and 95 % t interval; no interval for a single value."""
    mean = _mean(values)
    if len(values) < 2:
        return {"mean": mean, "interval": None}
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    reach = t_quantile(0.975, len(values) - 1) * math.sqrt(variance / len(values))
    return {"mean": mean, "interval": [mean - reach, mean + reach]}


def ladder(max_n: int) -> list[int]:
    """The fixed lengths to compare with: 0, powers of two, max_n."""
    return [0, *(1 << k for k in range(8) if 1 << k < max_n), max_n]


def _best(runs: Mapping[K, Sequence[Run]]) -> tuple[K, list[Run]]:
    key = max(runs, key=lambda name: _mean([run.rate for run in runs[name]]))
    return key, list(runs[key])


def _best_table(fixed: Mapping[int, Sequence[Run]]) -> list[int]:
    """Each bucket's best N, from what every fixed N did there."""
    return [
        max(
            fixed,
            key=lambda n: (
                sum(float(run.tokens[at]) for run in fixed[n])
                / max(1e-12, sum(float(run.cost[at]) for run in fixed[n]))
            ),
        )
        for at in range(NUM_BUCKETS)
    ]


def _emas(max_n: int) -> dict[str, Callable[[int], Policy]]:
    def make(seed: int, options: Mapping[str, Any]) -> Policy:
        return Ema(**options)

    return {name: partial(make, options=options) for name, options in ema_grid(max_n).items()}


def _bandits(max_n: int) -> dict[str, Callable[[int], Policy]]:
    def make(seed: int, epsilon: float, fade: float) -> Policy:
        return Bandit(ladder(max_n), epsilon=epsilon, fade=fade, seed=seed)

    return {
        f"epsilon {epsilon} fade {fade}": partial(make, epsilon=epsilon, fade=fade)
        for epsilon in (0.01, 0.05, 0.1)
        for fade in (0.98, 0.998)
    }


def _prefixes(job: _Job, *, lagged: bool) -> dict[str, Callable[[int], Policy]]:
    most = job.settings.max_n

    def make(seed: int, alpha: float, max_n: int) -> Policy:
        seen = profiled(job.table, np.random.default_rng((seed, 3)), job.settings.noise)
        return PrefixArgmax(CostGrid(seen, most), alpha=alpha, max_n=max_n, lagged=lagged)

    return {
        f"max_n {max_n} alpha {alpha}": partial(make, alpha=alpha, max_n=max_n)
        for max_n in sorted({max(1, most // 2), most})
        for alpha in (1.0, 0.8, 0.5)
    }


def _ratio(numerators: Sequence[float], denominators: Sequence[float]) -> dict[str, Any]:
    ratio = paired_ratio(numerators, denominators)
    interval = None if ratio.low is None else [ratio.low, ratio.high]
    return {"mean": ratio.geometric_mean, "interval": interval}


def _worst(of: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    cell = min(of, key=lambda c: float(c["ratios"][name]["mean"]))
    return {"worst": cell["ratios"][name]["mean"], "worst_cell": cell["name"]}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _geometric(values: Sequence[float]) -> float:
    return math.exp(_mean([math.log(value) for value in values]))
