"""`specx calibrate`: a cost table for this model on this machine, measured on a real engine."""

from vllm_specx.calibrate.run import run_calibrate
from vllm_specx.calibrate.settings import CalibrateSettings

__all__ = ["CalibrateSettings", "run_calibrate"]
