"""The training of Medusa heads, the target frozen (Medusa-1, Cai et al. 2024, section 2.2.1). The loop is shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from drafters import training
from drafters.batches import Batch, batches_from, make_batch
from drafters.medusa.model import MedusaConfig, MedusaHeads
from drafters.recordings import Conversation
from drafters.target import Target
from drafters.training import LoopConfig, State, Tell, draft_vocabulary

_NUM_SCALED = 64  # conversations that scales are taken from


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LoopConfig):
    """What a training is fixed by, beside its data and target."""

    num_heads: int
    num_layers: int
    token_input: bool


class TrainedHeads(MedusaHeads):
    """Heads while they are trained: what their first blocks read comes with every dimension at the same scale.

    (A few dimensions of a Llama's states are many times the others.)
    """

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__(config)
        self.register_buffer("scale", torch.ones(self.weight[0].shape[1]))

    def first_input(self, hidden: torch.Tensor, embeds: torch.Tensor | None) -> torch.Tensor:
        return super().first_input(hidden, embeds) / self.scale

    def folded(self) -> MedusaHeads:
        """The same heads, with the scale in their weights."""
        heads = MedusaHeads(self.config)
        values = {name: value.clone() for name, value in self.state_dict().items() if name != "scale"}
        values["weight.0"] /= self.scale[:, None]
        heads.load_state_dict(values)
        return heads


def start(target: Target, conversations: Sequence[Conversation], config: TrainConfig) -> State:
    """New heads, which say what the target says of the next token; the vocabulary is the one of the answers."""
    torch.manual_seed(config.seed)
    vocab_size = target.config["vocab_size"]
    ids = draft_vocabulary(conversations, config.draft_vocab_size, vocab_size)
    heads = TrainedHeads(
        MedusaConfig(
            hidden_size=target.config["hidden_size"],
            vocab_size=vocab_size,
            draft_vocab_size=len(ids),
            num_heads=config.num_heads,
            num_layers=config.num_layers,
            token_input=config.token_input,
        )
    )
    said = torch.cat([c.finals[1:-1] for c in conversations[:_NUM_SCALED]]).float()
    tokens = torch.cat([torch.from_numpy(c.token_ids[2:]) for c in conversations[:_NUM_SCALED]]).long()
    read = heads.first_input(said, functional.embedding(tokens, target.embeddings.float()))
    heads.scale.copy_(read.square().mean(0).sqrt().clamp_min(1e-3))
    return State(heads, _optimizers(heads, config), ids)


def load(folder: Path, config: TrainConfig, tell: Callable[[str], None]) -> State | None:
    """See `drafters.training.load`."""

    def make_head(saved: Mapping[str, Any]) -> TrainedHeads:
        return TrainedHeads(MedusaConfig(**saved))

    return training.load(folder, config, make_head, lambda heads: _optimizers(heads, config), tell)


def _optimizers(heads: MedusaHeads, config: TrainConfig) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(heads.parameters(), lr=config.learning_rate, weight_decay=0.0)]


def train(
    state: State,
    target: Target,
    conversations: Sequence[Conversation],
    held_out: Sequence[Conversation],
    config: TrainConfig,
    folder: Path,
    tell: Tell,
) -> None:
    """Train to the last step, from wherever `state` is; arguments and errors as of `drafters.training.run`."""
    embeddings = target.embeddings.float()
    output = target.output.float()
    shared = target.output[state.ids].to(training.product_dtype(output.device))
    batches = batches_from(conversations, config.batch, config.seed, state.step, config.num_heads)

    def losses(step: int) -> torch.Tensor:
        return loss(state.head, next(batches), embeddings, shared)

    def measured() -> list[float]:
        counts = torch.zeros(config.num_heads, 2, dtype=torch.int64)
        for i in range(0, len(held_out), config.batch):
            batch = make_batch(held_out[i : i + config.batch], config.num_heads)
            counts += accepted(state.head, batch, embeddings, output, state.ids)
        return training.rates(counts)

    training.run(state, losses, measured, config, folder, tell)


def _states(heads: MedusaHeads, batch: Batch, embeddings: torch.Tensor) -> torch.Tensor:
    """Of every anchor: (heads, batch, anchors, hidden)."""
    at = batch.anchors[..., None].expand(-1, -1, batch.finals.shape[-1])
    hidden = batch.finals.gather(1, at).float()
    embeds = functional.embedding(batch.token_ids.gather(1, batch.anchors + 1), embeddings)
    rows = heads.states(hidden.flatten(0, 1), embeds.flatten(0, 1), heads.config.num_heads)
    return rows.unflatten(1, hidden.shape[:2])


def loss(heads: MedusaHeads, batch: Batch, embeddings: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each head with the target's distribution over the draft vocabulary, float32 (heads,).

    Args:
        heads: the heads.
        batch: what they are trained on.
        embeddings: (vocab, hidden), the target's.
        shared: (draft_vocab, hidden), the target's output matrix, rows of the draft vocabulary only.

    """
    losses = []
    for step, rows in enumerate(_states(heads, batch, embeddings)):
        valid = batch.valid(step)
        logits = functional.linear(rows[valid], shared)
        with torch.no_grad():
            wanted = (
                functional.linear(batch.finals_of(step)[valid].to(shared.dtype), shared).float().softmax(-1)
            )
        losses.append(functional.cross_entropy(logits.float(), wanted))
    return torch.stack(losses)


@torch.no_grad()
def accepted(
    heads: MedusaHeads, batch: Batch, embeddings: torch.Tensor, output: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Count greedy acceptances: int64 (heads, 2), anchors whose draft was right up to a head, and that head as well."""
    counts = torch.zeros(heads.config.num_heads, 2, dtype=torch.int64)
    alive = torch.ones_like(batch.valid(0))
    for step, rows in enumerate(_states(heads, batch, embeddings)):
        valid = batch.valid(step) & alive
        choices = ids[functional.linear(rows[valid], output[ids]).argmax(-1)]
        wanted = functional.linear(batch.finals_of(step)[valid].float(), output).argmax(-1)
        counts[step, 0] = valid.sum()
        counts[step, 1] = (choices == wanted).sum()
        alive = torch.zeros_like(alive).masked_scatter(valid, choices == wanted)
    return counts
