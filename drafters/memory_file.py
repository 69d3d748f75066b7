"""Shared draft memory on disk: one file, written whole or not at all, read whole or refused.

    magic     8 bytes   b"DRAFTMEM"
    version   uint32    little-endian, as all numbers
    header    uint64    its length in bytes
    tokens    uint64    their number
    header    JSON in UTF-8: {"fingerprint", "saved_at", "namespaces": [name], "documents": {"length": [...],
              "namespace": [index], "age": [seconds], "credit": [...]}}; documents in the order of their eviction
    tokens    int32     the documents' tokens, one document after the other
    digest    32 bytes  SHA-256 of all before

The fingerprint says for which vocabulary the ids mean something. A file is refused if anything about it is not as it
should be; a memory that was read from half a file would draft nonsense without a sign of it.
"""

import contextlib
import hashlib
import json
import math
import os
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from drafters._tokens import MAX_TOKEN_ID

MAGIC: Final = b"DRAFTMEM"
VERSION: Final = 1
_PREFIX: Final = struct.Struct("<8sIQQ")
_DIGEST_SIZE: Final = hashlib.sha256().digest_size
_CHUNK: Final = 1 << 20
MAX_CREDIT: Final = 1 << 40
_MAX_SECONDS: Final = 1 << 40


class MemoryFileError(ValueError):
    """A file that is not a memory file of ours, whole and for this vocabulary; the message names it and the reason."""


class ForeignMemoryFile(MemoryFileError):
    """A memory file that is whole, but of another vocabulary."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Documents of a shared memory at one moment, those first that are evicted first.

    Attributes:
        token_ids: int32, shape (n,): the documents, one after the other.
        lengths: int64, shape (d,): tokens of each; they add up to n.
        names: namespaces that occur.
        namespaces: int64, shape (d,): index into names of each document.
        ages: float64, shape (d,): seconds.
        credits: int64, shape (d,): what each has earned, see `drafters.memory`.
        taken_at: time.time() of that moment.

    """

    token_ids: NDArray[np.int32]
    lengths: NDArray[np.int64]
    names: tuple[str, ...]
    namespaces: NDArray[np.int64]
    ages: NDArray[np.float64]
    credits: NDArray[np.int64]
    taken_at: float

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.lengths)


def write(path: str | os.PathLike[str], snapshot: Snapshot, fingerprint: str = "") -> None:
    """Write a snapshot to `path`, readable by its owner only.

    The file is complete under another name in the same folder before it takes the place of an older one.

    Raises:
        OSError: it could not be written; an older file is as it was, and nothing is left behind.
        TypeError: the fingerprint is not a str.

    """
    if not isinstance(fingerprint, str):
        raise TypeError(f"a fingerprint must be a str, got {type(fingerprint).__name__}")
    target = Path(os.path.realpath(path))  # a link stays one
    documents = {
        "length": snapshot.lengths.tolist(),
        "namespace": snapshot.namespaces.tolist(),
        "age": snapshot.ages.tolist(),
        "credit": snapshot.credits.tolist(),
    }
    header = json.dumps(
        {
            "fingerprint": fingerprint,
            "saved_at": snapshot.taken_at,
            "namespaces": snapshot.names,
            "documents": documents,
        }
    ).encode()
    parts: tuple[Any, ...] = (
        _PREFIX.pack(MAGIC, VERSION, len(header), len(snapshot.token_ids)),
        header,
        snapshot.token_ids.astype("<i4", copy=False).data.cast("B") if len(snapshot.token_ids) else b"",
    )
    handle, temporary = tempfile.mkstemp(
        prefix=f".{target.name}.", suffix=".tmp", dir=target.parent
    )  # mode 0600
    try:
        digest = hashlib.sha256()
        with open(handle, "wb") as file:
            for part in parts:
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(target.parent)


