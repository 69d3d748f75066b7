"""When the hybrid of suffix tree and EAGLE-3 is wanted, what it needs of a configuration, and what it cannot do.

A VllmConfig is only read by attribute, so nothing here imports vLLM.
"""

from __future__ import annotations

from typing import Any, Final

from vllm_specx.config import KEY, ConfigError, SpecxConfig
from vllm_specx.heads import HYBRID, set_name

EXTENSION: Final = "vllm_specx.worker_extension.HybridExtension"


def is_wanted(vllm_config: Any) -> bool:
    """Whether the suffix tree is to draft beside vLLM's EAGLE-3 head."""
    return SpecxConfig.from_vllm(vllm_config).hybrid


def check(vllm_config: Any) -> None:
    """Refuse what would be ignored or could not work, by name.

    Raises:
        ConfigError: see there.

    """
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method != "eagle3":
        raise ConfigError(
            f"{KEY}.hybrid goes with the speculative method 'eagle3', not "
            f"{None if speculative is None else speculative.method!r}"
        )
    if speculative.parallel_drafting:
        raise ConfigError(f"parallel_drafting drafts in one pass, always: {KEY}.hybrid cannot be used")
    if vllm_config.use_v2_model_runner:
        raise ConfigError(f"{KEY}.hybrid runs on vLLM's model runner V1: set VLLM_USE_V2_MODEL_RUNNER=0")
    parallel = vllm_config.parallel_config
    for what in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if getattr(parallel, what) > 1:
            raise ConfigError(
                f"{KEY}.hybrid decides in each worker how deep its head drafts, so {what} must be 1, got "
                f"{getattr(parallel, what)}; {KEY}.adaptive has no such limit"
            )
    if parallel.worker_extension_cls not in ("", EXTENSION):
        raise ConfigError(
            f"{KEY}.hybrid brings its own worker extension, but worker_extension_cls is "
            f"{parallel.worker_extension_cls!r}: remove one"
        )


def prepare(vllm_config: Any) -> None:
    """Complete a checked configuration before vLLM derives anything from it."""
    vllm_config.parallel_config.worker_extension_cls = EXTENSION
    set_name(vllm_config.speculative_config, HYBRID)
    # The suffix tree needs to know what was sampled, and the head's first pass need not see what was rejected.
    vllm_config.speculative_config.disable_padded_drafter_batch = True
    vllm_config.scheduler_config.async_scheduling = False
