"""What a training of a draft head is told: one frozen dataclass; each knob declared once, with default, range, help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.settings import DTYPES, check_minimums, closest, flag, knob

MAX_HEADS: Final = 64  # drafters.medusa.checkpoint's


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Validated settings of any training; raises BenchError at construction."""

    model: str
    out: Path
    work: str | None = knob(
        None, "Folder for recordings and checkpoints (default: OUT.work); reused if it is there."
    )
    conversations: int = knob(4864, "Conversations that the model writes and is recorded in.", 2)
    held_out: int = knob(96, "Of these, how many are kept for measuring and never trained on.", 1)
    answer_tokens: int = knob(192, "Longest answer, in tokens.", 8)
    greedy_share: float = knob(0.65, "Share of answers that are decoded greedily.", 0)
    temperature: float = knob(0.8, "Temperature of the other answers.", 0)
    slots: int = knob(192, "Conversations that are written at the same time.", 1)
    steps: int = knob(4000, "Training steps.", 1)
    batch: int = knob(8, "Conversations of a training step.", 1)
    learning_rate: float = knob(0.01, "Highest learning rate.")
    draft_vocab: int = knob(8192, "Size of the draft vocabulary: the ids that the answers use most.", 2)
    seed: int = knob(0, "Seed of conversations, order and first weights.", 0)
    evaluate_every: int = knob(100, "Steps between two measurements of the held-out acceptance.", 1)
    checkpoint_every: int = knob(100, "Steps between two checkpoints.", 1)
    dtype: str = knob("auto", f"Dtype in which the model writes: {', '.join(DTYPES)}.")
    plot: str | None = knob(None, "Picture of the held-out acceptance by step to write (PNG, SVG, PDF).")
    force: bool = knob(False, "Replace a head that exists.")
    ray: bool = knob(False, "Spread the writing of conversations over the nodes of the Ray cluster.")

    def __post_init__(self) -> None:
        check_minimums(self)
        for name, most in (("greedy_share", 1.0), ("temperature", 2.0)):
            if not getattr(self, name) <= most:
                raise BenchError(f"{flag(name)} must be at most {most}, got {getattr(self, name)}")
        if not 0 < self.learning_rate <= 1:
            raise BenchError(f"--learning-rate must be above 0 and at most 1, got {self.learning_rate}")
        if self.held_out >= self.conversations:
            raise BenchError(
                f"--held-out must be below --conversations ({self.conversations}), got {self.held_out}"
            )
        if self.dtype not in DTYPES:
            hint = closest(self.dtype, DTYPES)
            raise BenchError(f"--dtype {self.dtype!r} is not known{hint}; allowed: {', '.join(DTYPES)}")
        if self.out.exists() and not self.out.is_dir():
            raise BenchError(f"--out {self.out}: is a file, give a folder")
        if (self.out / "config.json").exists() and not self.force:
            raise BenchError(f"--out {self.out} holds a head: replace it with --force")

    @property
    def work_folder(self) -> Path:
        return Path(self.work) if self.work else self.out.with_name(f"{self.out.name}.work")


@dataclass(frozen=True, kw_only=True)
class Eagle3Settings(TrainSettings):
    """Of an EAGLE-3 head; the learning rate is Muon's, matched to AdamW's."""

    unroll: int = knob(
        2, "Draft tokens of the training-time test, reached in equal parts of the training.", 1
    )


@dataclass(frozen=True, kw_only=True)
class MedusaSettings(TrainSettings):
    """Of Medusa heads; the learning rate is AdamW's."""

    conversations: int = knob(2048, "Conversations that the model writes and is recorded in.", 2)
    steps: int = knob(1500, "Training steps.", 1)
    learning_rate: float = knob(0.002, "Highest learning rate (AdamW).")
    heads: int = knob(4, f"Number of heads, at most {MAX_HEADS}: the longest draft.", 1)
    layers: int = knob(1, "Residual blocks of a head.", 1)
    token_input: bool = knob(True, "The first block reads the embedding of the next token, too.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads > MAX_HEADS:
            raise BenchError(f"--heads must be at most {MAX_HEADS}, got {self.heads}")
