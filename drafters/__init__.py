"""Draft sources for speculative decoding. They know tokens; they never import an engine."""

from drafters.combined import FallbackDrafter
from drafters.contract import NO_DRAFT, Draft, Drafter, RequestId
from drafters.lookahead import LookaheadDrafter
from drafters.suffix_tree import SuffixTreeDrafter

__all__ = [
    "NO_DRAFT",
    "Draft",
    "Drafter",
    "FallbackDrafter",
    "LookaheadDrafter",
    "RequestId",
    "SuffixTreeDrafter",
]
