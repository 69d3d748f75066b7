"""What `specx doctor` looks at: one small function a check, each of which returns a Finding."""

from vllm_specx.doctor.checks import CHECKS, diagnose
from vllm_specx.doctor.finding import Finding

__all__ = ["CHECKS", "Finding", "diagnose"]
