"""`specx report`: what a bench measured, as one page that needs nothing else."""

from vllm_specx.report.page import page

__all__ = ["page"]
