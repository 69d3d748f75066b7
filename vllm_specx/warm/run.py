"""One warm-up, from settings to the file and the numbers that are printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafters import SuffixTreeDrafter, memory_file
from drafters._index_kernels import PROMPT_TAIL
from drafters.memory_file import MemoryFileError
from vllm_specx.bench.errors import BenchError, EngineFailed
from vllm_specx.config import ConfigError, SpecxConfig, check_memory_path
from vllm_specx.memory.namespaces import namespace_of
from vllm_specx.memory.vocabulary import fingerprint_of, load_tokenizer
from vllm_specx.warm.corpus import BadRow, read_corpus


@dataclass(frozen=True, kw_only=True)
class WarmSettings:
    """Validated settings of a warm-up; raises BenchError at construction.

    `memory_bytes` is the budget of the server that will load the file; `salt` the tenant whose memory it is.
    An existing `out` is added to with `append` and replaced with `force`.
    """

    corpus: Path
    tokenizer: Path
    out: Path
    memory_bytes: int
    salt: str | None = None
    text_key: str | None = None
    append: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        if self.append and self.force:
            raise BenchError("--append and --force exclude each other")
        try:
            SpecxConfig(memory_bytes=self.memory_bytes)
        except ConfigError as error:
            raise BenchError(f"--memory-bytes: {error}") from error
        try:
            check_memory_path(self.out)
        except ConfigError as error:
            raise BenchError(f"--out: {error}") from error
        if self.out.exists() and not (self.append or self.force):
            raise BenchError(f"--out {self.out} exists: add to it with --append or replace it with --force")
        if not (self.tokenizer / "tokenizer_config.json").is_file():
            raise BenchError(f"--tokenizer {self.tokenizer}: must be a folder with a model's tokenizer")


def run_warm(settings: WarmSettings, complain: Callable[[BadRow], None]) -> dict[str, Any]:
    """Write the file; bad rows go to `complain` and are left out.

    Returns:
        rows read, bad rows included; bad_rows; tokens of the good ones; documents and document_tokens in the file,
        with what it held before (equal texts are kept once, and the newest that fit into memory_bytes); bytes, its
        size.

    Raises:
        BenchError: corpus, tokenizer or an existing file cannot be used, or no row can.
        EngineFailed: the file cannot be written.

    """
    try:
        tokenizer = load_tokenizer(settings.tokenizer)
    except Exception as error:  # the library raises many types
        raise BenchError(f"--tokenizer {settings.tokenizer}: cannot be read: {error}") from error
    fingerprint = fingerprint_of(tokenizer.get_vocab())
    drafter = SuffixTreeDrafter(memory_bytes=settings.memory_bytes)
    if settings.append and settings.out.exists():
        try:
            drafter.load(settings.out, fingerprint=fingerprint)
        except (MemoryFileError, OSError) as error:
            raise BenchError(f"--out: {error}") from error

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    namespace = namespace_of(settings.salt, None)
    num_rows = num_bad = num_tokens = 0
    for row in read_corpus(settings.corpus, settings.text_key):
        num_rows += 1
        if isinstance(row, BadRow):
            num_bad += 1
            complain(row)
            continue
        token_ids = encode(row.text)
        num_tokens += len(token_ids)
        drafter.add_document(encode(row.context[-20 * PROMPT_TAIL :])[-PROMPT_TAIL:] + token_ids, namespace)
    if num_bad == num_rows:
        raise BenchError(f"--corpus {settings.corpus}: holds no row that can be used")
    try:
        memory_file.write(settings.out, drafter.snapshot(), fingerprint)
    except OSError as error:
        raise EngineFailed(f"{settings.out} was not written: {error}") from error
    return {
        "rows": num_rows,
        "bad_rows": num_bad,
        "tokens": num_tokens,
        "documents": drafter.memory.num_documents,
        "document_tokens": drafter.memory.num_tokens,
        "bytes": settings.out.stat().st_size,
    }
