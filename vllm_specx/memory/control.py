"""What operators do to the shared memory of a running engine."""

from __future__ import annotations

from typing import Any

from vllm_specx.memory.namespaces import adapter_of
from vllm_specx.workers import call_drafters


def purge(llm: Any, *, cache_salt: str | None = None, lora_request: Any | None = None) -> int:
    """Forget what a tenant's, or an adapter's, requests have said until now; also in the memory file.

    It works in every layout of vLLM's processes and needs no insecure serialization: the call goes to the workers
    by name, as `llm.collective_rpc("call_drafter", args=("purge", cache_salt))`. With an AsyncLLM, await that
    (`adapter_of` of `vllm_specx.memory.namespaces` names an adapter, the second argument); over HTTP, a server in
    development mode takes `POST /collective_rpc {"method": "call_drafter", "args": ["purge", SALT]}`.

    Args:
        llm: an `LLM`.
        cache_salt: forget what was said with this salt, with any adapter.
        lora_request: forget what was said with this adapter, for any tenant; with a salt, for that tenant only.

    Returns:
        Number of answers forgotten. Requests that are running go on; they share nothing from then on.

    Raises:
        ValueError: neither is given (`forget` forgets all).
        RuntimeError: no proposer of vllm_specx is at work in `llm`.

    """
    if cache_salt is None and lora_request is None:
        raise ValueError(
            "purge needs a cache_salt, a lora_request or both; vllm_specx.forget(llm) forgets all"
        )
    return _call(llm, "purge", cache_salt, None if lora_request is None else adapter_of(lora_request))


def forget(llm: Any) -> int:
    """Forget everything that was learnt from requests, calibration included; also in the memory file.

    For whoever changes weights by ways that vLLM does not know, say with `LLM.apply_model`. Otherwise as `purge`.
    """
    return _call(llm, "forget")


def _call(llm: Any, *arguments: Any) -> int:
    return max(call_drafters(llm, *arguments))  # each rank of a tensor parallel group has learnt the same
