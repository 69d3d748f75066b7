"""Draft lengths from acceptance and costs. Pure: no engine object and no clock in here."""

from vllm_specx.tuner.price import PriceRule

__all__ = ["PriceRule"]
