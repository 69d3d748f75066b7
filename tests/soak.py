"""Serve mixed traffic for as long as is wished, and judge every answer and the memory of the server.

    python tests/soak.py --minutes 60 --json results/soak.json

Clients of three tenants (one without a salt) send requests at random times (Poisson): long and short, greedy, streamed
and left half-way, JSON, sampled, with options of their own; now and then the memory is purged or forgotten, or drafting
is switched off for a while. What plain decoding answers was asked of the same server before, with `specx_max_n` 0.

Ends with 1 if an answer was wrong, a request lost, drafting faulted or never accepted a token, or memory grew: the 95 %
interval of its slope lies above zero and reaches beyond `MAX_SLOPE`. In a run of less than `SETTLED_MINUTES` memory is
not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
from scipy.stats import t as student
from serving import Server
from soak_traffic import (
    KINDS,
    MODEL,
    SALTS,
    TIMEOUT_S,
    Lost,
    Plain,
    ask,
    body,
    judge,
    plain_answer,
    questions,
    request,
)

from vllm_specx.bench.provenance import provenance
from vllm_specx.demo.model import demo_model_dir

RECIPES = Path(__file__).parents[1] / "recipes"
WARM_UP = (
    1 / 3
)  # of the time, before memory is judged: the draft memory and the KV cache have been filled by then
MAX_SLOPE = 16.0  # MiB an hour, beyond which growth counts
SETTLED_MINUTES = 5  # a server that was started just now fills its caches
NUM_BATCHES = 12  # means that the slope is fitted to: neighbouring samples are not independent
NUM_CLIENTS = 4
MOST_UNDER_WAY = 24  # requests: a client waits with the next one beyond them
SAMPLE_S = 2.0
CONTROL_S = 45.0  # seconds between two actions of the operator
OFF_S = 5.0  # for which drafting is switched off
# A small memory, and few KV blocks, are full after minutes: what grows after that is a leak. With fewer than the
# requests of a full batch need, some are preempted.
ARGUMENTS = [
    "--served-model-name", MODEL, "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048",
    "--max-num-seqs", "8", "--block-size", "32", "--num-gpu-blocks-override", "128",
    "--structured-outputs-config", json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}),
]  # fmt: skip
OPTIONS = {"memory_bytes": 1 << 20}
# oneDNN keeps 1,024 products, each compiled for its number of tokens: with drafts there are many, and memory grows for
# an hour until it has met them all.
VARIABLES = {"VLLM_SERVER_DEV_MODE": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32"}


@dataclass
class Count:
    """What became of the requests; `faults` holds the first messages about what was wrong or lost."""

    sent: Counter[str] = field(default_factory=Counter)
    served: Counter[str] = field(default_factory=Counter)
    ties: int = 0
    wrong: int = 0
    lost: int = 0
    aborted: int = 0
    tokens: int = 0
    controls: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)

    def blame(self, message: str) -> None:
        """Keep a message, unless there are many."""
        print(message, file=sys.stderr, flush=True)
        if len(self.messages) < 20:
            self.messages.append(message)


@dataclass(frozen=True)
class Sample:
    """Of the server at a moment: seconds since the traffic began, MiB by process, and counters."""

    at: float
    memory: dict[str, float]
    drafts: float
    draft_tokens: float
    accepted: float

    @property
    def total(self) -> float:
        """MiB of all processes."""
        return sum(self.memory.values())


@dataclass(frozen=True)
class Slope:
    """Of memory, in MiB an hour, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_growth(self) -> bool:
        """Whether memory grows: surely, and by more than `MAX_SLOPE` may be."""
        return self.low > 0 and self.high > MAX_SLOPE


def slope(seconds: Sequence[float], mebibytes: Sequence[float]) -> Slope:
    """Fit a line to the means of `NUM_BATCHES` equal stretches of the samples."""
    x, y = (
        np.array([part.mean() for part in np.array_split(np.asarray(values, dtype=float), NUM_BATCHES)])
        for values in (seconds, mebibytes)
    )
    x = (x - x.mean()) / 3600
    value = float(x @ y / (x @ x))
    residuals = y - y.mean() - value * x
    error = float(np.sqrt(residuals @ residuals / (NUM_BATCHES - 2) / (x @ x)))
    reach = float(student.ppf(0.975, NUM_BATCHES - 2)) * error
    return Slope(value, value - reach, value + reach)


