"""Adaptive speculative decoding for vLLM. Naming one of these classes in --speculative-config is all it takes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_specx.config import SpecxConfig
    from vllm_specx.memory.control import forget, purge
    from vllm_specx.proposers.eagle3 import AdaptiveEagle3Proposer
    from vllm_specx.proposers.hybrid import HybridProposer
    from vllm_specx.proposers.lookahead import LookaheadProposer
    from vllm_specx.proposers.medusa import MedusaProposer
    from vllm_specx.proposers.suffix_tree import SuffixTreeProposer
    from vllm_specx.recipes import recipe
    from vllm_specx.scheduler import AdaptiveAsyncScheduler, AdaptiveScheduler
    from vllm_specx.switch import set_enabled

__version__ = "0.1.0"
__all__ = [
    "AdaptiveAsyncScheduler",
    "AdaptiveEagle3Proposer",
    "AdaptiveScheduler",
    "HybridProposer",
    "LookaheadProposer",
    "MedusaProposer",
    "SpecxConfig",
    "SuffixTreeProposer",
    "__version__",
    "forget",
    "purge",
    "recipe",
    "set_enabled",
]

_HOME = {
    "AdaptiveAsyncScheduler": "vllm_specx.scheduler",
    "AdaptiveEagle3Proposer": "vllm_specx.proposers.eagle3",
    "AdaptiveScheduler": "vllm_specx.scheduler",
    "HybridProposer": "vllm_specx.proposers.hybrid",
    "LookaheadProposer": "vllm_specx.proposers.lookahead",
    "MedusaProposer": "vllm_specx.proposers.medusa",
    "SpecxConfig": "vllm_specx.config",
    "SuffixTreeProposer": "vllm_specx.proposers.suffix_tree",
    "forget": "vllm_specx.memory.control",
    "purge": "vllm_specx.memory.control",
    "recipe": "vllm_specx.recipes",
    "set_enabled": "vllm_specx.switch",
}


def __getattr__(name: str) -> Any:
    """Import on first use: proposers pull in numba, and vLLM imports this package in every process."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
