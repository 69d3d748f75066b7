"""A tokenizer of single letters."""

from pathlib import Path

import pytest


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer.json whose words are "a" to "f"."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {letter: i for i, letter in enumerate("?abcdef")}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
