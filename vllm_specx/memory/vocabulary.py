"""Which vocabulary the token ids of a memory file belong to.

Ids of two models mean the same if both map them to the same pieces of text. So a file carries a hash of the
whole mapping, special tokens included: not of names or versions, which tell nothing, nor of the weights, because
a model may well go on with what its predecessor said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_specx.config import KEY, ConfigError


def fingerprint_of(vocabulary: Mapping[str, int]) -> str:
    """Hash of a token -> id mapping."""
    digest = hashlib.sha256()
    for token, token_id in sorted(vocabulary.items(), key=lambda item: (item[1], item[0])):
        text = token.encode("utf-8", "surrogatepass")
        digest.update(b"%d %d " % (token_id, len(text)) + text)
    return f"vocabulary {len(vocabulary)} {digest.hexdigest()[:32]}"


def fingerprint_of_model(model_config: Any, option: str = "memory_path") -> str:
    """Hash of the vocabulary that vLLM's tokenizer of the model has.

    Args:
        model_config: the engine's.
        option: what needs it.

    Raises:
        ConfigError: the engine runs without a tokenizer.

    """
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer = cached_tokenizer_from_config(model_config)
    if tokenizer is None:
        raise ConfigError(
            f"{KEY}.{option} needs a tokenizer, which tells what the token ids that are kept mean: "
            "remove skip_tokenizer_init"
        )
    return fingerprint_of(tokenizer.get_vocab())


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder, read as vLLM reads it.

    Raises:
        OSError, ValueError, ImportError: it cannot be read, or transformers is not installed.

    """
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
