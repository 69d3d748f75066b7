"""`specx recommend`: the recipe that a bench supports, which may be not to speculate."""

from vllm_specx.recommend.choice import Recommendation, recommend, select
from vllm_specx.recommend.recipe import recipe

__all__ = ["Recommendation", "recipe", "recommend", "select"]
