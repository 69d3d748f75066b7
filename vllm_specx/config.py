"""The options of vllm-specx: one frozen dataclass, read from vLLM's --additional-config '{"specx": {...}}'."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Self

KEY = "specx"
MAX_SPECULATIVE_TOKENS = 128  # vLLM's rejection sampler takes no more (MAX_SPEC_LEN)


class ConfigError(ValueError):
    """An option is unknown, mistyped or out of range; the message says what is allowed."""


def _option(default: Any, low: float, high: float, text: str) -> Any:
    return field(default=default, metadata={"low": low, "high": high, "help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecxConfig:
    """All options, with their defaults and ranges (in the metadata of each field).

    Raises:
        ConfigError: on construction, for a value of the wrong type or out of range.

    """

    shared: bool = _option(True, 0, 1, "draft from the answers of finished requests too")
    memory_bytes: int = _option(256 << 20, 1 << 20, 16 << 30, "budget of the shared draft memory, in bytes")
    alpha: float = _option(
        0.05, 0.0, 10.0, "cost of verifying one draft token, relative to a decode step without any"
    )

    def __post_init__(self) -> None:
        """Check every field against its type and range."""
        for f in fields(self):
            value, low, high = getattr(self, f.name), f.metadata["low"], f.metadata["high"]
            kind = type(f.default)
            if kind is bool:
                if not isinstance(value, bool):
                    raise ConfigError(f"{KEY}.{f.name} must be true or false, got {value!r}")
                continue
            wanted = (int,) if kind is int else (int, float)
            if isinstance(value, bool) or not isinstance(value, wanted):
                raise ConfigError(f"{KEY}.{f.name} must be {_article(kind)}, got {value!r}")
            if not low <= value <= high:
                raise ConfigError(f"{KEY}.{f.name} must be within [{low}, {high}], got {value!r}")

    @classmethod
    def from_mapping(cls, options: Any) -> Self:
        """Build from the mapping under "specx"; None stands for no options.

        Raises:
            ConfigError: not a mapping, an unknown key (the closest known one is named), or a bad value.

        """
        if options is None:
            return cls()
        if not isinstance(options, Mapping):
            raise ConfigError(f"additional_config[{KEY!r}] must be a mapping of options, got {options!r}")
        known = [f.name for f in fields(cls)]
        for key in options:
            if key not in known:
                close = get_close_matches(str(key), known, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise ConfigError(f"unknown option {KEY}.{key}: {hint}known are {', '.join(known)}")
        return cls(**options)

    @classmethod
    def from_vllm(cls, vllm_config: Any) -> Self:
        """Build from a VllmConfig's additional_config; see `from_mapping`."""
        additional = vllm_config.additional_config
        return cls.from_mapping(additional.get(KEY) if isinstance(additional, Mapping) else None)


def _article(kind: type) -> str:
    return "an integer" if kind is int else "a number"


def check_num_speculative_tokens(num_tokens: int, max_model_len: int) -> None:
    """Refuse a draft length that could never be verified.

    Raises:
        ConfigError: outside [1, min(128, max_model_len - 2)]: a prompt token and a bonus token take room too.

    """
    most = min(MAX_SPECULATIVE_TOKENS, max_model_len - 2)
    if not 1 <= num_tokens <= most:
        raise ConfigError(
            f"num_speculative_tokens must be within [1, {most}] "
            f"(vLLM verifies at most {MAX_SPECULATIVE_TOKENS}; max_model_len is {max_model_len}), got {num_tokens}"
        )
