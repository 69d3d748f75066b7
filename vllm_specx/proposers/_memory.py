"""What a proposer's shared memory hangs on in vLLM: the rank that keeps its file, and the target's weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from vllm_specx.config import SpecxConfig, check_memory_path
from vllm_specx.memory import vocabulary
from vllm_specx.memory.keeper import MemoryKeeper


def make_keeper(options: SpecxConfig, vllm_config: Any) -> MemoryKeeper | None:
    """The keeper of the memory file, on the rank whose drafts are used; None elsewhere and without a file.

    Raises:
        ConfigError: the folder cannot be used, or the engine has no tokenizer.

    """
    if not options.memory_path or not is_output_rank(vllm_config.parallel_config):
        return None
    path = path_of_engine(options.memory_path, vllm_config.parallel_config.data_parallel_index)
    fingerprint = vocabulary.fingerprint_of_model(vllm_config.model_config)
    return MemoryKeeper(check_memory_path(path), fingerprint, options.autosave_s)


def path_of_engine(path: str, data_parallel_index: int) -> str:
    """The file of one engine of a data parallel group: each has a memory of its own, the first the path as given."""
    return f"{path}.dp{data_parallel_index}" if data_parallel_index else path


def is_output_rank(parallel: Any) -> bool:
    """Whether this is the worker whose drafts are used."""
    # The executors' own rule: the first rank of the last pipeline stage.
    last_stage = parallel.tensor_parallel_size * parallel.prefill_context_parallel_size
    return parallel.rank == parallel.world_size - last_stage


def watch_weights(model: Any, on_change: Callable[[], None]) -> None:
    """Call the bound method `on_change` after each `model.load_weights`, neither keeping the other alive.

    For the way in which reinforcement learning brings new weights: a worker extension that calls the model itself.
    """
    original = getattr(type(model), "load_weights", None)
    if original is None:
        return
    model_reference, hook = weakref.ref(model), weakref.WeakMethod(on_change)

    def load_weights(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(model_reference(), *args, **kwargs)
        finally:
            if (call := hook()) is not None:
                call()

    model.load_weights = load_weights
