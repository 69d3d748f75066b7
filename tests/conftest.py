"""Settings and fixtures that every test shares."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# vLLM reads these when it is imported. The engine runs inside the test process: it starts in 4 s instead of 20 to 40.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SPECX_CACHE", str(ROOT / ".cache"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in tests/integration; what starts a session of its own goes before this one has engines."""
    for item in items:
        if ROOT / "tests" / "integration" in item.path.parents:
            item.add_marker(pytest.mark.integration)
    items.sort(key=lambda item: ("integration" in item.keywords, item.path.name != "test_patched_wheel.py"))


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The folder with the demo model (`make model`), made now if it is missing."""
    from vllm_specx.demo.model import demo_model_dir

    with warnings.catch_warnings(action="default"):
        return demo_model_dir()
