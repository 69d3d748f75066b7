"""What a target said, with the states it had: the data that draft heads are trained on, in files of one shard each.

A shard is a safetensors file: `token_ids` int32 (tokens,), `states` bf16 (tokens, layers * hidden), `finals` bf16
(tokens, hidden), `lengths` int32 (conversations,), `answers` int32 (conversations,): where the answer starts, and
`layers` int32 (layers,), whose inputs the states are. Row i of the states belongs to token i; that of a conversation's
last token, which the target never read, is zero.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

_PATTERN = "shard-{:05d}.safetensors"
_KEYS = {"token_ids", "states", "finals", "lengths", "answers", "layers"}


class RecordingError(ValueError):
    """A shard, or its description, is missing, damaged, or of another target. The message names the file."""


@dataclass(frozen=True)
class Conversation:
    """One conversation; `token_ids[answer:]` is what the target answered.

    token_ids: int32 (tokens,); states: bf16 (tokens, layers * hidden); finals: bf16 (tokens, hidden), what the target's
    output matrix is applied to.
    """

    token_ids: NDArray[np.int32]
    answer: int
    states: torch.Tensor
    finals: torch.Tensor

    def __len__(self) -> int:
        return len(self.token_ids)


class Recordings:
    """The shards in a folder, and `recordings.json`, which says what they were made from.

    Raises:
        RecordingError: the folder holds recordings that were made from something else.

    """

    def __init__(self, folder: Path, origin: dict[str, Any]) -> None:
        self.folder = folder
        described = folder / "recordings.json"
        folder.mkdir(parents=True, exist_ok=True)
        if described.exists():
            try:
                found = json.loads(described.read_text(encoding="utf-8"))
            except ValueError as error:
                raise RecordingError(f"{described}: not JSON: {error}") from error
            if found != origin:
                raise RecordingError(
                    f"{folder} holds recordings of other settings ({_difference(found, origin)}): "
                    "use these settings or another folder"
                )
        else:
            write_atomically(described, json.dumps(origin, indent=1).encode())

    @property
    def shards(self) -> list[Path]:
        """The complete shards, in order: a gap ends them."""
        paths: list[Path] = []
        while (path := self.path(len(paths))).exists():
            paths.append(path)
        return paths

    def path(self, number: int) -> Path:
        """Where a shard lies, or will."""
        return self.folder / _PATTERN.format(number)

    def add(self, conversations: Sequence[Conversation], layers: Sequence[int]) -> Path:
        """Write one more shard; returns its path. Raises OSError."""
        import torch
        from safetensors.torch import save

        path = self.path(len(self.shards))
        tensors = {
            "token_ids": torch.from_numpy(np.concatenate([c.token_ids for c in conversations])),
            "states": torch.cat([c.states for c in conversations]),
            "finals": torch.cat([c.finals for c in conversations]),
            "lengths": torch.tensor([len(c) for c in conversations], dtype=torch.int32),
            "answers": torch.tensor([c.answer for c in conversations], dtype=torch.int32),
            "layers": torch.tensor(layers, dtype=torch.int32),
        }
        write_atomically(path, save(tensors))
        return path

    @property
    def layers(self) -> tuple[int, ...]:
        """The target's layers whose inputs were recorded; needs a shard. Raises RecordingError."""
        return tuple(_load(self.shards[0])["layers"].tolist())

    def read(self) -> Iterator[Conversation]:
        """All conversations, views of the files. Raises RecordingError."""
        for path in self.shards:
            tensors = _load(path)
            start = 0
            for length, answer in zip(tensors["lengths"].tolist(), tensors["answers"].tolist(), strict=True):
                rows = slice(start, start + length)
                token_ids = tensors["token_ids"][rows].numpy()
                yield Conversation(token_ids, answer, tensors["states"][rows], tensors["finals"][rows])
                start += length


def _load(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RecordingError(f"{path}: not a readable shard: {error}") from error
    if set(tensors) != _KEYS or int(tensors["lengths"].sum()) != len(tensors["token_ids"]):
        raise RecordingError(f"{path}: not a shard of recordings")
    return tensors


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step: whoever reads it sees the old content or the new. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _difference(found: Any, wanted: dict[str, Any]) -> str:
    if not isinstance(found, dict):
        return "not a description"
    keys = [key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)]
    return ", ".join(f"{key}: {found.get(key)!r}, not {wanted.get(key)!r}" for key in sorted(keys))
