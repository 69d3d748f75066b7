"""Calls to the drafters of a running engine, in whatever processes its workers are."""

from __future__ import annotations

from typing import Any


def call_drafters(llm: Any, method: str, *arguments: Any) -> list[Any]:
    """Call a method of each rank's drafter by name; return what they answer.

    Raises:
        RuntimeError: no proposer of vllm_specx is at work in `llm`.

    """
    results = llm.collective_rpc("call_drafter", args=(method, *arguments))
    answers = [result for result in results if result is not None]  # ranks without a drafter answer None
    if not answers:
        raise RuntimeError("no proposer of vllm_specx is at work in this engine")
    return answers
