"""One vLLM engine inside the calling process, and the worker loop around it (vllm is imported inside)."""

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_specx.bench.loop import CellResult, Counters, Job, Run, drive
from vllm_specx.bench.provenance import relevant

# In-process, so that a step is a call and an idle engine is a process that waits on a pipe.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
_WARM_UP_TOKENS = 24


@dataclass(frozen=True)
class EngineSpec:
    """How to build one engine. `gpu_share` is its part of a GPU's memory, `kv_cache_gib` bounds a CPU's cache."""

    model: str
    dtype: str
    max_model_len: int | None
    max_num_seqs: int
    prefix_caching: bool
    gpu_share: float
    kv_cache_gib: int | None
    options: Mapping[str, Any]


class BenchEngine:
    """vLLM's LLMEngine behind the loop's protocol."""

    def __init__(self, spec: EngineSpec) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine

        options = dict(spec.options)
        if not current_platform.is_cpu():
            options["gpu_memory_utilization"] = spec.gpu_share
        config = EngineArgs(
            model=spec.model,
            dtype=spec.dtype,
            max_model_len=spec.max_model_len,
            max_num_seqs=spec.max_num_seqs,
            enable_prefix_caching=spec.prefix_caching,
            enforce_eager=True,
            **options,
        ).create_engine_config(UsageContext.LLM_CLASS)
        self.counters = Counters()
        self.max_model_len: int = config.model_config.max_model_len
        self.device_name: str = current_platform.get_device_name() or current_platform.device_type
        self.dtype = str(config.model_config.dtype).removeprefix("torch.")
        self._engine = LLMEngine.from_vllm_config(config, stat_loggers=[self._stat_logger])

    def facts(self) -> dict[str, Any]:
        """What this engine turned out to be, for the provenance of its numbers."""
        import torch

        return {
            "max_model_len": self.max_model_len,
            "dtype": self.dtype,
            "device_name": self.device_name,
            "num_threads": torch.get_num_threads(),
            "environment": relevant(os.environ),
        }

    def add(self, request_id: str, prompt: Sequence[int], length: int, natural: bool) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=length,
            ignore_eos=not natural,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            **self._how_to_sample(),
        )
        rendered = self._engine.renderer.render_cmpl([{"prompt_token_ids": list(prompt)}])
        self._engine.add_request(request_id, rendered[0], params)

    def step(self) -> list[tuple[str, list[int], bool]]:
        news = [self._news(output) for output in self._engine.step()]
        self.counters.faults = getattr(self._draft_source, "faults", 0)
        return news

    def kept(self) -> NDArray[np.float64] | None:
        metrics = getattr(self._draft_source, "metrics", None)
        return None if metrics is None else metrics.kept()

    def start(self, job: Job) -> None:
        """Make `job` the one that `advance` advances."""
        self._run = Run(self, job)

    def advance(self, num_tokens: int | None) -> bool:
        return self._run.advance(num_tokens)

    def result(self) -> CellResult:
        return self._run.result()

    def warm_up(self) -> None:
        """Compile and page in what the first timed step would pay for: alone, then as a full batch."""
        prompt = list(range(1, 9)) * 4
        for rows in (1, self._engine.vllm_config.scheduler_config.max_num_seqs):
            drive(self, Job(f"warm-up-{rows}", [prompt] * rows, [_WARM_UP_TOKENS] * rows, rows))

    def reset(self) -> None:
        """Forget everything an earlier cell left: prefix cache and draft memory.

        A few tokens are generated first: an engine that has been idle is paged in again, and proposers, who
        see only at their next call that a request ended, file the last answers before memory is emptied.
        """
        drive(self, Job("page-in", [list(range(1, 9))], [4], 1))
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM could not clear its prefix cache")
        clear_draft_memory(self._drafter)

    def _how_to_sample(self) -> dict[str, Any]:
        """Parameters of the next request, beside those of every request."""
        return {"temperature": 0.0}

    def _news(self, output: Any) -> tuple[str, list[int], bool]:
        """What a step brought a request."""
        return output.request_id, list(output.outputs[0].token_ids), output.finished

    @property
    def _draft_source(self) -> Any:
        """Ours, also where it stands behind vLLM's drafter (see `_compat.hybrid_runner`); or vLLM's own."""
        drafter = self._drafter
        return getattr(drafter, "specx", drafter)

    @property
    def _drafter(self) -> Any:
        worker = self._engine.model_executor.driver_worker
        runner = getattr(worker, "worker", worker).model_runner
        return getattr(runner, "drafter", None)

    def _stat_logger(self, vllm_config: Any, engine_index: int = 0) -> Any:
        return _StatLogger(self.counters)


class _StatLogger:
    """Adds up the speculation counts that vLLM's scheduler reports with each step."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
        if iteration_stats is not None:
            self.counters.num_preemptions += iteration_stats.num_preempted_reqs
        stats = getattr(scheduler_stats, "spec_decoding_stats", None)
        if stats is not None:
            self.counters.num_drafts += stats.num_drafts
            self.counters.num_draft_tokens += stats.num_draft_tokens
            self.counters.num_accepted_tokens += stats.num_accepted_tokens

    def log_engine_initialized(self) -> None: ...

    def log(self) -> None: ...

    def record_sleep_state(self, *args: Any, **kwargs: Any) -> None: ...


def clear_draft_memory(drafter: Any) -> None:
    """Empty a proposer's memory of earlier outputs; a proposer without one is left alone."""
    if hasattr(drafter, "reset_memory"):
        drafter.reset_memory()
    elif hasattr(drafter, "suffix_cache"):
        # vLLM's proposer around Arctic Inference has no call for this: give it a new, empty cache.
        cache = drafter.suffix_cache
        drafter.suffix_cache = type(cache)(
            max_tree_depth=cache.max_tree_depth, max_cached_requests=cache.max_cached_requests
        )


def settle(log_path: str, kv_cache_gib: int | None) -> None:
    """Make this process the engine's: its output goes to `log_path`, and vLLM finds the environment it needs."""
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if kv_cache_gib is not None:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(kv_cache_gib)


def serve(connection: Connection, spec: EngineSpec, log_path: str) -> None:
    """Worker process of a bench: see `answer`."""

    def make() -> BenchEngine:
        engine = BenchEngine(spec)
        engine.warm_up()
        return engine

    settle(log_path, spec.kv_cache_gib)
    answer(connection, make, ("start", "advance", "result", "reset"))


def answer(connection: Connection, make: Callable[[], BenchEngine], methods: Sequence[str]) -> None:
    """Build the engine when told to, then call those of its methods that commands name, until told to stop."""
    try:
        import vllm.v1.engine.llm_engine  # noqa: F401 - takes seconds: while another engine is built

        if connection.recv()[0] == "stop":
            return
        engine = make()
        actions: dict[str, Callable[..., Any]] = {name: getattr(engine, name) for name in methods}
        connection.send(("ready", engine.facts()))
        while (command := connection.recv())[0] != "stop":
            connection.send(("done", actions[command[0]](*command[1:])))
    except (EOFError, KeyboardInterrupt):
        return
    except BaseException as error:
        traceback.print_exc()
        connection.send(("failed", f"{type(error).__name__}: {error}"))
