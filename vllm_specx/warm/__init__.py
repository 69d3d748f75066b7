"""A memory file from a corpus, made before any engine runs: known answers that a new server can draft from."""

from vllm_specx.warm.corpus import BadRow, Row, read_corpus
from vllm_specx.warm.run import WarmSettings, run_warm

__all__ = ["BadRow", "Row", "WarmSettings", "read_corpus", "run_warm"]
