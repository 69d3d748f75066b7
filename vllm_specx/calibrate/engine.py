"""The engine of a calibration, in a process of its own whose output goes to a log (vllm is imported inside)."""

import traceback
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from vllm_specx.bench.engine import BenchEngine, EngineSpec, settle
from vllm_specx.bench.errors import BenchError
from vllm_specx.calibrate.measure import TooFewSteps, measure
from vllm_specx.calibrate.proposer import FixedLengthProposer
from vllm_specx.calibrate.settings import CalibrateSettings, check_room
from vllm_specx.tuner import Step

_BATCHED_TOKENS: Final = 2048  # vLLM's smallest default on a CPU or a common GPU
_SPARE_STEPS: Final = 8  # of a visit, beside those that are timed


class CalibrationEngine(BenchEngine):
    """Keeps a number of requests decoding, each with drafts of one length."""

    def __init__(self, settings: CalibrateSettings) -> None:
        super().__init__(_spec(settings))
        check_room(settings, self.max_model_len)
        self._vocab_size: int = self._engine.vllm_config.model_config.get_vocab_size()
        self._proposer = FixedLengthProposer(self._vocab_size)
        worker = self._engine.model_executor.driver_worker
        # In the place of a real drafter: users cannot ask for this one.
        getattr(worker, "worker", worker).model_runner.drafter = self._proposer
        self._prompt_tokens = settings.prompt_tokens
        # Longer than all visits should take, where the model allows; a request that ends is replaced.
        needed = 2 * settings.repeats * len(settings.drafts) * (settings.steps + _SPARE_STEPS)
        self._length = min(needed, self.max_model_len - settings.prompt_tokens)
        self._rng = np.random.default_rng(0)
        self._num_added = 0
        self._num_wanted = 0
        self._live: set[str] = set()

    def keep(self, num_requests: int) -> None:
        self._num_wanted = num_requests
        self.offer(0)
        self._fill()
        waiting = set(self._live)
        while waiting:
            for request_id, token_ids, is_finished in self.step():
                if token_ids:
                    waiting.discard(request_id)
                if is_finished:
                    self._live.discard(request_id)
        self._proposer.take_steps()

    def offer(self, num_drafts: int) -> None:
        self._proposer.num_drafts = num_drafts

    def measure_step(self) -> list[Step]:
        self._fill()
        self._live -= {request_id for request_id, _, is_finished in self.step() if is_finished}
        return self._proposer.take_steps()

    def end_all(self) -> None:
        self._engine.abort_request(list(self._live))
        self._live.clear()

    def _fill(self) -> None:
        while len(self._live) < self._num_wanted:
            request_id = f"calibrate-{self._num_added}"
            prompt = self._rng.integers(self._vocab_size, size=self._prompt_tokens).tolist()
            self.add(request_id, prompt, self._length, natural=False)
            self._num_added += 1
            self._live.add(request_id)


def _spec(settings: CalibrateSettings) -> EngineSpec:
    batch, drafts = settings.batch[-1], settings.drafts[-1]
    options: dict[str, Any] = {
        # Only to get a proposer's place in the engine.
        "speculative_config": {
            "model": "vllm_specx.SuffixTreeProposer",
            "num_speculative_tokens": max(1, drafts),
        },
        "additional_config": {"specx": {"shared": False}},
    }
    if batch * (1 + drafts) > _BATCHED_TOKENS:
        options["max_num_batched_tokens"] = batch * (1 + drafts)
    return EngineSpec(
        model=settings.model,
        dtype=settings.dtype,
        max_model_len=settings.max_model_len,
        max_num_seqs=batch,
        prefix_caching=False,
        gpu_share=0.85,
        kv_cache_gib=settings.kv_cache_gib,
        options=options,
    )


def serve(connection: Connection, settings: CalibrateSettings, log_path: str) -> None:
    """Worker process: build the engine, measure, and send ("progress" | "done" | "bad_input" | "failed", value)."""
    settle(log_path, settings.kv_cache_gib)
    try:
        engine = CalibrationEngine(settings)
        result = measure(engine, settings, lambda *news: connection.send(("progress", news)))
        connection.send(("done", (result, engine.facts())))
    except (BrokenPipeError, KeyboardInterrupt):
        return
    except BenchError as error:
        connection.send(("bad_input", str(error)))
    except TooFewSteps as error:
        connection.send(("failed", str(error)))
    except BaseException as error:
        traceback.print_exc()
        connection.send(("failed", f"{type(error).__name__}: {error}"))