def read(path: str | os.PathLike[str], fingerprint: str = "") -> Snapshot:
    """Read what `write` wrote; ages have grown by the time since.

    Raises:
        MemoryFileError: not a memory file, another version, or damaged.
        ForeignMemoryFile: for another fingerprint.
        OSError: it cannot be read.

    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise MemoryFileError(f"{path}: not a file")
    with path.open("rb") as file:
        try:
            snapshot, found = _read(file)
        except _Refused as error:
            raise MemoryFileError(f"{path}: {error}") from error
    if found != fingerprint:
        raise ForeignMemoryFile(
            f"{path}: written for another vocabulary: its fingerprint is {found!r}, here it is {fingerprint!r}"
        )
    elapsed = max(0.0, time.time() - snapshot.taken_at)
    return replace(snapshot, ages=snapshot.ages + elapsed)


class _Refused(Exception):
    pass


def _read(file: BinaryIO) -> tuple[Snapshot, str]:
    """Return the snapshot and its fingerprint; nothing is allocated by a size that the file does not have."""
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(_PREFIX.size)
    if prefix[: len(MAGIC)] != MAGIC:
        raise _Refused("not a draft memory file")
    if len(prefix) < _PREFIX.size:
        raise _Refused(f"truncated: {size} bytes are less than its beginning takes")
    _, version, header_size, num_tokens = _PREFIX.unpack(prefix)
    if version != VERSION:
        raise _Refused(f"written in format version {version}, this is version {VERSION}")
    expected = _PREFIX.size + header_size + 4 * num_tokens + _DIGEST_SIZE
    if size < expected:
        raise _Refused(f"truncated: {size} bytes of {expected}")
    if size > expected:
        raise _Refused(f"inconsistent: {size} bytes, its beginning says {expected}")
    header = file.read(header_size)
    blob = file.read(4 * num_tokens)
    if hashlib.sha256(prefix + header + blob).digest() != file.read(_DIGEST_SIZE):
        raise _Refused("damaged: its checksum is wrong")
    return _parse(header, np.frombuffer(blob, dtype="<i4").astype(np.int32, copy=False))


def _parse(header: bytes, token_ids: NDArray[np.int32]) -> tuple[Snapshot, str]:
    try:
        fields = json.loads(header)
        fingerprint, names, saved_at = fields["fingerprint"], fields["namespaces"], fields["saved_at"]
        documents = fields["documents"]
        lengths, namespaces = documents["length"], documents["namespace"]
        ages, credits = documents["age"], documents["credit"]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise _Refused(f"inconsistent: its header is not as it should be ({error})") from error
    _check(isinstance(fingerprint, str), "fingerprint")
    _check(_is_number(saved_at) and 0 <= saved_at < _MAX_SECONDS, "saved_at")
    _check(isinstance(names, list) and all(isinstance(name, str) for name in names), "namespaces")
    _check(len(set(names)) == len(names), "namespaces")
    whole = "document lengths", lengths, _is_whole, lambda n: 2 <= n <= len(token_ids)
    indices = "document namespaces", namespaces, _is_whole, lambda i: 0 <= i < len(names)
    for what, values, is_kind, is_in_range in (
        whole,
        indices,
        ("document ages", ages, _is_number, lambda age: 0 <= age < _MAX_SECONDS),
        ("document credits", credits, _is_whole, lambda credit: 0 <= credit <= MAX_CREDIT),
    ):
        _check_all(what, values, is_kind, is_in_range)
        _check(len(values) == len(lengths), what)
    _check(sum(lengths) == len(token_ids), "document lengths")
    _check(not len(token_ids) or (token_ids.min() >= 0 and token_ids.max() <= MAX_TOKEN_ID), "token ids")
    return (
        Snapshot(
            token_ids,
            np.array(lengths, dtype=np.int64),
            tuple(names),
            np.array(namespaces, dtype=np.int64),
            np.array(ages, dtype=np.float64),
            np.array(credits, dtype=np.int64),
            float(saved_at),
        ),
        fingerprint,
    )


def _check(holds: object, what: str) -> None:
    if not holds:
        raise _Refused(f"inconsistent: {what}")


def _check_all(
    what: str, values: Any, is_kind: Callable[[Any], bool], is_in_range: Callable[[Any], bool]
) -> None:
    _check(isinstance(values, list) and all(is_kind(value) and is_in_range(value) for value in values), what)


def _is_whole(value: object) -> bool:
    return type(value) is int


def _is_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _sync_folder(folder: Path) -> None:
    """Make the new name last; where a file system cannot, the file is in its place all the same."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
