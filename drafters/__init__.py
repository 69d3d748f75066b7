"""Draft sources for speculative decoding. They know tokens; they never import an engine."""

from drafters.contract import Draft, Drafter, RequestId
from drafters.suffix_tree import SuffixTreeDrafter

__all__ = ["Draft", "Drafter", "RequestId", "SuffixTreeDrafter"]
