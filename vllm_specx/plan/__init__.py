"""`specx plan`: the formula, its optimum and its ceilings, as numbers and as a picture."""

from vllm_specx.plan.curve import Plan, PlanSettings, make_plan

__all__ = ["Plan", "PlanSettings", "make_plan"]
