"""Which configurations get adaptive lengths, what is put into them, and which are refused by name."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specx import plugin
from vllm_specx.config import ConfigError
from vllm_specx.scheduling import methods
from vllm_specx.scheduling.methods import Drafting, ladder, ladder_table

TABLE = "num_speculative_tokens_per_batch_size"


def make(
    method: str = "eagle3",
    *,
    is_v2: bool = False,
    is_async: bool = True,
    options: dict[str, Any] | None = None,
    scheduler_cls: Any = None,
    parallel: dict[str, int] | None = None,
    **speculative: Any,
) -> Any:
    defaults: dict[str, Any] = {
        "method": method,
        "model": "some/head",
        "num_speculative_tokens": 5,
        TABLE: None,
        "enable_adaptive_verification": False,
        "parallel_drafting": False,
        "rejection_sample_method": "standard",
        "use_multi_module_mtp": lambda: False,
    }
    return SimpleNamespace(
        additional_config={"specx": {"adaptive": True} if options is None else options},
        speculative_config=SimpleNamespace(**(defaults | speculative)),
        scheduler_config=SimpleNamespace(
            scheduler_cls=scheduler_cls, async_scheduling=is_async, max_num_seqs=64
        ),
        parallel_config=SimpleNamespace(
            nnodes=1,
            distributed_executor_backend="uni",
            **({"data_parallel_size": 1, "pipeline_parallel_size": 1} | (parallel or {})),
        ),
        use_v2_model_runner=is_v2,
        model_config=None,
    )


def build(config: Any) -> list[str]:
    """Do what the plug-in does around vLLM's own checks; returns warnings."""
    warnings: list[str] = []
    if methods.is_wanted(config):
        methods.check(config)
        methods.prepare(config, warnings.append)
    plugin.check_config(config)
    plugin.complete_config(config)
    return warnings


@pytest.mark.parametrize("method", methods.METHODS)
@pytest.mark.parametrize("is_async", [False, True])
def test_the_option_brings_the_scheduler(method: str, is_async: bool) -> None:
    config = make(method, is_async=is_async)
    assert build(config) == []
    name = "vllm_specx.AdaptiveAsyncScheduler" if is_async else "vllm_specx.AdaptiveScheduler"
    assert config.scheduler_config.scheduler_cls == name
    assert build(config) == []  # vLLM copies configurations, and checks the copies
    assert config.scheduler_config.scheduler_cls == name


@pytest.mark.parametrize("name", ["vllm_specx.AdaptiveScheduler", "vllm_specx.scheduler.AdaptiveScheduler"])
def test_the_scheduler_is_enough(name: str) -> None:
    config = make(options={}, scheduler_cls=name)
    build(config)
    assert config.scheduler_config.scheduler_cls == "vllm_specx.AdaptiveAsyncScheduler"


def test_a_scheduler_class_is_known_too() -> None:
    stand_in = type("AdaptiveScheduler", (), {"__module__": "vllm_specx.scheduler"})
    config = make(options={}, scheduler_cls=stand_in, is_async=False)
    build(config)
    assert config.scheduler_config.scheduler_cls == "vllm_specx.AdaptiveScheduler"


def test_nothing_happens_unasked() -> None:
    config = make(options={}, scheduler_cls="other.Scheduler")
    assert not methods.is_wanted(config)
    build(config)
    assert config.scheduler_config.scheduler_cls == "other.Scheduler"
    assert getattr(config.speculative_config, TABLE) is None


def test_runner_v2_gets_a_table_and_v1_none() -> None:
    config = make(is_v2=True)
    build(config)
    table = getattr(config.speculative_config, TABLE)
    assert table == ladder_table(5, 64)
    build(config)
    assert getattr(config.speculative_config, TABLE) == table
    config = make(is_v2=False)
    build(config)
    assert getattr(config.speculative_config, TABLE) is None


def test_data_parallel_keeps_the_length_and_says_so() -> None:
    config = make(is_v2=True, parallel={"data_parallel_size": 2})
    warnings = build(config)
    assert len(warnings) == 1
    assert "num_speculative_tokens=5" in warnings[0]
    assert config.scheduler_config.scheduler_cls is None
    assert getattr(config.speculative_config, TABLE) is None
    config = make(
        options={}, scheduler_cls="vllm_specx.AdaptiveScheduler", parallel={"data_parallel_size": 2}
    )
    assert len(build(config)) == 1
    assert config.scheduler_config.scheduler_cls is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "suffix"}, ["'suffix'", "ngram"]),
        ({"method": "medusa"}, ["'medusa'"]),
        ({"method": "ngram_gpu"}, ["'ngram_gpu'"]),
        (
            {"method": "custom_class", "model": "vllm_specx.SuffixTreeProposer"},
            ["'custom_class'", "by itself"],
        ),
        ({"method": "dspark", "enable_adaptive_verification": True}, ["enable_adaptive_verification"]),
        ({"parallel_drafting": True}, ["parallel_drafting"]),
        ({TABLE: [(1, 64, 3)]}, [TABLE, "remove one"]),
        ({TABLE: [(1, 64, 3)], "is_v2": True}, [TABLE, "remove one"]),
        (
            {TABLE: [(2, 64, 3)], "options": {}, "scheduler_cls": methods.SCHEDULER},
            [TABLE, methods.SCHEDULER],
        ),
        ({"rejection_sample_method": "synthetic"}, ["synthetic"]),
        ({"parallel": {"pipeline_parallel_size": 2}}, ["pipeline parallelism"]),
        ({"scheduler_cls": "other.Scheduler"}, ["scheduler_cls", "other.Scheduler"]),
    ],
    ids=str,
)
def test_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    config = make(**changes)
    with pytest.raises(ConfigError) as error:
        build(config)
    for word in words:
        assert word in str(error.value)


