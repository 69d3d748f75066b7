"""The order of a bench run: start the engines, fix the lengths, then measure, methods interleaved."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from vllm_specx.bench.cells import measure, requests, summarise
from vllm_specx.bench.document import FORMAT
from vllm_specx.bench.engine import EngineSpec
from vllm_specx.bench.errors import EngineFailed
from vllm_specx.bench.loop import CellResult, Job
from vllm_specx.bench.methods import BASELINE, Choice, choose, engine_options
from vllm_specx.bench.prompts import read_prompts
from vllm_specx.bench.settings import BenchSettings
from vllm_specx.bench.tokens import Workload, check_lengths, tokenise
from vllm_specx.bench.workers import Worker

# The length pass reports no time, so it runs as a batch even where only concurrency 1 is measured.
_LENGTH_PASS_CONCURRENCY = 8

Tell = Callable[[str, int, int], None]
Save = Callable[[dict[str, Any]], None]


def rotation(methods: Sequence[str], turn: int) -> list[str]:
    """The methods' order in one turn: each method takes each place equally often over the turns."""
    shift = turn % len(methods)
    return [*methods[shift:], *methods[:shift]]


def take_turns(
    workers: Mapping[str, Worker], job: Job, order: Sequence[str], turns: int
) -> dict[str, CellResult]:
    """Run a job on all methods, a share of its tokens at a time: a machine's moods fall on all of them alike."""
    for method in order:
        workers[method].start(job)
    share = -(-sum(job.lengths) // turns)
    waiting, turn = list(order), 0
    while waiting:
        turn += 1
        num_tokens = turn * share if turn < turns else None
        waiting = [method for method in waiting if not workers[method].advance(num_tokens)]
    return {method: workers[method].result() for method in order}


def run_bench(
    settings: BenchSettings, origin: Mapping[str, Any], tell: Tell, save: Save = lambda document: None
) -> dict[str, Any]:
    """Measure and return the JSON document.

    `tell(what, done, total)` is called as work starts. `save(document)` is called after each repeat, so that
    an interrupted run keeps what it has ("complete" is then false). Raises BenchError and EngineFailed.
    """
    choice = choose(settings.methods)
    rows = {
        name: read_prompts(path, settings.limit, settings.max_tokens)
        for name, path in settings.prompts.items()
    }
    tell("reading prompts", 0, 1)
    workloads = tokenise(settings.model, rows)
    if settings.max_model_len is not None:
        check_lengths(workloads, settings.max_model_len)
    logs = Path(mkdtemp(prefix="specx-bench-"))
    workers: dict[str, Worker] = {}
    keep_logs = False
    try:
        return _Run(settings, choice, workloads, workers, logs, tell, save).go(origin)
    except EngineFailed:
        keep_logs = True  # its message points into them
        raise
    finally:
        for worker in workers.values():
            worker.stop()
        if not keep_logs:
            shutil.rmtree(logs)


class _Run:
    def __init__(
        self,
        settings: BenchSettings,
        choice: Choice,
        workloads: Sequence[Workload],
        workers: dict[str, Worker],
        logs: Path,
        tell: Tell,
        save: Save,
    ) -> None:
        self.settings, self.choice, self.workloads = settings, choice, workloads
        self.workers, self.logs, self._tell, self.save = workers, logs, tell, save
        self.done = 0
        cells = len(workloads) * len(settings.concurrency) * settings.repeats * (1 + settings.warm)
        self.total = len(choice.methods) + (0 if settings.natural else len(workloads)) + cells

    def go(self, origin: Mapping[str, Any]) -> dict[str, Any]:
        for method in self.choice.methods:
            self.workers[method] = Worker(method, self._spec(method), self.logs / f"{method}.log")
        for method, worker in self.workers.items():
            self.tell(f"starting {method}")
            worker.build()
        facts = self.workers[BASELINE].facts
        check_lengths(self.workloads, facts["max_model_len"])
        lengths = {workload.name: self._lengths(workload) for workload in self.workloads}
        document: dict[str, Any] = {
            "format": FORMAT,
            "complete": False,
            "provenance": {**origin, "engine": facts},
            "settings": {
                **asdict(self.settings),
                "prompts": {k: str(v) for k, v in self.settings.prompts.items()},
            },
            "methods": {name: engine_options(name, self.settings) for name in self.choice.methods},
            "left_out": dict(self.choice.left_out),
            "workloads": {
                workload.name: {
                    "ids": workload.ids,
                    "prompt_tokens": [len(token_ids) for token_ids in workload.token_ids],
                    "natural" if self.settings.natural else "lengths": lengths[workload.name],
                }
                for workload in self.workloads
            },
            "runs": [],
            "summary": [],
        }
        for repeat in range(self.settings.repeats):
            for index, (workload, concurrency) in enumerate(
                product(self.workloads, self.settings.concurrency)
            ):
                document["runs"] += self._cells(
                    workload, lengths[workload.name], concurrency, repeat, turn=repeat + index
                )
            document["summary"] = summarise(document["runs"])
            document["complete"] = repeat + 1 == self.settings.repeats
            self.save(document)
        self.tell("done", advance=False)
        return document

    def _cells(
        self, workload: Workload, lengths: Sequence[int], concurrency: int, repeat: int, turn: int
    ) -> list[dict[str, Any]]:
        phases = ("cold", "warm") if self.settings.warm else ("cold",)
        order = rotation(self.choice.methods, turn)
        results: dict[tuple[str, str], CellResult] = {}
        for method in order:
            self.workers[method].reset()
        for phase in phases:
            self.tell(f"{workload.name} at {concurrency}, {phase}, repeat {repeat + 1}")
            label = f"{workload.name}-{concurrency}-{repeat}-{phase}"
            rounds = self.settings.rounds
            prompts = [*workload.token_ids] * rounds
            job = Job(label, prompts, [*lengths] * rounds, concurrency, self.settings.natural)
            done = take_turns(self.workers, job, order, self.settings.turns)
            results |= {(method, phase): result for method, result in done.items()}
        return [
            {
                "workload": workload.name,
                "concurrency": concurrency,
                "method": method,
                "repeat": repeat,
                "phase": phase,
                "place": order.index(method),
                **measure(results[method, phase]),
                "requests": requests(
                    workload.ids * self.settings.rounds,
                    results[method, phase].traces,
                    results[BASELINE, phase].traces,
                ),
            }
            for method in self.choice.methods
            for phase in phases
        ]

    def _lengths(self, workload: Workload) -> list[int]:
        # Plain decoding decides: a method that ran on past its own end would be timed on loops.
        if self.settings.natural:
            return workload.caps
        self.tell(f"finding lengths of {workload.name}")
        concurrency = max(_LENGTH_PASS_CONCURRENCY, *self.settings.concurrency)
        job = Job(f"{workload.name}-lengths", workload.token_ids, workload.caps, concurrency, natural=True)
        worker = self.workers[BASELINE]
        worker.start(job)
        worker.advance()
        return [len(trace.token_ids) for trace in worker.result().traces]

    def _spec(self, method: str) -> EngineSpec:
        settings = self.settings
        return EngineSpec(
            model=settings.model,
            dtype=settings.dtype,
            max_model_len=settings.max_model_len,
            max_num_seqs=max(_LENGTH_PASS_CONCURRENCY, *settings.concurrency),
            prefix_caching=settings.prefix_caching,
            gpu_share=0.85 / len(self.choice.methods),
            kv_cache_gib=settings.kv_cache_gib,
            options=engine_options(method, settings),
        )

    def tell(self, what: str, advance: bool = True) -> None:
        self._tell(what, self.done, self.total)
        self.done += advance
