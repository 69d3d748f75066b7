"""`specx train medusa`: one training of Medusa heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafters.recordings import Conversation, Recordings
from vllm_specx.bench.runner import Tell
from vllm_specx.train.run import Trainer, train_head
from vllm_specx.train.settings import MedusaSettings

if TYPE_CHECKING:
    from drafters.training import State


def train_medusa(settings: MedusaSettings, origin: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Train Medusa heads; see `train_head`."""
    from drafters.medusa import train

    return train_head(
        settings,
        _Trainer(
            train,
            settings,
            num_heads=settings.heads,
            num_layers=settings.layers,
            token_input=settings.token_input,
        ),
        origin,
        tell,
    )


class _Trainer(Trainer):
    """See `Trainer`."""

    def start(self, target: Any, recordings: Recordings, trained: Sequence[Conversation]) -> State:
        from drafters.medusa import train

        return train.start(target, trained, self.config)

    def export(self, state: State, target: Any, out: Path) -> None:
        from drafters.medusa.checkpoint import export

        config = target.config
        sizes = {name: config[name] for name in ("hidden_size", "vocab_size", "num_hidden_layers")}
        export(state.head.folded(), state.ids, out, {"target": sizes})
