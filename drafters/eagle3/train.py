"""The training of an EAGLE-3 head: how it begins, what moves it, how good it is. The loop is `drafters.training`'s."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from drafters import training
from drafters.batches import batches_from, make_batch
from drafters.eagle3.model import Eagle3Config, Eagle3Head
from drafters.eagle3.objective import accepted, loss
from drafters.recordings import Conversation
from drafters.target import Target
from drafters.training import LoopConfig, State, Tell, draft_vocabulary

_FIRST_CONFIDENCE = 0.6  # scale of the first logits: they are of the wrong position
_NUM_SCALED = 64
_VECTOR_SCALE = 0.2
_OUTPUT_SCALE = (
    0.05  # the output matrix is the target's own to begin with, and its rare rows see few gradients
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LoopConfig):
    """What a training is fixed by, beside its data and target."""

    unroll: int  # draft tokens of the training-time test, reached in equal parts of the training


def start(
    target: Target,
    layers: tuple[int, ...],
    conversations: Sequence[Conversation],
    config: TrainConfig,
) -> State:
    """A new head that begins by saying what the target's last recorded layer would say at once.

    Its states come normalised and with every dimension at the same scale (a few dimensions of a Llama's states are
    hundreds of times the others); its output matrix and last norm are the target's.
    """
    torch.manual_seed(config.seed)
    ids = draft_vocabulary(conversations, config.draft_vocab_size, target.config["vocab_size"])
    head = Eagle3Head(Eagle3Config.of(target.config, len(ids), layers))
    size = head.config.hidden_size
    with torch.no_grad():
        head.lm_head.weight.copy_(target.output[ids])
        head.norm.weight.copy_(target.norm * _FIRST_CONFIDENCE)
        scales = _scales(conversations[:_NUM_SCALED], size)
        for norm, scale in zip(head.fc_norm, scales, strict=True):
            norm.weight.copy_(1 / scale)
        head.fc.weight.normal_(std=0.1 / math.sqrt(len(layers) * size))
        head.fc.weight[:, -size:] += torch.diag(scales[-1])
        head.midlayer.self_attn.o_proj.weight.zero_()
        head.midlayer.mlp.down_proj.weight.zero_()
    return State(head, _optimizers(head, config), ids)


def _scales(conversations: Sequence[Conversation], size: int) -> list[torch.Tensor]:
    """The root mean square of each dimension of each layer's normalised states; the first token, a sink, left out."""
    states = torch.cat([conversation.states[1:-1] for conversation in conversations]).float()
    return [
        functional.rms_norm(chunk, (size,)).square().mean(0).sqrt().clamp_min(1e-3)
        for chunk in states.split(size, dim=-1)
    ]


def _optimizers(head: Eagle3Head, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices (Jordan et al. 2024), AdamW for the rest."""
    matrices = [p for name, p in head.named_parameters() if p.ndim == 2 and not name.startswith("lm_head")]
    vectors = [p for p in head.parameters() if p.ndim == 1]
    rate = config.learning_rate
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(vectors, lr=rate * _VECTOR_SCALE, weight_decay=0.0),
        torch.optim.AdamW(head.lm_head.parameters(), lr=rate * _OUTPUT_SCALE, weight_decay=0.0),
    ]


def num_unrolled(step: int, config: TrainConfig) -> int:
    return min(config.unroll, 1 + config.unroll * step // config.steps)


def train(
    state: State,
    target: Target,
    conversations: Sequence[Conversation],
    held_out: Sequence[Conversation],
    config: TrainConfig,
    folder: Path,
    tell: Tell,
) -> None:
    """Train to the last step, from wherever `state` is. Raises OSError where a checkpoint cannot be written.

    Args:
        state: a new training, or one from `load`; changed in place.
        target: what the head is for.
        conversations: what is trained on.
        held_out: what is measured on, and never trained on.
        config: the same as when the training began.
        folder: where checkpoints go.
        tell: called after each step and evaluation.

    """
    embeddings = target.embeddings.float()
    output = target.output.float()
    draft_output = target.output[state.ids].to(training.product_dtype(output.device))
    batches = batches_from(conversations, config.batch, config.seed, state.step, config.unroll)

    def losses(step: int) -> torch.Tensor:
        return loss(state.head, next(batches), embeddings, draft_output, num_unrolled(step, config))

    def measured() -> list[float]:
        return evaluate(state, embeddings, output, held_out, config)

    training.run(state, losses, measured, config, folder, tell)


def evaluate(
    state: State,
    embeddings: torch.Tensor,
    output: torch.Tensor,
    held_out: Sequence[Conversation],
    config: TrainConfig,
    num_steps: int = 5,
) -> list[float]:
    """Greedy acceptance of each draft position, given that it was reached, on held-out conversations."""
    counts = torch.zeros(num_steps, 2, dtype=torch.int64)
    for i in range(0, len(held_out), config.batch):
        batch = make_batch(held_out[i : i + config.batch], num_steps)
        counts += accepted(state.head, batch, (embeddings, output), state.ids, num_steps)
    return training.rates(counts)


def load(folder: Path, config: TrainConfig, tell: Callable[[str], None]) -> State | None:
    """See `drafters.training.load`."""

    def make_head(saved: Mapping[str, Any]) -> Eagle3Head:
        return Eagle3Head(Eagle3Config(**{**saved, "layers": tuple(saved["layers"])}))

    return training.load(folder, config, make_head, lambda head: _optimizers(head, config), tell)
