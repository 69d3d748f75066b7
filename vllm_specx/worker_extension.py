"""Imported by vLLM in a worker process, before its model is loaded: option worker_extension_cls."""

from vllm_specx._compat import hybrid_runner

hybrid_runner.install()


class HybridExtension:
    """Adds nothing to the worker; that it is imported is what counts."""
