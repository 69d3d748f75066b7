"""In-process engines for the tests, and what to ask them."""

from __future__ import annotations

from typing import Any

N = 16
MAX_MODEL_LEN = 512
FIXED_COSTS = {"specx": {"alpha": 0.05}}  # lengths that depend on no clock
SPECULATIVE = {"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": N}


def make_engine(model_dir: Any, **options: Any) -> Any:
    """Return an in-process LLM in float32, where greedy outputs can be compared token by token."""
    from vllm import LLM

    defaults: dict[str, Any] = {
        "model": str(model_dir),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": 8,
        "block_size": 32,
        "num_gpu_blocks_override": 320,  # engines of a session live side by side
        "disable_log_stats": False,
        "seed": 0,
    }
    return LLM(**(defaults | options))


def proposer_of(llm: Any) -> Any:
    """The proposer inside an in-process engine."""
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    return executor.driver_worker.worker.model_runner.drafter


def counters(llm: Any) -> dict[str, int]:
    """vLLM's own counters by name, of the engine that was made last in this process."""
    return {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}


def accepted(llm: Any) -> int:
    """Draft tokens accepted so far, by the proposer's own count."""
    return int(proposer_of(llm).num_accepted_tokens)


def scheduler_of(llm: Any) -> Any:
    """The scheduler inside an in-process engine."""
    return llm.llm_engine.engine_core.engine_core.scheduler
