"""What vllm-specx changes in vLLM at run time, and for which releases. See patches/README.md.

Nothing here imports vLLM before it is called.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_specx._compat import (
    context,
    cpu_kernels,
    cpu_sampling,
    drafter_calls,
    no_draft_sampling,
    shutdown_window,
    v2_speculators,
)
from vllm_specx._compat.apply import PatchConflict
from vllm_specx._compat.context import ProposerContext
from vllm_specx._compat.shutdown_window import open_window
from vllm_specx._compat.v2_speculators import async_allowed
from vllm_specx._compat.versions import SUPPORTED_RANGE, UnsupportedVLLM, check_supported

__all__ = [
    "SUPPORTED_RANGE",
    "PatchConflict",
    "PatchState",
    "ProposerContext",
    "UnsupportedVLLM",
    "async_allowed",
    "check_supported",
    "install",
    "open_window",
]


@dataclass(frozen=True, slots=True)
class PatchState:
    """Names of the patches, by how they came into the running vLLM."""

    version: str
    """Minor version of vLLM, such as "0.32"."""
    applied: tuple[str, ...]
    """Put in at run time, by this process."""
    present: tuple[str, ...]
    """Not needed: the installed vLLM has the change, or the platform is not concerned."""


_state: PatchState | None = None


def install() -> PatchState:
    """Apply what the installed vLLM lacks, once a process.

    Raises UnsupportedVLLM for a vLLM outside the supported range or with other code where a patch goes,
    PatchConflict where another plug-in patched the same name.
    """
    global _state
    if _state is None:
        version = check_supported()
        needed = []
        if not context.is_present():
            context.install_scheduler_side()
            needed.append(context.PATCH)
        for patch in (cpu_sampling, cpu_kernels, no_draft_sampling):
            if patch.is_needed():
                patch.install()
                needed.append(patch.PATCH)
        if not drafter_calls.is_present():
            drafter_calls.install(at_once=context.PATCH not in needed)
            needed.append(drafter_calls.PATCH)
        if not v2_speculators.is_present():
            v2_speculators.install()
            needed.append(v2_speculators.PATCH)
        if not shutdown_window.is_present():
            needed.append(shutdown_window.PATCH)  # goes in with a configuration that wants it
        patches = (
            context,
            cpu_sampling,
            cpu_kernels,
            no_draft_sampling,
            drafter_calls,
            v2_speculators,
            shutdown_window,
        )
        known = tuple(patch.PATCH for patch in patches)
        _state = PatchState(version, tuple(needed), tuple(p for p in known if p not in needed))
    return _state
