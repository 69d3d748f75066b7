"""Prompt files: JSON rows, ours or Spec-Bench's, checked row by row with file and line in every complaint."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.rows import check_text, decode_row


@dataclass(frozen=True)
class Prompt:
    """One row. `max_tokens` caps the output; `where` is "file:line" for messages."""

    id: str
    messages: tuple[Mapping[str, str], ...]
    max_tokens: int
    where: str


def workloads(paths: Iterable[Path]) -> dict[str, Path]:
    """Name each file by its stem; two files of one name are refused."""
    named: dict[str, Path] = {}
    for path in paths:
        if path.stem in named:
            raise BenchError(
                f"--prompts has two files named {path.stem!r}: {named[path.stem]} and {path}; rename one"
            )
        named[path.stem] = path
    return named


def read_prompts(path: Path, limit: int | None = None, max_tokens: int = 256) -> list[Prompt]:
    """Rows of a JSON-lines file, blank lines skipped.

    Accepts {"id","messages","max_tokens"} and Spec-Bench's {"question_id","category","turns"} (first turn).
    Every row is checked, those beyond `limit` too. Raises BenchError naming file and line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BenchError(f"--prompts {path}: {error.strerror or error}") from error
    prompts: list[Prompt] = []
    faults: list[str] = []
    seen: dict[str, str] = {}
    # Only "\n" ends a row: JSON strings may hold other separators that splitlines() would split at.
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            prompt = _parse(line, where, max_tokens)
            if prompt.id in seen:
                raise BenchError(f'"id" {prompt.id!r} was used before, in {seen[prompt.id]}')
        except BenchError as error:
            faults.append(f"{where}: {error}")
            continue
        seen[prompt.id] = where
        prompts.append(prompt)
    if faults:
        more = f" (and {len(faults) - 1} more bad rows)" if len(faults) > 1 else ""
        raise BenchError(faults[0] + more)
    if not prompts:
        raise BenchError(f"--prompts {path}: holds no rows")
    return prompts[:limit]


def _parse(line: bytes, where: str, max_tokens: int) -> Prompt:
    row = decode_row(line)
    if "turns" in row and "messages" not in row:
        return _parse_spec_bench(row, where, max_tokens)
    for key in ("id", "messages"):
        if key not in row:
            raise BenchError(f'"{key}" is missing (a row has "id", "messages" and "max_tokens")')
    cap = row.get("max_tokens", max_tokens)
    if not isinstance(cap, int) or isinstance(cap, bool) or cap < 1:
        raise BenchError(f'"max_tokens" must be a whole number of 1 or more, got {json.dumps(cap)}')
    return Prompt(_id(row["id"], "id"), _messages(row["messages"]), cap, where)


def _parse_spec_bench(row: dict[str, Any], where: str, max_tokens: int) -> Prompt:
    if "question_id" not in row:
        raise BenchError('"question_id" is missing (a Spec-Bench row has it beside "turns")')
    turns = row["turns"]
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str) or not turns[0]:
        raise BenchError('"turns" must be a list that starts with a non-empty string')
    message = {"role": "user", "content": check_text(turns[0], "turns")}
    return Prompt(_id(row["question_id"], "question_id"), (message,), max_tokens, where)


def _id(value: Any, key: str) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise BenchError(f'"{key}" must be a string or a whole number, got {json.dumps(value)}')
    return check_text(str(value), key)


def _messages(value: Any) -> tuple[Mapping[str, str], ...]:
    wanted = '"messages" must be a non-empty list of {"role", "content"} with string values'
    if not isinstance(value, list) or not value:
        raise BenchError(wanted)
    for message in value:
        if not isinstance(message, dict) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise BenchError(wanted)
    return tuple({key: check_text(message[key], key) for key in ("role", "content")} for message in value)
