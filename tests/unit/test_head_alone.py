"""When a named AdaptiveEagle3Proposer is driven in the worker, and when by the scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specx import hybrid, plugin
from vllm_specx.config import ConfigError
from vllm_specx.heads import ADAPTIVE, name_of, set_name
from vllm_specx.scheduling import methods


def make(*, is_v2: bool = False, is_async: bool | None = None, options: Any = None, **parallel: Any) -> Any:
    speculative = SimpleNamespace(
        method="eagle3",
        model="some/head",
        num_speculative_tokens=5,
        num_speculative_tokens_per_batch_size=None,
        enable_adaptive_verification=False,
        parallel_drafting=False,
        rejection_sample_method="standard",
        disable_padded_drafter_batch=False,
        use_multi_module_mtp=lambda: False,
    )
    set_name(speculative, ADAPTIVE)
    sizes = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1}
    return SimpleNamespace(
        additional_config={} if options is None else {"specx": options},
        speculative_config=speculative,
        scheduler_config=SimpleNamespace(scheduler_cls=None, async_scheduling=is_async, max_num_seqs=8),
        parallel_config=SimpleNamespace(
            worker_extension_cls="", nnodes=1, distributed_executor_backend="uni", **(sizes | parallel)
        ),
        use_v2_model_runner=is_v2,
        model_config=None,
    )


def build(config: Any) -> None:
    plugin.prepare_config(config)
    plugin.check_config(config)
    plugin.complete_config(config)


def test_in_the_worker() -> None:
    config = make()
    for _ in range(2):  # vLLM copies configurations, and checks the copies
        build(config)
        assert hybrid.is_head_alone(config)
        assert name_of(config.speculative_config) == ADAPTIVE
        assert config.parallel_config.worker_extension_cls == hybrid.EXTENSION
        assert config.scheduler_config.async_scheduling is False
        assert config.scheduler_config.scheduler_cls is None
        assert "adaptive" not in config.additional_config.get("specx", {})


@pytest.mark.parametrize("more", [{"is_v2": True}, {"is_async": True}, {"tensor_parallel_size": 2}])
def test_in_the_scheduler(more: dict[str, Any]) -> None:
    config = make(**more)
    build(config)
    assert not hybrid.is_head_alone(config)
    assert methods.is_wanted(config)
    assert config.parallel_config.worker_extension_cls == ""
    assert config.scheduler_config.scheduler_cls.startswith("vllm_specx.Adaptive")


@pytest.mark.parametrize("more", [{}, {"is_v2": True}])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory_path": "/tmp/x"}, ["specx.memory_path", "no effect"]),
        ({"alpha": 0.1}, ["specx.alpha", "no effect"]),
        ({"memory_byte": 1}, ["specx.memory_byte", "memory_bytes"]),
    ],
)
def test_options_for_a_suffix_tree(options: dict[str, Any], words: list[str], more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        build(make(options=options, **more))
    for word in words:
        assert word in str(error.value)
