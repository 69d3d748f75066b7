"""Engines that the integration tests share: starting one costs seconds, so each kind starts once a session."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from engines import FIXED_COSTS, SPECULATIVE, make_engine

from vllm_specx import _compat


@pytest.fixture(scope="session", autouse=True)
def patch_state() -> _compat.PatchState:
    """How the patches came into vLLM: test_patched_wheel.py runs these tests on a copy with the diffs applied."""
    state = _compat.install()
    if os.environ.get("SPECX_TEST_PATCHED_WHEEL"):
        assert state.applied == ()
    return state


@pytest.fixture(scope="session")
def plain(model_dir: Any) -> Any:
    """Plain vLLM: what every method must equal."""
    return make_engine(model_dir)


@pytest.fixture(scope="session")
def specx(model_dir: Any) -> Any:
    """Speculating, with prefix caching and prompts prefilled in chunks of at most 96 tokens."""
    return make_engine(
        model_dir,
        speculative_config=SPECULATIVE,
        additional_config=FIXED_COSTS,
        enable_prefix_caching=True,
        max_num_batched_tokens=96,
    )


@pytest.fixture(scope="session")
def specx_tight(model_dir: Any) -> Any:
    """Speculating, without prefix caching and with KV blocks for about 3 long requests: it must preempt."""
    return make_engine(
        model_dir,
        speculative_config=SPECULATIVE,
        additional_config=FIXED_COSTS,
        enable_prefix_caching=False,
        block_size=32,
        num_gpu_blocks_override=22,
    )


@pytest.fixture(scope="session")
def specx_measuring(model_dir: Any) -> Any:
    """Speculating by the costs that it measures, as users have it."""
    return make_engine(model_dir, speculative_config=SPECULATIVE)


@pytest.fixture(scope="session")
def specx_embeds(model_dir: Any) -> Any:
    """Speculating, and taking prompts as embeddings. (Kept to the end: an engine that goes takes others along.)"""
    return make_engine(
        model_dir,
        speculative_config=SPECULATIVE,
        enable_prompt_embeds=True,
        max_num_seqs=2,
        block_size=32,
        num_gpu_blocks_override=40,
    )


@pytest.fixture(scope="session")
def specx_memory(model_dir: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Speculating with a memory file, and the path of that."""
    path = tmp_path_factory.mktemp("memory") / "memory"
    options = {"memory_path": str(path), "autosave_s": 3600, "memory_bytes": 1 << 20, "alpha": 0.05}
    engine = make_engine(
        model_dir,
        speculative_config=SPECULATIVE,
        additional_config={"specx": options},
        max_num_seqs=2,
        block_size=32,
        num_gpu_blocks_override=40,
    )
    return engine, path
