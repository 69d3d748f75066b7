"""`specx simulate`: a fleet of replicas with private or shared draft memory, without an engine."""

from vllm_specx.simulate.run import run_simulate
from vllm_specx.simulate.settings import SimulateSettings, Sweep

__all__ = ["SimulateSettings", "Sweep", "run_simulate"]
