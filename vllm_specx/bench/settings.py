"""What a bench run is told: one frozen dataclass, each knob declared once with default, range and help."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from vllm_specx.bench.errors import BenchError
from vllm_specx.config import MAX_SPECULATIVE_TOKENS, ConfigError, SpecxConfig

DTYPES = ("auto", "bfloat16", "float16", "float32")


def knob(default: Any, help: str, minimum: int | None = None) -> Any:
    return field(default=default, metadata={"help": help, "minimum": minimum})


@dataclass(frozen=True)
class BenchSettings:
    """Validated settings of one bench run; raises BenchError at construction.

    `prompts` maps a workload's name to its file. Lengths and limits are in tokens or rows, never seconds.
    """

    model: str
    prompts: Mapping[str, Path]
    methods: tuple[str, ...] = knob(
        ("none", "ngram", "suffix", "suffix-tree"),
        "Comma-separated methods to compare: these, lookahead, suffix-tree+lookahead, medusa, eagle3, eagle3-adaptive, "
        "hybrid; NAME:N sets N draft tokens.",
    )
    concurrency: tuple[int, ...] = knob((1,), "Comma-separated numbers of requests kept in flight.", 1)
    repeats: int = knob(3, "How often each cell is measured; two or more give an interval.", 1)
    turns: int = knob(16, "Turns in which the methods share a cell; 1: one after the other.", 1)
    limit: int | None = knob(None, "Use only the first rows of each prompt file.", 1)
    rounds: int = knob(
        1,
        "How often a cell sends its prompts: with more of them a batch stays full, where it would run dry.",
        1,
    )
    dtype: str = knob("auto", f"Model dtype: {', '.join(DTYPES)}.")
    max_model_len: int | None = knob(
        None, "Longest prompt plus output in tokens (the model's own if unset).", 2
    )
    max_tokens: int = knob(256, "Output cap for prompt rows that carry none.", 1)
    num_speculative_tokens: int = knob(16, "Most draft tokens a step, for suffix-tree and hybrid.", 1)
    head: str | None = knob(
        None, "EAGLE-3 head for the methods with one (unset: the one that comes with vllm-specx)."
    )
    specx_options: Mapping[str, Any] | None = knob(
        None, "Options of our proposers, as JSON (additional_config.specx)."
    )
    prefix_caching: bool = knob(False, "Turn vLLM's prefix cache on (cleared before each cold cell).")
    kv_cache_gib: int | None = knob(
        None, "KV cache of each engine on a CPU, in GiB (VLLM_CPU_KVCACHE_SPACE if unset, else 2).", 1
    )
    warm: bool = knob(False, "Measure each cell a second time with the memory that the first one left.")
    natural: bool = knob(False, "Let each method end by itself instead of fixing the lengths.")

    def __post_init__(self) -> None:
        check_minimums(self)
        if not self.prompts:
            raise BenchError("--prompts needs at least one file of JSON rows")
        if not self.concurrency:
            raise BenchError("--concurrency needs at least one number, for example 1,8")
        for name in ("methods", "concurrency"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise BenchError(f"{flag(name)} names a value twice: {','.join(map(str, values))}")
        if self.dtype not in DTYPES:
            hint = closest(self.dtype, DTYPES)
            raise BenchError(f"--dtype {self.dtype!r} is not known{hint}; allowed: {', '.join(DTYPES)}")
        if self.num_speculative_tokens > MAX_SPECULATIVE_TOKENS:
            raise BenchError(
                f"--num-speculative-tokens must be at most {MAX_SPECULATIVE_TOKENS}, "
                f"got {self.num_speculative_tokens}"
            )
        try:
            SpecxConfig.from_mapping(self.specx_options)
        except ConfigError as error:
            raise BenchError(f"--specx-options: {error}") from error
        if self.max_model_len is not None and self.num_speculative_tokens >= self.max_model_len:
            raise BenchError(
                f"--num-speculative-tokens {self.num_speculative_tokens} leaves no room: "
                f"it must be below --max-model-len {self.max_model_len}"
            )


def check_minimums(settings: Any) -> None:
    """Check every knob, or each number of one that holds several, against its minimum. Raises BenchError."""
    for knob_field in fields(settings):
        minimum = knob_field.metadata.get("minimum")
        value = getattr(settings, knob_field.name)
        for number in value if isinstance(value, tuple) else (value,):
            if minimum is not None and number is not None and number < minimum:
                raise BenchError(f"{flag(knob_field.name)} must be at least {minimum}, got {number}")


def flag(name: str) -> str:
    """The command-line spelling of a knob."""
    return f"--{name.replace('_', '-')}"


def closest(word: str, known: tuple[str, ...]) -> str:
    """ ", did you mean X?" for a near miss, else nothing."""
    matches = get_close_matches(word, known, n=1)
    return f", did you mean {matches[0]!r}?" if matches else ""


def knob_default(settings: type[Any], name: str) -> Any:
    """A knob's default, for the command line."""
    value = next(knob_field for knob_field in fields(settings) if knob_field.name == name).default
    assert value is not MISSING
    return value


def knob_help(settings: type[Any], name: str) -> str:
    """A knob's help, for the command line."""
    return str(
        next(knob_field for knob_field in fields(settings) if knob_field.name == name).metadata["help"]
    )


default = partial(knob_default, BenchSettings)
help_text = partial(knob_help, BenchSettings)