def lengths(samples: Sequence[Sample], num_bins: int = 20) -> list[dict[str, float | None]]:
    """Mean N (tokens chosen for a draft) and tokens accepted of a draft, over time."""
    edges = samples[:: max(1, len(samples) // num_bins)]
    found = []
    for before, after in itertools.pairwise(edges):
        drafts = after.drafts - before.drafts
        found.append(
            {
                "minute": round(after.at / 60, 2),
                "n": round((after.draft_tokens - before.draft_tokens) / drafts, 2) if drafts else None,
                "accepted": round((after.accepted - before.accepted) / drafts, 2) if drafts else None,
            }
        )
    return found


class Soak:
    """Traffic on a server that is ready."""

    def __init__(self, server: Server, http: aiohttp.ClientSession, seed: int, longest: int) -> None:
        self.server, self.http, self.longest = server, http, longest
        self.random = random.Random(seed)
        self.questions = questions()
        self.count = Count()
        self.samples: list[Sample] = []
        self._under_way = asyncio.Semaphore(MOST_UNDER_WAY)
        self._plain: list[Plain] = []

    async def ask_plain(self) -> float:
        """Ask for what plain decoding answers to every question; return tokens a second."""
        begin = time.perf_counter()
        self._plain = await asyncio.gather(*map(self._ask_plain, self.questions))
        return sum(len(plain.token_ids) for plain in self._plain) / (time.perf_counter() - begin)

    async def _ask_plain(self, question: Any) -> Plain:
        options: dict[str, Any] = {"vllm_xargs": {"specx_max_n": 0}}
        if not question.is_json:  # there a grammar decides, too
            options |= {"logprobs": True, "top_logprobs": 2}
        wanted = body(question, self.longest, **options)
        async with self.http.post("/v1/chat/completions", json=wanted) as response:
            assert response.status == 200, await response.text()
            return plain_answer(await response.json())

    async def run(self, seconds: float, rate: float) -> None:
        """Send requests for so long, `rate` a second on average, and wait for the last answers."""
        self._begin = time.monotonic()
        end = self._begin + seconds
        watch = asyncio.create_task(self._watch())
        operate = asyncio.create_task(self._operate(min(CONTROL_S, seconds / 6)))
        clients = [self._client(end, rate / NUM_CLIENTS, self.random.random()) for _ in range(NUM_CLIENTS)]
        await asyncio.gather(*clients)
        for task in (operate, watch):
            task.cancel()
        for error in await asyncio.gather(operate, watch, return_exceptions=True):
            if not isinstance(error, asyncio.CancelledError):
                self.count.blame(f"the soak itself: {error!r}")
                self.count.lost += 1
        await self._control("set_enabled", True)
        for _ in range(100):  # steps that are still on for requests that were left
            if not await asyncio.to_thread(self.num_left):
                break
            await asyncio.sleep(0.1)
        await self._sample()

    def num_left(self) -> float:
        """Return the number of requests in the engine."""
        metrics = self.server.metrics()
        return metrics["vllm:num_requests_running"] + metrics["vllm:num_requests_waiting"]

    async def _client(self, end: float, rate: float, seed: float) -> None:
        rng = random.Random(seed)
        running = []
        while True:
            await asyncio.sleep(rng.expovariate(rate))
            if time.monotonic() >= end:
                break
            await self._under_way.acquire()
            running.append(asyncio.create_task(self._one(rng.random())))
        await asyncio.gather(*running)

    async def _one(self, seed: float) -> None:
        rng, count = random.Random(seed), self.count
        kind, index, wanted = request(rng, self.questions, self.longest)
        count.sent[kind] += 1
        try:
            answer = await ask(self.http, wanted, rng.randint(1, 8) if kind == "abort" else None)
        except Lost as error:
            count.lost += 1
            count.blame(f"lost, {kind}: {error}; asked was {json.dumps(wanted)[:500]}")
            return
        finally:
            self._under_way.release()
        verdict = judge(kind, wanted, answer, self._plain[index])
        count.tokens += sum(map(len, answer.token_ids))
        if verdict == "tie":
            count.ties += 1
        elif verdict != "right":
            count.wrong += 1
            count.blame(f"wrong, {kind}: {verdict}; asked was {json.dumps(wanted)[:500]}")
        if answer.reasons == [None]:
            count.aborted += 1
        else:
            count.served[kind] += 1

    async def _operate(self, period: float) -> None:
        """Purge a tenant, switch drafting off and on, forget everything; in turn."""
        while True:
            for method, argument in (("purge", SALTS[1]), ("set_enabled", False), ("forget", None)):
                await asyncio.sleep(period)
                await self._control(method, argument)
                if method == "set_enabled":
                    await asyncio.sleep(min(OFF_S, period))
                    await self._control(method, True)

    async def _control(self, method: str, argument: Any) -> None:
        arguments = [method] if argument is None else [method, argument]
        wanted = {"method": "call_drafter", "args": arguments}
        async with self.http.post("/collective_rpc", json=wanted) as response:
            assert response.status == 200, await response.text()
            assert len((await response.json())["results"]) == 1
        self.count.controls[" ".join(map(str, arguments))] += 1

    async def _watch(self) -> None:
        while True:
            await self._sample()
            await asyncio.sleep(SAMPLE_S)

    async def _sample(self) -> None:
        metrics = await asyncio.to_thread(self.server.metrics)
        at = time.monotonic() - self._begin
        self.samples.append(
            Sample(
                at,
                private(self.server.process.pid),
                metrics["specx_draft_length_count"],
                metrics["specx_draft_length_sum"],
                metrics["specx_accepted_tokens_total"],
            )
        )


def private(pid: int) -> dict[str, float]:
    """MiB of a process and those below it, by what they are called; without pages of files, which come and go."""
    root = psutil.Process(pid)
    found: dict[str, float] = {}
    for process in (root, *root.children(recursive=True)):
        try:
            name = process.name() if process.pid != pid else "API server"
            memory = process.memory_info()
            found[name] = found.get(name, 0.0) + (memory.rss - memory.shared) / 2**20
        except psutil.NoSuchProcess:
            continue
    return found


async def soak(server: Server, minutes: float, load: float, seed: int, longest: int) -> dict[str, Any]:
    """Return the figures."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    # The server closes a connection that was idle for 5 s, maybe just as the next request sets out on it.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(server.url, timeout=timeout, connector=connector) as http:
        run = Soak(server, http, seed, longest)
        tokens_per_s = await run.ask_plain()
        rate = load * tokens_per_s / (longest / 2)
        print(
            f"plain: {tokens_per_s:.1f} tokens/s; {rate:.2f} requests/s for {minutes:g} minutes", flush=True
        )
        await run.run(minutes * 60, rate)
    count, samples = run.count, run.samples
    settled = [sample for sample in samples if sample.at >= WARM_UP * minutes * 60]
    grown = slope([sample.at for sample in settled], [sample.total for sample in settled])
    metrics = server.metrics()
    found = {
        "minutes": round(samples[-1].at / 60, 2),
        "sent": sum(count.sent.values()),
        "served": sum(count.served.values()),
        **{key: value for key, value in vars(count).items() if key not in ("sent", "served")},
        "served_by_kind": {kind: count.served[kind] for kind in KINDS},
        "faults": metrics["specx_drafting_faults_total"],
        "left_in_engine": run.num_left(),
        "preemptions": metrics["vllm:num_preemptions_total"],
        "accepted": metrics["specx_accepted_tokens_total"],
        "evicted_answers": metrics["specx_memory_evictions_total"],
        "slope_mib_per_hour": asdict(grown),
        "max_slope_mib_per_hour": MAX_SLOPE,
        "is_slope_judged": minutes >= SETTLED_MINUTES,
        "private_mib": {"settled": settled[0].memory, "end": settled[-1].memory},
        "n_over_time": lengths(samples),
        "private_over_time": [(round(sample.at), round(sample.total, 1)) for sample in samples[::5]],
    }
    found["is_ok"] = (
        found["served"] > 0
        and found["accepted"] > 0
        and not (count.wrong or count.lost or found["faults"] or found["left_in_engine"])
        and not (grown.is_growth and found["is_slope_judged"])
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of traffic; the server's start comes on top"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--recipe", type=Path, default=RECIPES / "cpu-demo.yaml")
    parser.add_argument("--specx", default="{}", help="further options of additional_config.specx, as JSON")
    parser.add_argument(
        "--load", type=float, default=1.0, help="tokens asked for, as a share of the plain rate"
    )
    parser.add_argument("--longest", type=int, default=160, help="most tokens of an answer")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.minutes < 1:
        parser.error("--minutes must be at least 1: a slope needs samples")
    origin = provenance(sys.argv)
    additional = json.dumps({"specx": OPTIONS | json.loads(args.specx)})
    arguments = [
        str(demo_model_dir()),
        "--config",
        str(args.recipe),
        *ARGUMENTS,
        "--additional-config",
        additional,
    ]
    with tempfile.TemporaryDirectory() as folder:
        with Server(arguments, Path(folder) / "log", **VARIABLES) as server:
            found = asyncio.run(soak(server, args.minutes, args.load, args.seed, args.longest))
        if not found["is_ok"]:
            print(server.log.read_text()[-4000:], file=sys.stderr)
    document = {"provenance": origin, **found}
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    over_time = ("n_over_time", "private_over_time")
    print(json.dumps({key: value for key, value in found.items() if key not in over_time}, indent=1))
    return 0 if found["is_ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
