"""Whose text a request may read and write: a namespace per tenant (vLLM's cache_salt) and LoRA adapter."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any


def namespace_of(cache_salt: str | None, lora_request: Any | None) -> str:
    """Name of the part of shared memory that a request reads and writes; "" without salt and adapter.

    Neither the salt nor anything that it could be read from is in the name, which gets into files. A guessable
    salt can be found by trying, though: salts are for telling tenants apart, so make them random.

    Args:
        cache_salt: the request's; "" is a tenant of its own.
        lora_request: vLLM's LoRARequest. Another id, name or path is another namespace. The same three with other
            weights (load_inplace) are the same one: a reload clears the memory, see `_compat/drafter_calls.py`.

    """
    return ";".join(_parts(cache_salt, lora_request))


def parts_of(cache_salt: str | None, adapter: str | None) -> list[str]:
    """What a namespace's name must have to belong to the tenant and to the adapter; None stands for any."""
    return [part for part in (None if cache_salt is None else _salt(cache_salt), adapter) if part is not None]


def has_parts(namespace: str, parts: Iterable[str]) -> bool:
    """Whether a namespace's name has all of these."""
    return set(parts) <= set(namespace.split(";"))


def adapter_of(lora_request: Any) -> str:
    """The adapter's part of a namespace."""
    identity = (lora_request.lora_name, lora_request.lora_int_id, lora_request.lora_path)
    return f"lora={_digest(repr(identity))}"


def _parts(cache_salt: str | None, lora_request: Any | None) -> list[str]:
    parts = [] if cache_salt is None else [_salt(cache_salt)]
    return parts if lora_request is None else [*parts, adapter_of(lora_request)]


def _salt(cache_salt: str) -> str:
    return f"salt={_digest(cache_salt)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=b"specx").hexdigest()
