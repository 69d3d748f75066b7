"""One training of an EAGLE-3 head, from settings to the folder that vLLM loads."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from drafters.recordings import Conversation, RecordingError, Recordings
from vllm_specx.bench.errors import BenchError, EngineFailed
from vllm_specx.bench.report import write_json
from vllm_specx.bench.runner import Tell
from vllm_specx.calibrate.settings import check_model
from vllm_specx.train.record import record
from vllm_specx.train.settings import TrainSettings

_MIN_ANSWER = 3  # shorter answers have nothing to draft


def train_eagle3(settings: TrainSettings, origin: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Record, train, export; every part goes on where an earlier run stopped. Returns what `training.json` holds.

    Args:
        settings: what to train.
        origin: where the result comes from.
        tell: called as work goes on, with what it is, how much is done and how much there is.

    Raises:
        BenchError: the target cannot be used, or the work folder belongs to another training.
        EngineFailed: the engine failed, or a file could not be written; the last good checkpoint is kept.

    """
    from drafters.eagle3.target import Target, TargetError
    from drafters.eagle3.train import CheckpointError

    check_model(settings.model)
    try:
        target = Target.load(Path(settings.model))
        recordings = record(settings, tell)
        return _train(settings, target, recordings, origin, tell)
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
    settings: TrainSettings, target: Any, recordings: Recordings, origin: Mapping[str, Any], tell: Tell
) -> dict[str, Any]:
    from drafters.eagle3 import train
    from drafters.eagle3.export import export

    config = train.TrainConfig(
        steps=settings.steps,
        batch=settings.batch,
        learning_rate=settings.learning_rate,
        unroll=settings.unroll,
        draft_vocab_size=settings.draft_vocab,
        seed=settings.seed,
        evaluate_every=settings.evaluate_every,
        checkpoint_every=settings.checkpoint_every,
    )
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
    state = train.load(folder, config, lambda text: tell(text, 0, settings.steps))
    if state is None:
        state = train.start(target, recordings.layers, trained, config)
    facts: dict[str, Any] = {}

    def told(what: str, step: int, steps: int, news: dict[str, Any]) -> None:
        facts.update(news)
        tell(f"{what}: {_line(facts)}", step, steps)

    train.train(state, target, trained, _long_enough(held_out), config, folder, told)
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
    export(state.head, state.ids, settings.out)
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
