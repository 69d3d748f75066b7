"""The switch of a running engine: whether it drafts."""

from __future__ import annotations

from typing import Any

from vllm_specx.workers import call_drafters


def set_enabled(llm: Any, is_enabled: bool) -> bool:
    """Let an engine draft, or only observe what its requests say; from the next step on, for all of them.

    What is learnt stays, and what requests say in between is learnt too. As with `purge`, with an AsyncLLM await
    `llm.collective_rpc("call_drafter", args=("set_enabled", False))`; over HTTP, a server in development mode takes
    `POST /collective_rpc {"method": "call_drafter", "args": ["set_enabled", false]}`.

    Args:
        llm: an `LLM`.
        is_enabled: whether to draft.

    Returns:
        Whether it did before.

    Raises:
        TypeError: is_enabled is not a bool.
        RuntimeError: no proposer of vllm_specx is at work in `llm`.

    """
    if not isinstance(is_enabled, bool):
        raise TypeError(f"is_enabled must be true or false, got {is_enabled!r}")
    return any(call_drafters(llm, "set_enabled", is_enabled))
