"""`specx verify`: whether speculation changes what a model says, on a user's own model and configuration."""

from vllm_specx.verify.run import run_verify
from vllm_specx.verify.settings import VerifySettings

__all__ = ["VerifySettings", "run_verify"]
