"""Runtime form of the cpu-empty-top-k patch: see patches/README.md.

The sampler's module takes a second to import, so it is left to the process that samples: the wrapper goes in
when a CPU worker registers its kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vllm_specx._compat import fingerprints
from vllm_specx._compat.apply import replace
from vllm_specx._compat.versions import check_supported

PATCH = "cpu-empty-top-k"
_MODULE = "vllm.v1.sample.ops.topk_topp_sampler"


def is_needed() -> bool:
    """Whether this is vLLM for the CPU with the fault. Only a source that is not known is imported and tried."""
    minor = check_supported()
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    spec = find_spec(_MODULE)
    assert spec is not None
    assert spec.origin is not None
    found = fingerprints.fingerprint_in_text(Path(spec.origin).read_text(), fingerprints.TOP_K)
    if found == fingerprints.FINGERPRINTS[fingerprints.TOP_K][minor]:
        return True
    return not survives_no_rows(import_module(_MODULE).apply_top_k_only)


def survives_no_rows(top_k: Callable[..., Any]) -> bool:
    """Run `top_k` on logits of shape (0, 4)."""
    import torch

    try:
        return top_k(torch.empty(0, 4), torch.empty(0, dtype=torch.int32)).shape == (0, 4)
    except RuntimeError:
        return False


def install() -> None:
    """Let the CPU worker's start bring the wrapper; at once where the sampler is loaded already."""
    from vllm.platforms import current_platform

    replace(type(current_platform), "register_triton_kernel_overrides", _register, patch=PATCH)
    if hasattr(sys.modules.get(_MODULE), "apply_top_k_only"):
        install_sampler_side()


def install_sampler_side() -> None:
    """Wrap `apply_top_k_only`. Imports the sampler."""
    replace(import_module(_MODULE), "apply_top_k_only", _top_k, patch=PATCH)


def _register(original: Callable[..., Any]) -> Any:
    def register_triton_kernel_overrides(cls: type) -> None:
        install_sampler_side()
        original(cls)

    return register_triton_kernel_overrides


def _top_k(original: Callable[..., Any]) -> Any:
    def apply_top_k_only(logits: Any, k: Any) -> Any:
        return original(logits, k) if logits.shape[0] else logits

    return apply_top_k_only
