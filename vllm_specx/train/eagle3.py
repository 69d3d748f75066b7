"""`specx train eagle3`: one training of an EAGLE-3 head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafters.recordings import Conversation, Recordings
from vllm_specx.bench.runner import Tell
from vllm_specx.train.run import Trainer, train_head
from vllm_specx.train.settings import Eagle3Settings

if TYPE_CHECKING:
    from drafters.training import State


def train_eagle3(settings: Eagle3Settings, origin: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Train an EAGLE-3 head; see `train_head`."""
    from drafters.eagle3 import train

    return train_head(settings, _Trainer(train, settings, unroll=settings.unroll), origin, tell)


class _Trainer(Trainer):
    """See `Trainer`."""

    def start(self, target: Any, recordings: Recordings, trained: Sequence[Conversation]) -> State:
        from drafters.eagle3 import train

        return train.start(target, recordings.layers, trained, self.config)

    def export(self, state: State, target: Any, out: Path) -> None:
        from drafters.eagle3.export import export

        export(state.head, state.ids, out)
