"""Adapters between vLLM's proposer hook and drafters: batch in, drafter calls, batch out."""
