"""Corpus files: JSON rows with something that the model may say again; bad rows are told by line and left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.rows import check_text, decode_row

_KEYS = ("output", "text", "messages")


@dataclass(frozen=True, slots=True)
class Row:
    """What a row says, and the text before it, which may be empty."""

    text: str
    context: str = ""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is left out: where it is ("FILE:LINE") and why."""

    where: str
    reason: str


def read_corpus(path: Path, text_key: str | None = None) -> Iterator[Row | BadRow]:
    """Read a JSON-lines file row by row, blank lines left out.

    Args:
        path: rows are {"output"} (with "prompt" or not), {"text"}, or {"messages"}, whose last answer counts.
        text_key: the key of the text, where it is another one.

    Raises:
        BenchError: the file cannot be read.

    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    yield _parse(line, text_key)
                except BenchError as error:
                    yield BadRow(f"{path}:{number}", str(error))
    except OSError as error:
        raise BenchError(f"--corpus {path}: {error.strerror or error}") from error


def _parse(line: bytes, text_key: str | None) -> Row:
    row = decode_row(line)
    key = next((key for key in ((text_key,) if text_key else _KEYS) if key in row), None)
    if key is None:
        raise BenchError(
            f'"{text_key}" is missing' if text_key else 'none of "output", "text", "messages" is there'
        )
    text = check_text(_last_answer(row[key]) if key == "messages" and not text_key else row[key], key)
    if not text.strip():
        raise BenchError(f'"{key}" is empty')
    prompt = row.get("prompt", "") if key != "messages" else ""
    return Row(text, check_text(prompt, "prompt"))


def _last_answer(messages: Any) -> Any:
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BenchError('"messages" must be a list of objects')
    for message in reversed(messages):
        if message.get("role") == "assistant":
            return message.get("content")
    raise BenchError('"messages" has none of the role "assistant"')
