"""Trace files: JSON rows {"id", "prompt", "output"}, checked row by row and tokenised."""

import json
from collections.abc import Callable
from pathlib import Path

from drafters.replay import Trace
from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.rows import check_text, decode_row

MAX_PROMPT = 3000  # tokens, the last ones
MAX_OUTPUT = 600  # tokens, the first ones
MIN_OUTPUT = 3  # shorter outputs have next to nothing to draft


def load_traces(path: Path, tokenizer: Path) -> list[Trace]:
    """Read and tokenise a trace file; outputs of 2 tokens or fewer are left out.

    Args:
        path: JSON-lines file, blank lines skipped.
        tokenizer: folder with a tokenizer.json.

    Raises:
        BenchError: naming file and line of a bad row, or what is wrong with the tokenizer.

    """
    encode = _encoder(tokenizer)
    traces = [
        Trace(row["id"], encode(row["prompt"])[-MAX_PROMPT:], encode(row["output"])[:MAX_OUTPUT])
        for row in read_rows(path)
    ]
    traces = [trace for trace in traces if len(trace.output_ids) >= MIN_OUTPUT]
    if not traces:
        raise BenchError(f"--traces {path}: no row has an output of {MIN_OUTPUT} tokens or more")
    return traces


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a trace file as {"id", "prompt", "output"}, all checked; further keys are dropped.

    Raises:
        BenchError: naming file and line of the first bad row and the number of others.

    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BenchError(f"--traces {path}: {error.strerror or error}") from error
    rows: list[dict[str, str]] = []
    faults: list[str] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(_parse(line))
        except BenchError as error:
            faults.append(f"{path}:{number}: {error}")
    if faults:
        more = f" (and {len(faults) - 1} more bad rows)" if len(faults) > 1 else ""
        raise BenchError(faults[0] + more)
    if not rows:
        raise BenchError(f"--traces {path}: holds no rows")
    return rows


def _parse(line: bytes) -> dict[str, str]:
    row = decode_row(line)
    for key in ("id", "prompt", "output"):
        if key not in row:
            raise BenchError(f'"{key}" is missing (a row has "id", "prompt" and "output")')
    if not isinstance(row["id"], str | int) or isinstance(row["id"], bool):
        raise BenchError(f'"id" must be a string or a whole number, got {json.dumps(row["id"])}')
    return {"id": str(row["id"]), **{key: check_text(row[key], key) for key in ("prompt", "output")}}


def _encoder(folder: Path) -> Callable[[str], list[int]]:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise BenchError(
            f"replay needs the package tokenizers, which cannot be imported ({error}); "
            "vLLM brings it along, or `pip install tokenizers`"
        ) from error
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise BenchError(f"--tokenizer {folder}: must be a folder with a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower type
        raise BenchError(f"--tokenizer {folder}: tokenizer.json cannot be read: {error}") from error

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text).ids)

    return encode
