"""Runtime form of the no-draft-sampling patch: see patches/README.md.

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
from vllm_specx._compat.apply import is_applied, replace
from vllm_specx._compat.versions import check_supported

PATCH = "no-draft-sampling"
_MODULE = "vllm.v1.sample.rejection_sampler"


def is_needed() -> bool:
    """Whether this is vLLM for the CPU without the diff; told by its source, which is not imported."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    spec = find_spec(_MODULE)
    assert spec is not None
    assert spec.origin is not None
    return "if metadata.max_spec_len == 0:" not in Path(spec.origin).read_text()


def install() -> None:
    """Let the CPU worker's start bring the wrapper; at once where the sampler is loaded already."""
    from vllm.platforms import current_platform

    replace(type(current_platform), "register_triton_kernel_overrides", _register, patch=PATCH)
    if hasattr(sys.modules.get(_MODULE), "RejectionSampler"):
        install_sampler_side()


def install_sampler_side() -> None:
    """Wrap `RejectionSampler.forward`. Imports the sampler.

    Raises UnsupportedVLLM where it is other code.
    """
    minor = check_supported()
    sampler = import_module(_MODULE).RejectionSampler
    if not is_applied(sampler, "forward", PATCH):
        fingerprints.require_pristine(fingerprints.REJECT, vars(sampler).get("forward"), minor)
        replace(sampler, "forward", _forward, patch=PATCH)


def _register(original: Callable[..., Any]) -> Any:
    def register_triton_kernel_overrides(cls: type) -> None:
        install_sampler_side()
        original(cls)

    return register_triton_kernel_overrides


def _forward(original: Callable[..., Any]) -> Any:
    def forward(self: Any, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        if metadata.max_spec_len == 0:  # every row of the logits is a bonus row
            return self.sampler(logits=logits, sampling_metadata=sampling_metadata)
        return original(self, metadata, draft_probs, logits, sampling_metadata)

    return forward
