"""What a verification is told: one frozen dataclass, each knob declared once with default, range and help."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final

from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.methods import BASELINE, METHODS
from vllm_specx.bench.settings import check_minimums, closest, flag, knob, knob_default, knob_help
from vllm_specx.config import MAX_SPECULATIVE_TOKENS

DTYPES: Final = ("float32", "bfloat16")
# The largest gap that is a tie; in bfloat16 logits from 16 to 32 are multiples of 0.125.
EPSILON: Final = {"float32": 1e-4, "bfloat16": 0.5}
# How far numerics are taken to move a log-probability where samples are tested.
_ERROR: Final = {"float32": 1e-4, "bfloat16": 0.1}
_TEMPERATURES: Final = (0.1, 2.0)
_MOST_TOP_K: Final = 19  # vLLM gives at most 20 log-probabilities


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    """Validated settings of one verification; raises BenchError at construction.

    `prompts` maps a name to each file of prompts; `config` is a recipe, which takes the place of `methods` and
    `lengths`.
    """

    model: str
    prompts: Mapping[str, Path]
    config: str | None = knob(
        None, "Recipe (its name or file) to verify as it is, instead of methods and lengths."
    )
    methods: tuple[str, ...] = knob(
        ("suffix-tree", "lookahead", "medusa", "eagle3-adaptive", "hybrid"),
        "Comma-separated methods to verify; also those of `specx bench`.",
    )
    num_prompts: int = knob(
        20, "Prompts of the greedy part, taken from the files in turns; 0: no such part.", 0
    )
    tokens: int = knob(64, "Output tokens of each prompt; end tokens are ignored.", 1)
    lengths: tuple[int, ...] = knob((4,), "Comma-separated numbers of draft tokens.", 1)
    batch: tuple[int, ...] = knob((8,), "Comma-separated numbers of requests in flight.", 1)
    dtype: str = knob("float32", f"Model dtype: {' or '.join(DTYPES)}. Only float32 gives a sharp verdict.")
    epsilon: float | None = knob(
        None,
        "Largest gap of log-probabilities that is a tie (unset: "
        + ", ".join(f"{gap} in {dtype}" for dtype, gap in EPSILON.items())
        + ").",
    )
    samples: int = knob(2000, "Samples of each configuration of the sampled part; 0: no such part.", 0)
    temperature: tuple[float, ...] = knob((1.0,), "Comma-separated temperatures of the sampled part.")
    top_p: float = knob(0.95, "top_p of the sampled part.")
    top_k: int = knob(8, "top_k of the sampled part.", 2)
    head: str | None = knob(
        None, "EAGLE-3 head for the methods with one (unset: the one that comes with vllm-specx)."
    )
    medusa_heads: str | None = knob(
        None, "Medusa heads for the method medusa (unset: those that come with vllm-specx)."
    )
    max_model_len: int | None = knob(
        None, "Longest prompt plus output in tokens (the recipe's, else the model's own, if unset).", 4
    )
    kv_cache_gib: int | None = knob(
        None, "KV cache on a CPU, in GiB (VLLM_CPU_KVCACHE_SPACE if unset, else 2).", 1
    )

    def __post_init__(self) -> None:
        check_minimums(self)
        for name in ("methods", "lengths", "batch", "temperature"):
            values = getattr(self, name)
            if not values:
                raise BenchError(f"{flag(name)} needs at least one value")
            if len(set(values)) != len(values):
                raise BenchError(f"{flag(name)} names a value twice: {','.join(map(str, values))}")
        known = tuple(name for name in METHODS if name != BASELINE)
        for name in self.methods:
            if name not in known:
                hint = closest(name, known)
                raise BenchError(f"--methods {name!r} is not known{hint}; allowed: {', '.join(known)}")
        if max(self.lengths) > MAX_SPECULATIVE_TOKENS:
            raise BenchError(
                f"--lengths must be at most {MAX_SPECULATIVE_TOKENS} (vLLM verifies no more), got {max(self.lengths)}"
            )
        if self.dtype not in DTYPES:
            hint = closest(self.dtype, DTYPES)
            raise BenchError(f"--dtype {self.dtype!r} is not known{hint}; allowed: {', '.join(DTYPES)}")
        low, high = _TEMPERATURES
        for number in self.temperature:
            _check_within("--temperature", number, low, high)
        _check_within("--top-p", self.top_p, 0.01, 1.0)
        _check_within("--top-k", self.top_k, 2, _MOST_TOP_K)
        if self.epsilon is not None:
            _check_within("--epsilon", self.epsilon, 0.0, 5.0)
        if not self.num_prompts and not self.samples:
            raise BenchError("--num-prompts 0 and --samples 0 leave nothing to verify")

    @property
    def largest_tie(self) -> float:
        """The largest gap of log-probabilities that counts as a tie."""
        return EPSILON[self.dtype] if self.epsilon is None else self.epsilon

    @property
    def error(self) -> float:
        """How far numerics may move a log-probability."""
        return _ERROR[self.dtype]


def built_in_prompts() -> dict[str, Path]:
    """The prompts of `specx demo`."""
    folder = Path(str(files("vllm_specx.demo") / "workloads"))
    return {path.stem: path for path in sorted(folder.glob("*.jsonl"))}


def _check_within(name: str, number: float, low: float, high: float) -> None:
    if not low <= number <= high:  # a NaN fails too
        raise BenchError(f"{name} must be within [{low:g}, {high:g}], got {number:g}")


default = partial(knob_default, VerifySettings)
help_text = partial(knob_help, VerifySettings)
