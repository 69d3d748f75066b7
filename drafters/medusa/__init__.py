"""Medusa heads (Cai et al. 2024, section 2.1): the model, its training, and the formats that it is kept in."""

from drafters.medusa.checkpoint import HeadsError, load
from drafters.medusa.model import MedusaConfig, MedusaHeads

__all__ = ["HeadsError", "MedusaConfig", "MedusaHeads", "load"]
