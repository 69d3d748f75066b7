"""The options of vllm-specx: one frozen dataclass, read from vLLM's --additional-config '{"specx": {...}}'."""

import os
import reprlib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from vllm_specx.fleet.options import FleetConfig

KEY = "specx"
MAX_SPECULATIVE_TOKENS = 128  # vLLM's rejection sampler takes no more (MAX_SPEC_LEN)
_FOR_ALL = ("max_draft_share", "costs")
_FOR_NATIVE = ("adaptive", *_FOR_ALL)  # drafters that vLLM runs itself
_FOR_LOOKAHEAD = (
    "lookahead_window",
    "lookahead_ngram",
    "lookahead_candidates",
    "lookahead_shared",
    "lookahead_prompt",
)
_FOR = {  # what has an effect with which proposer; the others of ours take all but these
    "vllm_specx.LookaheadProposer": ("alpha", *_FOR_ALL, *_FOR_LOOKAHEAD),
    "vllm_specx.MedusaProposer": ("medusa_heads", *_FOR_ALL),
}
DRAFTERS = (("suffix_tree",), ("suffix_tree", "lookahead"))
_LONGEST_KEY = 64
_NEED_SHARED = ("memory_bytes", "memory_ttl_s", "memory_path", "autosave_s", "fleet")


class ConfigError(ValueError):
    """An option is unknown, mistyped or out of range; the message says what is allowed."""


def option(default: Any, low: float, high: float, text: str) -> Any:
    """Declare a knob: default, range, help."""
    return field(default=default, metadata={"low": low, "high": high, "help": text})


def text_option(text: str, default: str = "") -> Any:
    """Declare a knob that is text."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecxConfig:
    """All options, with their defaults and ranges (in the metadata of each field).

    Raises:
        ConfigError: on construction, for a value of the wrong type or out of range.

    """

    shared: bool = option(True, 0, 1, "draft from the answers of other requests too")
    memory_bytes: int = option(256 << 20, 1 << 20, 16 << 30, "budget of the shared draft memory, in bytes")
    alpha: float | None = option(
        None,
        0.0,
        10.0,
        "cost of verifying one draft token, relative to a decode step without any; null: measured in service",
    )
    costs: str = text_option("cost table to start from, as `specx calibrate` writes it; empty: none")
    memory_ttl_s: float = option(
        0.0, 0.0, 1e9, "seconds after which shared memory forgets an answer; 0: never"
    )
    memory_path: str = text_option("file that keeps the shared memory between runs; empty: none")
    autosave_s: float = option(
        0.0, 0.0, 1e9, "seconds between two saves into memory_path; 0: only when the engine ends"
    )
    adaptive: bool = option(False, 0, 1, "choose every step how many tokens vLLM's own drafter drafts")
    hybrid: bool = option(
        False, 0, 1, "with vLLM's method eagle3: draft from the suffix tree, too, whichever promises more"
    )
    drafters: tuple[str, ...] = field(
        default=DRAFTERS[0],
        metadata={"help": "what SuffixTreeProposer drafts with, the best draft of each step"},
    )
    lookahead_window: int = option(15, 1, 128, "W of Lookahead: most tokens of a Jacobi guess")
    lookahead_ngram: int = option(5, 2, 16, "N of Lookahead: tokens of an n-gram")
    lookahead_candidates: int = option(8, 1, 64, "G of Lookahead: n-grams kept for the same first tokens")
    lookahead_shared: bool = option(False, 0, 1, "one pool of n-grams for all requests of a cache_salt")
    lookahead_prompt: bool = option(False, 0, 1, "fill the pool with the prompt's n-grams, too")
    medusa_heads: str = text_option("folder of the Medusa heads; empty: bundled ones that fit the target")
    max_draft_share: float = option(
        0.5, 0.0, 1.0, "share of a step's token budget that drafts may take, so that prompts always get on"
    )
    fleet: "FleetConfig | None" = field(
        default=None,
        metadata={"help": "options of a memory that is shared with other replicas over Ray; null: none"},
    )

    def __post_init__(self) -> None:
        """Check every field against its type and range, and that none is without effect."""
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "fleet":
                if value is not None:
                    from vllm_specx.fleet.options import FleetConfig

                    object.__setattr__(self, f.name, FleetConfig.from_mapping(value))
            elif f.name == "drafters":
                if not isinstance(value, list | tuple) or tuple(value) not in DRAFTERS:
                    allowed = " or ".join(str(list(known)) for known in DRAFTERS)
                    raise ConfigError(f"{KEY}.{f.name} must be {allowed}, got {brief(value)}")
                object.__setattr__(self, f.name, tuple(value))
            else:
                check_value(f"{KEY}.{f.name}", f, value)
        self._check_that_all_are_used()

    def _check_that_all_are_used(self) -> None:
        for f in fields(self):
            if getattr(self, f.name) == f.default:
                continue
            if self.adaptive and f.name not in _FOR_NATIVE:
                raise ConfigError(
                    f"{KEY}.{f.name} has no effect with {KEY}.adaptive, which drives vLLM's own drafters: "
                    "remove one of them"
                )
        if "lookahead" in self.drafters and self.hybrid:
            raise ConfigError(f"{KEY}.hybrid drafts with the suffix tree and the head: remove {KEY}.drafters")
        if self.hybrid and self.alpha is not None:
            raise ConfigError(
                f"{KEY}.alpha has no place for the passes of a head: remove it or {KEY}.hybrid; `{KEY}.costs` can "
                "name a measured table"
            )
        if not self.shared:
            for f in fields(self):
                if f.name in _NEED_SHARED and getattr(self, f.name) != f.default:
                    raise ConfigError(
                        f"{KEY}.{f.name} has no effect with {KEY}.shared false: remove one of them"
                    )
        if self.costs and self.alpha is not None:
            raise ConfigError(f"{KEY}.costs and {KEY}.alpha both say what a draft token costs: remove one")
        if self.autosave_s and not self.memory_path:
            raise ConfigError(f"{KEY}.autosave_s needs {KEY}.memory_path, the file to save into")

    @classmethod
    def from_mapping(cls, options: Any) -> Self:
        """Build from the mapping under "specx"; None stands for no options.

        Raises:
            ConfigError: not a mapping, an unknown key (the closest known one is named), or a bad value.

        """
        if options is None:
            return cls()
        if not isinstance(options, Mapping):
            raise ConfigError(
                f"additional_config[{KEY!r}] must be a mapping of options, got {brief(options)}"
            )
        check_keys(KEY, cls, options)
        return cls(**options)

    @classmethod
    def from_vllm(cls, vllm_config: Any) -> Self:
        """Build from a VllmConfig's additional_config; see `from_mapping`."""
        additional = vllm_config.additional_config
        return cls.from_mapping(additional.get(KEY) if isinstance(additional, Mapping) else None)

    def check_proposer(self, model: str) -> None:
        """Refuse what would have no effect with the proposer that speculative_config.model names.

        Raises:
            ConfigError: see there.

        """
        has_lookahead = "lookahead" in self.drafters
        for f in fields(self):
            if getattr(self, f.name) == f.default:
                continue
            if model in _FOR:
                is_used = f.name in _FOR[model]
            else:
                is_used = f.name != "medusa_heads" and (has_lookahead or f.name not in _FOR_LOOKAHEAD)
            if not is_used:
                unless = f" unless {KEY}.drafters names lookahead" if "lookahead" in f.name else ""
                raise ConfigError(
                    f"{KEY}.{f.name} has no effect with {model}{'' if model in _FOR else unless}: remove it"
                )

    @classmethod
    def for_head_alone(cls, vllm_config: Any) -> Self:
        """The options of a head without a suffix tree, to which the same apply as to any drafter of vLLM's own.

        Raises:
            ConfigError: see `from_mapping`; or one that needs the suffix tree.

        """
        additional = vllm_config.additional_config
        options = additional.get(KEY) if isinstance(additional, Mapping) else None
        return cls.from_mapping({**options, "adaptive": True} if isinstance(options, Mapping) else options)


