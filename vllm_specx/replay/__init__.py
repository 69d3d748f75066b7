"""`specx replay`: what a drafter would gain on known outputs, by the formula, without an engine."""

from vllm_specx.replay.run import run_replay
from vllm_specx.replay.settings import DRAFTERS, ReplaySettings
from vllm_specx.replay.traces import load_traces

__all__ = ["DRAFTERS", "ReplaySettings", "load_traces", "run_replay"]
