"""The options of a fleet: one frozen dataclass, read from {"specx": {"fleet": {...}}}."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from vllm_specx.config import KEY, ConfigError, brief, check_keys, check_value, option, text_option

PREFIX: Final = f"{KEY}.fleet"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")  # part of an actor's name and of file names


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """All options of a fleet, with their defaults and ranges (in the metadata of each field).

    `shards`, `bytes` and the snapshots are those of the replica that makes the store, the first one.

    Raises:
        ConfigError: on construction, for a value of the wrong type or out of range.

    """

    address: str = text_option(
        'of the Ray cluster: "auto" for the one that this machine is part of, HOST:PORT, or ray://HOST:PORT',
        "auto",
    )
    name: str = text_option("of the fleet: replicas of one model that name it alike share", "specx")
    required: bool = option(False, 0, 1, "fail at the start where the fleet cannot be joined")
    shards: int = option(1, 1, 64, "actors among which the outputs are spread, by hash")
    bytes: int = option(256 << 20, 1 << 20, 256 << 30, "budget of the store, all shards together, in bytes")
    sync_interval_s: float = option(1.0, 0.05, 60.0, "seconds between two exchanges with the store")
    join_timeout_s: float = option(
        30.0, 0.0, 600.0, "longest wait at the start for what the fleet has learnt"
    )
    absorb_budget_ms: float = option(0.5, 0.05, 20.0, "CPU time of a step for taking in what others said")
    snapshot_path: str = text_option("file, or fsspec URL, that the store is saved in; empty: none")
    snapshot_interval_s: float = option(30.0, 0.1, 86400.0, "seconds between two saves into snapshot_path")

    def __post_init__(self) -> None:
        """Check every field."""
        for f in fields(self):
            check_value(f"{PREFIX}.{f.name}", f, getattr(self, f.name))
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"{PREFIX}.name must be letters, digits and . _ -, at most 100 of them, got {brief(self.name)}"
            )
        if not self.address:
            raise ConfigError(f'{PREFIX}.address must not be empty; "auto" finds the cluster of this machine')

    @classmethod
    def from_mapping(cls, options: Any) -> Self:
        """Build from the mapping under "fleet"; one that is built is returned as it is.

        Raises:
            ConfigError: not a mapping, an unknown key (the closest known one is named), or a bad value.

        """
        if isinstance(options, cls):
            return options
        if not isinstance(options, Mapping):
            raise ConfigError(f"{PREFIX} must be a mapping of options, got {brief(options)}")
        check_keys(PREFIX, cls, options)
        return cls(**options)
