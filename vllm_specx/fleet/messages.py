"""What members and the store say to each other: msgspec structs, no pickle. It imports nothing heavy."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from vllm_specx.fleet.options import FleetConfig

PROTOCOL: Final = 1
MESSAGE_BYTES: Final = (
    1 << 20
)  # of tokens: decoding one holds up Python's other threads for less than a millisecond


class Texts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Texts as flat buffers, little-endian: int32 tokens, int64 lengths, namespaces and credits, float64 ages."""

    token_ids: bytes = b""
    lengths: bytes = b""
    names: tuple[str, ...] = ()
    namespaces: bytes = b""
    ages: bytes = b""
    credits: bytes = b""


class Prior(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a replica has learnt beside text: float64 arrays by name, as buffers, and how much they rest on."""

    evidence: float
    arrays: dict[str, bytes]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a shard of the store is made with."""

    name: str
    shard: int = 0
    num_shards: int = 1
    max_bytes: int = 256 << 20
    ttl_s: float = 0.0
    snapshot_path: str = ""
    snapshot_interval_s: float = 30.0


def settings_of(options: FleetConfig, ttl_s: float = 0.0) -> tuple[Settings, ...]:
    """What each shard of a fleet is made with."""
    return tuple(
        Settings(
            options.name,
            shard,
            options.shards,
            options.bytes // options.shards,
            ttl_s,
            options.snapshot_path,
            options.snapshot_interval_s,
        )
        for shard in range(options.shards)
    )


class Join(msgspec.Struct, frozen=True):
    """A replica introduces itself."""

    replica: str
    model: str
    vocabulary: str
    num_shards: int = 1
    protocol: int = PROTOCOL


class Joined(msgspec.Struct, frozen=True):
    """Whether it may; `epoch` is another one whenever the store was made anew, `last` its newest sequence number."""

    refused: str = ""
    epoch: str = ""
    last: int = 0
    notice: str = ""
    priors: dict[str, Prior] = {}


class Sync(msgspec.Struct, frozen=True):
    """What a replica has to say, and from where on it wants to hear what others said.

    Attributes:
        epoch: see Joined.
        heard: sequence number up to which it has heard what others had forgotten.
        after: sequence number up to which it has heard what others said.
        before: a long answer goes on below this one; 0: it begins.
        texts: said since the last time.
        credits: what texts of the store have earned there, by key.
        purges: parts of namespaces to forget, see `memory.namespaces.has_parts`.

    """

    replica: str
    epoch: str
    heard: int = 0
    after: int = 0
    before: int = 0
    texts: Texts = Texts()
    credits: dict[bytes, int] = {}
    purges: tuple[tuple[str, ...], ...] = ()
    priors: dict[str, Prior] = {}


class Synced(msgspec.Struct, frozen=True):
    """The store's answer.

    Attributes:
        is_unknown: the store does not know the replica: join again.
        last: sequence number of the newest text that this answer takes account of.
        more: go on with `before` of this; 0: that was all.
        durable: sequence number up to which texts are saved.
        purges: what others had forgotten.

    """

    is_unknown: bool = False
    last: int = 0
    more: int = 0
    durable: int = 0
    texts: Texts = Texts()
    purges: tuple[tuple[str, ...], ...] = ()


encode = msgspec.msgpack.encode
_Message = TypeVar("_Message")


def decode(message: bytes, kind: type[_Message]) -> _Message:
    """Read what `encode` wrote. Raises ValueError for anything else."""
    try:
        return msgspec.msgpack.decode(message, type=kind)
    except RecursionError as error:
        raise ValueError(f"no {kind.__name__}: nested too deeply") from error
