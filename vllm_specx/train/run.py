"""One training of a draft head, from settings to its folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafters.recordings import Conversation, RecordingError, Recordings
from vllm_specx.bench.errors import BenchError, EngineFailed
from vllm_specx.bench.report import write_json
from vllm_specx.bench.runner import Tell
from vllm_specx.calibrate.settings import check_model
from vllm_specx.train.record import record
from vllm_specx.train.settings import TrainSettings

if TYPE_CHECKING:
    from drafters.training import State
    from drafters.training import Tell as TellStep

_MIN_ANSWER = 3  # shorter answers have nothing to draft


class Trainer(ABC):
    """One kind of head.

    Args:
        train: its module `train` in drafters, with TrainConfig, load and train.
        settings: what to train.
        more: what its TrainConfig has beside the loop's.

    """

    def __init__(self, train: Any, settings: TrainSettings, **more: Any) -> None:
        self._module = train
        self.config = train.TrainConfig(
            steps=settings.steps,
            batch=settings.batch,
            learning_rate=settings.learning_rate,
            draft_vocab_size=settings.draft_vocab,
            seed=settings.seed,
            evaluate_every=settings.evaluate_every,
            checkpoint_every=settings.checkpoint_every,
            **more,
        )

    def load(self, folder: Path, tell: Callable[[str], None]) -> State | None:
        """The last good checkpoint."""
        state: State | None = self._module.load(folder, self.config, tell)
        return state

    def train(
        self,
        state: State,
        target: Any,
        trained: Sequence[Conversation],
        held_out: Sequence[Conversation],
        folder: Path,
        told: TellStep,
    ) -> None:
        """Train to the last step."""
        self._module.train(state, target, trained, held_out, self.config, folder, told)

    @abstractmethod
    def start(self, target: Any, recordings: Recordings, trained: Sequence[Conversation]) -> State:
        """A new training."""

    @abstractmethod
    def export(self, state: State, target: Any, out: Path) -> None:
        """Write the head's folder."""


def train_head(
    settings: TrainSettings, trainer: Trainer, origin: Mapping[str, Any], tell: Tell
) -> dict[str, Any]:
    """Record, train, export; every part goes on where an earlier run stopped. Returns what `training.json` holds.

    Args:
        settings: what to train.
        trainer: how.
        origin: where the result comes from.
        tell: called as work goes on, with what it is, how much is done and how much there is.

    Raises:
        BenchError: the target cannot be used, or the work folder belongs to another training.
        EngineFailed: the engine failed, or a file could not be written; the last good checkpoint is kept.

    """
    from drafters.target import Target, TargetError
    from drafters.training import CheckpointError

    check_model(settings.model)
    try:
        target = Target.load(Path(settings.model))
        recordings = record(settings, tell)
        return _train(settings, trainer, target, recordings, origin, tell)
    except (TargetError, CheckpointError, RecordingError) as error:
        raise BenchError(str(error)) from error
    except FloatingPointError as error:
        raise EngineFailed(str(error)) from error
    except OSError as error:
        raise EngineFailed(
            f"cannot write {error.filename or settings.work_folder}: {error.strerror or error}; the last good "
            "checkpoint is kept, and the same command goes on from it"
        ) from error


def _train(
    settings: TrainSettings,
    trainer: Trainer,
    target: Any,
    recordings: Recordings,
    origin: Mapping[str, Any],
    tell: Tell,
) -> dict[str, Any]:
    vocab_size = target.config["vocab_size"]
    if settings.draft_vocab > vocab_size:
        raise BenchError(
            f"--draft-vocab must be at most {vocab_size}, the model's own, got {settings.draft_vocab}"
        )
    said = list(islice(recordings.read(), settings.conversations))
    held_out, trained = said[: settings.held_out], _long_enough(said[settings.held_out :])
    if not trained or not _long_enough(held_out):
        raise BenchError(f"no answer of the recordings has {_MIN_ANSWER} tokens or more: nothing to train on")
    folder = settings.work_folder / "checkpoints"
    state = trainer.load(folder, lambda text: tell(text, 0, settings.steps))
    if state is None:
        state = trainer.start(target, recordings, trained)
    facts: dict[str, Any] = {}

    def told(what: str, step: int, steps: int, news: dict[str, Any]) -> None:
        facts.update(news)
        tell(f"{what}: {_line(facts)}", step, steps)

    trainer.train(state, target, trained, _long_enough(held_out), folder, told)
    document = {
        # It travels with the head: names of files, not where they were.
        **origin,
        "command": [Path(word).name for word in origin["command"]],
        "settings": {name: _name(value) for name, value in asdict(settings).items()},
        "recordings": {
            "conversations": len(trained),
            "tokens": sum(map(len, trained)),
            "answer_tokens": sum(len(c) - c.answer for c in trained),
            "held_out": len(held_out),
        },
        "history": state.history,
    }
    trainer.export(state, target, settings.out)
    write_json(settings.out / "training.json", document)
    return document


def _name(value: Any) -> Any:
    return Path(value).name if isinstance(value, str | Path) else value


def _long_enough(conversations: Sequence[Conversation]) -> list[Conversation]:
    return [c for c in conversations if len(c) - c.answer >= _MIN_ANSWER]


def _line(facts: Mapping[str, Any]) -> str:
    words = [f"loss {' '.join(f'{x:.2f}' for x in facts['loss'])}"]
    if "acceptance" in facts:
        words.append(f"held-out acceptance {' '.join(f'{x:.2f}' for x in facts['acceptance'])}")
    return ", ".join(words)
