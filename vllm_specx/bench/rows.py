"""Rows of JSON-lines files, checked; whoever reads them says which row of which file it was."""

from __future__ import annotations

import json
from typing import Any

from vllm_specx.bench.errors import BenchError


def decode_row(line: bytes) -> dict[str, Any]:
    """One line as a JSON object. Raises BenchError with the reason alone."""
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BenchError(f"not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise BenchError(f"not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets likewise
        raise BenchError(f"not JSON that can be read: {error}") from error
    if not isinstance(row, dict):
        raise BenchError(f"a row must be a JSON object, got {type(row).__name__}")
    return row


def check_text(value: Any, key: str) -> str:
    """`value`, a string that UTF-8 can hold. Raises BenchError with the reason alone."""
    if not isinstance(value, str):
        raise BenchError(f'"{key}" must be a string, got {type(value).__name__}')
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BenchError(f'"{key}" has half a surrogate pair at character {error.start}') from error
    return value
