"""`specx train medusa`: one training of Medusa heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafters.recordings import Conversation, Recordings
from vllm_specx.bench.runner import Tell
from vllm_specx.train.run import train_head
from vllm_specx.train.settings import MedusaSettings

if TYPE_CHECKING:
    from drafters.training import State
    from drafters.training import Tell as TellStep


def train_medusa(settings: MedusaSettings, origin: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Train Medusa heads; see `train_head`."""
    return train_head(settings, _Trainer(settings), origin, tell)


class _Trainer:
    """See `Trainer`."""

    def __init__(self, settings: MedusaSettings) -> None:
        from drafters.medusa.train import TrainConfig

        self._config = TrainConfig(
            steps=settings.steps,
            batch=settings.batch,
            learning_rate=settings.learning_rate,
            draft_vocab_size=settings.draft_vocab,
            seed=settings.seed,
            evaluate_every=settings.evaluate_every,
            checkpoint_every=settings.checkpoint_every,
            num_heads=settings.heads,
            num_layers=settings.layers,
            token_input=settings.token_input,
        )

    def load(self, folder: Path, tell: Callable[[str], None]) -> State | None:
        from drafters.medusa import train

        return train.load(folder, self._config, tell)

    def start(self, target: Any, recordings: Recordings, trained: Sequence[Conversation]) -> State:
        from drafters.medusa import train

        return train.start(target, trained, self._config)

    def train(
        self,
        state: State,
        target: Any,
        trained: Sequence[Conversation],
        held_out: Sequence[Conversation],
        folder: Path,
        told: TellStep,
    ) -> None:
        from drafters.medusa import train

        train.train(state, target, trained, held_out, self._config, folder, told)

    def export(self, state: State, target: Any, out: Path) -> None:
        from drafters.medusa.checkpoint import export

        config = target.config
        sizes = {name: config[name] for name in ("hidden_size", "vocab_size", "num_hidden_layers")}
        export(state.head.folded(), state.ids, out, {"target": sizes})
