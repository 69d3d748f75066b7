"""A store on disk, or at any other place that fsspec knows: a draft memory file, and what else is known beside it.

The texts are a file of `drafters.memory_file`, versioned, with a checksum; `specx warm` writes such files, and the
option `memory_path` reads them. `PATH.json` beside it names the model and holds the priors.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from drafters import memory_file
from drafters.memory_file import MemoryFileError, Snapshot
from vllm_specx.fleet.messages import Prior
from vllm_specx.fleet.store import Purge


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of the fleet beside its texts."""

    model: str
    vocabulary: str
    priors: dict[str, Prior] = {}
    purges: tuple[Purge, ...] = ()
    format: str = "specx-fleet/1"


def save(place: str, snapshot: Snapshot, about: About) -> None:
    """Write both files, each in one piece.

    Raises:
        OSError: it was not done; what was there before still is.

    """
    with _local(place) as path:
        memory_file.write(path, snapshot, about.vocabulary)
        _put(path, place)
    with _local(place + ".json") as path:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.touch(mode=0o600)
            temporary.write_bytes(msgspec.json.encode(about))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _put(path, place + ".json")


def load(place: str, vocabulary: str) -> Snapshot | None:
    """Read the texts; None if there is no file.

    Raises:
        MemoryFileError: it is damaged; ForeignMemoryFile: or for another vocabulary.
        OSError: it cannot be read.

    """
    with _local(place) as path:
        return memory_file.read(path, vocabulary) if _get(place, path) else None


def load_about(place: str) -> About | None:
    """Read what is known beside them; None if there is no file.

    Raises:
        MemoryFileError: it is damaged.
        OSError: it cannot be read.

    """
    place += ".json"
    with _local(place) as path:
        if not _get(place, path):
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=About)
        except (ValueError, RecursionError) as error:
            raise MemoryFileError(f"{place}: {error}") from error


def move_away(place: str) -> None:
    """Rename a damaged file, so that it is neither read again nor overwritten."""
    for file in (place, place + ".json"):
        if not _is_remote(file):
            with suppress(FileNotFoundError):
                os.replace(_path(file), f"{_path(file)}.damaged")
        else:
            system, name = _remote(file)
            with suppress(FileNotFoundError):
                system.mv(name, name + ".damaged")


def _is_remote(place: str) -> bool:
    return "://" in place


def _path(place: str) -> Path:
    return Path(place).expanduser().absolute()


def _remote(place: str) -> tuple[Any, str]:
    import fsspec

    system, name = fsspec.core.url_to_fs(place)
    return system, name


@contextmanager
def _local(place: str) -> Iterator[Path]:
    """The file itself, or one that stands for a remote one while it is written or read."""
    if not _is_remote(place):
        yield _path(place)
        return
    with tempfile.TemporaryDirectory(prefix="specx-fleet-") as folder:
        yield Path(folder) / "file"


def _put(path: Path, place: str) -> None:
    if _is_remote(place):
        system, name = _remote(place)
        system.put_file(str(path), name + ".tmp")
        with suppress(FileNotFoundError):  # not every system replaces in a move
            system.rm_file(name)
        system.mv(name + ".tmp", name)


def _get(place: str, path: Path) -> bool:
    if not _is_remote(place):
        return path.exists()
    system, name = _remote(place)
    for found in (name, name + ".tmp"):  # the second one of a process that was killed in `_put`
        if system.exists(found):
            system.get_file(found, str(path))
            return True
    return False
