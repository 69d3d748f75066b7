"""What happens to a fleet from outside, drawn before anything runs: the same for every memory it is simulated with.

Each request is a row of the file, asked by a tenant. A tenant asks for all rows in an order of its own, then for all in
another order, and so on. Memory is kept apart by tenant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vllm_specx.bench.errors import BenchError
from vllm_specx.simulate.settings import SimulateSettings
from vllm_specx.simulate.texts import Texts

_DURATION: Final = 600.0
_MOST_REQUESTS: Final = 20_000_000
_MOST_PAIRS: Final = 250_000_000  # of a replica and a tenant: 1 GB
_CHUNK: Final = 1 << 20  # rows shuffled at a time


@dataclass(frozen=True, eq=False)
class Stream:
    """Arrays over requests in the order in which they come, and over replicas.

    Attributes:
        duration: seconds in which requests come.
        arrival: float64[requests], not falling.
        row: int64[requests], of the texts.
        tenant: int64[requests], within [0, num_tenants).
        num_tenants: at least 1.
        coin: float64[requests] within [0, 1): decides between two levels of memory.
        pick: float64[requests] within [0, 1): decides where a request goes under random routing.
        phase: float64[replicas] within [0, 1): when a replica exchanges, in intervals.
        restart_at: float64[restarts], not falling.
        restart_of: int64[restarts], replicas.

    """

    duration: float
    arrival: NDArray[np.float64]
    row: NDArray[np.int64]
    tenant: NDArray[np.int64]
    num_tenants: int
    coin: NDArray[np.float64]
    pick: NDArray[np.float64]
    phase: NDArray[np.float64]
    restart_at: NDArray[np.float64]
    restart_of: NDArray[np.int64]


def draw(settings: SimulateSettings, texts: Texts) -> Stream:
    """Draw everything. What one setting changes leaves the rest as it was, where that can be.

    Raises:
        BenchError: no request at all, too many, or so many tenants and replicas that they cannot be kept apart;
            settings that do not go with one another.

    """
    if settings.rate is None:
        if settings.tenants is not None:
            raise BenchError(
                "--tenants needs --rate: rows with times of their own are taken to be one tenant's"
            )
        assert texts.at is not None
        duration = settings.duration or max(float(texts.at[-1]), 1e-3)
        arrival = texts.at[texts.at <= duration]
        row, tenants = np.arange(len(arrival)), 1
        tenant = np.zeros(len(arrival), dtype=np.int64)
    else:
        duration = settings.duration or _DURATION
        if settings.rate * duration > _MOST_REQUESTS:
            raise BenchError(
                f"--rate {settings.rate:g} for {duration:g} s are more than {_MOST_REQUESTS:,} requests; "
                "take a shorter --duration"
            )
        arrival = _poisson(settings.rate, duration, _random(settings, 0))
        tenants = settings.tenants or max(1, -(-len(arrival) // len(texts)))
        row, tenant = _turns(len(arrival), len(texts), tenants, _random(settings, 1))
    if not len(arrival):
        raise BenchError(f"no request comes within {duration:g} s; raise --duration or --rate")
    if tenants * settings.replicas > _MOST_PAIRS:
        raise BenchError(
            f"--tenants {tenants} times --replicas {settings.replicas} must be at most {_MOST_PAIRS:,}"
        )
    if settings.drafting == "exact" and -(-len(arrival) // tenants) > len(texts):
        raise BenchError(
            f"--drafting exact: {len(arrival)} requests of {tenants} tenants would repeat the file's {len(texts)} "
            "rows, which memory then knows by heart; ask for fewer (--duration, --rate) or leave --tenants unset"
        )
    restart_at, restart_of = _restarts(settings, duration)
    return Stream(
        duration,
        arrival,
        row,
        tenant,
        tenants,
        _random(settings, 2).random(len(arrival)),
        _random(settings, 3).random(len(arrival)),
        _random(settings, 4).random(settings.replicas),
        restart_at,
        restart_of,
    )


def _random(settings: SimulateSettings, of: int) -> np.random.Generator:
    return np.random.default_rng((settings.seed, of))


def _poisson(rate: float, duration: float, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.sort(rng.random(rng.poisson(rate * duration))) * duration


def _turns(
    num: int, rows: int, tenants: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and tenant of each request; tenants have equally many, one more or less."""
    tenant = rng.permutation(np.arange(num) % tenants)
    counts = np.bincount(tenant, minlength=tenants)
    order = np.argsort(tenant, kind="stable")  # tenant by tenant
    nth = np.arange(num) - np.repeat(np.cumsum(counts) - counts, counts)  # of its tenant's requests
    passes = -(-counts // rows)
    of_pass = np.repeat(np.cumsum(passes) - passes, counts) + nth // rows
    row = np.empty(num, dtype=np.int64)
    many = max(1, _CHUNK // rows)
    for first in range(0, int(passes.sum()), many):
        lo, hi = np.searchsorted(of_pass, [first, first + many])
        shuffled = rng.permuted(np.tile(np.arange(rows), (of_pass[hi - 1] - first + 1, 1)), axis=1)
        row[order[lo:hi]] = shuffled[of_pass[lo:hi] - first, nth[lo:hi] % rows]
    return row, tenant


def _restarts(settings: SimulateSettings, duration: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = _random(settings, 5)
    at = _poisson(settings.churn * settings.replicas / 3600.0, duration, rng)
    return at, rng.integers(settings.replicas, size=len(at))
