"""When an EAGLE-3 head is to be driven in the worker, with the suffix tree or alone, and what that needs.

A VllmConfig is only read by attribute, so nothing here imports vLLM.
"""

from __future__ import annotations

from typing import Any, Final

from vllm_specx.config import KEY, ConfigError, SpecxConfig
from vllm_specx.heads import ADAPTIVE, HYBRID, name_of, set_name

EXTENSION: Final = "vllm_specx.worker_extension.HybridExtension"
_SIZES: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def is_wanted(vllm_config: Any) -> bool:
    """Whether the suffix tree is to draft beside vLLM's EAGLE-3 head, or the head alone as deep as we say."""
    return SpecxConfig.from_vllm(vllm_config).hybrid or is_head_alone(vllm_config)


def is_head_alone(vllm_config: Any) -> bool:
    """Whether a named `AdaptiveEagle3Proposer` can decide in the worker, for each request, and let its head sleep.

    Where it cannot, on model runner V2, with several workers or under async scheduling, `AdaptiveScheduler` decides.
    """
    parallel = vllm_config.parallel_config
    return bool(
        name_of(vllm_config.speculative_config) == ADAPTIVE
        and not vllm_config.speculative_config.parallel_drafting
        and not vllm_config.use_v2_model_runner
        and max(getattr(parallel, size) for size in _SIZES) == 1
        and vllm_config.scheduler_config.async_scheduling is not True
        and vllm_config.scheduler_config.scheduler_cls is None
        and parallel.worker_extension_cls in ("", EXTENSION)
    )


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
    for what in _SIZES:
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
    if not is_head_alone(vllm_config):
        set_name(vllm_config.speculative_config, HYBRID)
    # We need to know what was sampled, and the head's first pass need not see what was rejected.
    vllm_config.speculative_config.disable_padded_drafter_batch = True
    vllm_config.scheduler_config.async_scheduling = False
