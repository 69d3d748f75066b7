"""What a calibration is told: one frozen dataclass, each knob declared once with default, range and help."""

import os
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.report import check_writable
from vllm_specx.bench.settings import DTYPES, check_minimums, closest, flag, knob, knob_default, knob_help
from vllm_specx.config import MAX_SPECULATIVE_TOKENS


@dataclass(frozen=True, kw_only=True)
class CalibrateSettings:
    """Validated settings of a calibration; raises BenchError at construction. Numbers are put in order.

    An existing `out` is replaced with `force` only.
    """

    model: str
    out: Path
    batch: tuple[int, ...] = knob((1, 2, 4, 8, 16, 32), "Comma-separated numbers of requests in flight.", 1)
    drafts: tuple[int, ...] = knob(
        (0, 1, 2, 4, 8, 16), "Comma-separated numbers of draft tokens of a request; 0 must be among them.", 0
    )
    repeats: int = knob(3, "How often each cell is visited, cells in turns.", 1)
    steps: int = knob(8, "Steps that are timed at each visit; the median over all visits is kept.", 1)
    prompt_tokens: int = knob(64, "Length of the prompts: steps get longer with the context.", 1)
    dtype: str = knob("auto", f"Model dtype: {', '.join(DTYPES)}.")
    max_model_len: int | None = knob(
        None, "Longest prompt plus output in tokens (the model's own if unset).", 4
    )
    kv_cache_gib: int | None = knob(
        None, "KV cache on a CPU, in GiB (VLLM_CPU_KVCACHE_SPACE if unset, else 2).", 1
    )
    force: bool = knob(False, "Replace a file that exists.")

    def __post_init__(self) -> None:
        check_minimums(self)
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                if not value:
                    raise BenchError(f"{flag(field.name)} needs at least one number")
                if len(set(value)) != len(value):
                    raise BenchError(f"{flag(field.name)} names a number twice: {','.join(map(str, value))}")
                object.__setattr__(self, field.name, tuple(sorted(value)))
        if self.drafts[0] != 0:
            raise BenchError("--drafts must contain 0: all costs are relative to a step without drafts")
        if self.drafts[-1] > MAX_SPECULATIVE_TOKENS:
            raise BenchError(
                f"--drafts must be at most {MAX_SPECULATIVE_TOKENS} (vLLM verifies no more), got {self.drafts[-1]}"
            )
        if self.dtype not in DTYPES:
            hint = closest(self.dtype, DTYPES)
            raise BenchError(f"--dtype {self.dtype!r} is not known{hint}; allowed: {', '.join(DTYPES)}")
        if self.max_model_len is not None:
            check_room(self, self.max_model_len)
        check_writable(self.out, "--out")
        if self.out.exists() and not self.force:
            raise BenchError(f"--out {self.out} exists: replace it with --force")


def check_room(settings: CalibrateSettings, max_model_len: int) -> None:
    """Raise BenchError if a request could never carry its prompt and the longest draft."""
    needed = settings.prompt_tokens + settings.drafts[-1] + 2
    if needed > max_model_len:
        raise BenchError(
            f"--prompt-tokens {settings.prompt_tokens} and {settings.drafts[-1]} draft tokens need a model length "
            f"of {needed}; it is {max_model_len}"
        )


def check_model(model: str) -> None:
    """Raise BenchError if there is no such model: before an engine is started, which takes a while to say so."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers.utils import cached_file

    try:
        cached_file(model, "config.json")
    except (OSError, ValueError) as error:
        raise BenchError(
            f"--model {model!r} cannot be loaded: it must be a folder with a model, or a name in the Hugging Face "
            "cache (HF_HUB_OFFLINE=0 allows a download)"
        ) from error


default = partial(knob_default, CalibrateSettings)
help_text = partial(knob_help, CalibrateSettings)