def test_nothing_to_drive() -> None:
    config = make()
    config.speculative_config = None
    with pytest.raises(ConfigError, match="speculative_config"):
        build(config)


def test_options_without_effect() -> None:
    with pytest.raises(ConfigError, match="adaptive to true"):
        build(make(options={"alpha": 0.1}))


@pytest.mark.parametrize("max_n", [1, 2, 5, 8, 16, 20, 128])
@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 8, 64, 256])
def test_the_table_covers_the_ladder(max_n: int, max_num_seqs: int) -> None:
    rungs = ladder(max_n)
    assert rungs == sorted(set(rungs))
    assert (rungs[0], rungs[-1]) == (0, max_n)
    table = ladder_table(max_n, max_num_seqs)
    assert table[0][0] == 1
    assert table[-1][1] == max_num_seqs
    assert all(first <= last for first, last, _ in table)
    assert all(row[0] == before[1] + 1 for before, row in pairwise(table))
    lengths = [n for *_, n in table]
    assert lengths == sorted(set(lengths), reverse=True)
    assert lengths[0] == max_n
    assert set(lengths) <= set(rungs)
    assert len(lengths) == min(len(rungs), max_num_seqs)
    if max_num_seqs > 1:
        assert lengths[-1] == 0


def test_how_drafters_spend_their_time() -> None:
    many = {"use_multi_module_mtp": lambda: True}
    assert Drafting.of(make("eagle3")) == Drafting.of(make("eagle", is_v2=True)) == Drafting(True, 1)
    assert Drafting.of(make("draft_model")) == Drafting.of(make("mtp", **many)) == Drafting(True, 1)
    assert Drafting.of(make("ngram")) == Drafting(False, 0)
    assert Drafting.of(make("draft_model", is_v2=True)) == Drafting(True, 1)
    assert Drafting.of(make("mtp", is_v2=True, **many)) == Drafting(False, 0)
    assert Drafting.of(make("mtp", is_v2=True)) == Drafting(True, 1)


def proposer(
    *, is_async: bool | None, is_v2: bool = True, options: dict[str, Any] | None = None, **more: Any
) -> Any:
    return make(
        "custom_class",
        model="vllm_specx.SuffixTreeProposer",
        is_v2=is_v2,
        is_async=is_async,
        options=options or {},
        **more,
    )


def build_ours(config: Any, decided: bool) -> None:
    """As `build`, with what vLLM decides on async scheduling in between."""
    plugin.prepare_config(config)
    config.scheduler_config.async_scheduling = decided
    plugin.check_config(config)
    plugin.complete_config(config)


@pytest.mark.parametrize("asked", [None, True])
def test_proposers_of_ours_draft_a_rectangle_on_v2(asked: bool | None) -> None:
    config = proposer(is_async=asked)
    for _ in range(2):  # vLLM copies configurations, and checks the copies
        build_ours(config, decided=True)
        assert config.scheduler_config.scheduler_cls == "vllm_specx.AdaptiveAsyncScheduler"
        assert getattr(config.speculative_config, TABLE) == ladder_table(5, 64)
    assert Drafting.of(config).num_passes(5) == 0


@pytest.mark.parametrize("asked", [None, False])
def test_and_choose_for_each_request_without_async_scheduling(asked: bool | None) -> None:
    config = proposer(is_async=asked)
    build_ours(config, decided=False)
    assert config.scheduler_config.scheduler_cls is None
    assert getattr(config.speculative_config, TABLE) is None


def test_nothing_is_put_into_v1() -> None:
    config = proposer(is_async=None, is_v2=False)
    build_ours(config, decided=False)
    assert config.scheduler_config.scheduler_cls is None
    assert getattr(config.speculative_config, TABLE) is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"options": {"alpha": 0.1}}, ["specx.alpha", "V2", "async_scheduling"]),
        ({"parallel": {"pipeline_parallel_size": 2}}, ["pipeline parallelism"]),
        ({TABLE: [(1, 64, 3)]}, [TABLE]),
    ],
)
def test_what_a_rectangle_cannot_have(more: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        build_ours(proposer(is_async=True, **more), decided=True)
    for word in words:
        assert word in str(error.value)
