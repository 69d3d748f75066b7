"""`specx bench`: vLLM configurations side by side on the same prompts, paired within each repeat."""

from vllm_specx.bench.errors import BenchError, EngineFailed
from vllm_specx.bench.settings import BenchSettings

__all__ = ["BenchError", "BenchSettings", "EngineFailed"]
