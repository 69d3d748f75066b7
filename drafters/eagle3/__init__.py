"""EAGLE-3 heads (Li et al. 2025, EAGLE-3, section 3): the model, its training, and the format that vLLM loads."""

from drafters.eagle3.model import Eagle3Config, Eagle3Head

__all__ = ["Eagle3Config", "Eagle3Head"]
