"""Draft lengths from acceptance and costs. Pure: no engine object and no clock in here."""

from vllm_specx.tuner.acceptance import Hazards
from vllm_specx.tuner.cost import CostModel, Step
from vllm_specx.tuner.cost_table import CostTable, CostTableError
from vllm_specx.tuner.decision import Decision
from vllm_specx.tuner.policy import Tuner
from vllm_specx.tuner.price import PriceRule
from vllm_specx.tuner.speedup import (
    Ceilings,
    Optimum,
    best_n,
    best_n_for,
    ceilings,
    expected_tokens,
    expected_tokens_curve,
    line_costs,
    speedup,
    speedup_curve,
)
from vllm_specx.tuner.uniform import UniformTuner

__all__ = [
    "Ceilings",
    "CostModel",
    "CostTable",
    "CostTableError",
    "Decision",
    "Hazards",
    "Optimum",
    "PriceRule",
    "Step",
    "Tuner",
    "UniformTuner",
    "best_n",
    "best_n_for",
    "ceilings",
    "expected_tokens",
    "expected_tokens_curve",
    "line_costs",
    "speedup",
    "speedup_curve",
]