def check_keys(prefix: str, layer: Any, options: Mapping[Any, Any]) -> None:
    """Refuse keys that are no fields of the dataclass `layer`, naming the closest one.

    Raises:
        ConfigError: see there.

    """
    known = [f.name for f in fields(layer)]
    for key in options:
        if key not in known:
            name = key[:_LONGEST_KEY] if isinstance(key, str) else brief(key)
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ConfigError(f"unknown option {prefix}.{name}: {hint}known are {', '.join(known)}")


def check_value(name: str, f: Field[Any], value: Any) -> None:
    """Check a value against the type of its field's default, and the range in its metadata.

    Raises:
        ConfigError: see there; `name` is what the message calls the field.

    """
    kind = type(f.default)
    if kind is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be true or false, got {brief(value)}")
        return
    if kind is str:
        if not isinstance(value, str) or "\0" in value:
            raise ConfigError(f"{name} must be text, got {brief(value)}")
        return
    if value is None and f.default is None:
        return
    low, high = f.metadata["low"], f.metadata["high"]
    wanted = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise ConfigError(f"{name} must be {_article(kind)}, got {brief(value)}")
    if not low <= value <= high:
        raise ConfigError(f"{name} must be within [{low}, {high}], got {brief(value)}")


def brief(value: Any) -> str:
    """A value's repr, short, however large the value is."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no number of thousands of digits
        return f"one {type(value).__name__} too large to be shown"


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


def check_memory_path(path: str | Path) -> Path:
    """Return the path of a memory file, `~` expanded, if a file there could be read and written.

    Raises:
        ConfigError: the folder is missing or cannot be written, or a folder or an unreadable file is in the place.

    """
    file = Path(path).expanduser().absolute()
    folder = file.parent
    reason = None
    if not folder.is_dir():
        reason = f"the folder {folder} does not exist"
    elif not os.access(folder, os.W_OK | os.X_OK):
        reason = f"the folder {folder} cannot be written"
    elif file.is_dir():
        reason = "it is a folder, not a file"
    elif file.exists() and not os.access(file, os.R_OK):
        reason = "the file cannot be read"
    if reason is not None:
        raise ConfigError(f"{KEY}.memory_path {str(path)!r}: {reason}")
    return file
