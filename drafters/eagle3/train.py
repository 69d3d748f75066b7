"""The training loop of a head: steps, held-out acceptance, checkpoints, resumption."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from drafters.eagle3.batches import batches_from, make_batch
from drafters.eagle3.model import Eagle3Config, Eagle3Head
from drafters.eagle3.objective import STEP_DECAY, accepted, loss
from drafters.eagle3.target import Target
from drafters.recordings import Conversation, write_atomically

CHECKPOINT = "checkpoint-{:07d}.pt"
_NUM_KEPT = 2
_WARM_UP = 0.02  # share of the steps
_CLIP = 1.0
_FIRST_CONFIDENCE = 0.6  # scale of the first logits: they are of the wrong position
_NUM_SCALED = 64
_VECTOR_SCALE = 0.2
_OUTPUT_SCALE = (
    0.05  # the output matrix is the target's own to begin with, and its rare rows see few gradients
)

# what, step, number of steps, facts
Tell = Callable[[str, int, int, dict[str, Any]], None]


class CheckpointError(ValueError):
    """No checkpoint of the folder can be read, or it belongs to another training. The message says which."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What a training is fixed by, beside its data and target."""

    steps: int
    batch: int  # conversations
    learning_rate: float
    unroll: int  # draft tokens of the training-time test, reached in equal parts of the training
    draft_vocab_size: int
    seed: int
    evaluate_every: int
    checkpoint_every: int


@dataclass
class State:
    """A training under way: everything a checkpoint holds."""

    head: Eagle3Head
    optimizers: list[torch.optim.Optimizer]
    ids: torch.Tensor  # int64 (draft_vocab,), the target's ids of the draft vocabulary
    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


def draft_vocabulary(conversations: Sequence[Conversation], size: int, vocab_size: int) -> torch.Tensor:
    """The ids that answers use most, int64 (size,), ascending. Ties and ids never seen: the smaller id first."""
    counts: Counter[int] = Counter()
    for conversation in conversations:
        counts.update(conversation.token_ids[conversation.answer :].tolist())
    order = sorted(range(vocab_size), key=lambda i: (-counts[i], i))
    return torch.tensor(sorted(order[:size]), dtype=torch.int64)


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


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine to a twentieth."""
    warm = max(1, round(_WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def num_unrolled(step: int, config: TrainConfig) -> int:
    return min(config.unroll, 1 + config.unroll * step // config.steps)


def precision(device: torch.device) -> AbstractContextManager[Any]:
    """Matrix products in bf16, sums and parameters in float32."""
    context: AbstractContextManager[Any] = torch.autocast(device.type, dtype=torch.bfloat16)
    return context


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
    draft_output = target.output[state.ids].to(torch.bfloat16)
    batches = batches_from(conversations, config.batch, config.seed, state.step, config.unroll)
    device = embeddings.device
    while state.step < config.steps:
        factor = learning_rate_factor(state.step, config.steps)
        for optimizer in state.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("full_lr", group["lr"]) * factor
        num_steps = num_unrolled(state.step, config)
        with precision(device):
            losses = loss(state.head, next(batches), embeddings, draft_output, num_steps)
        weights = STEP_DECAY ** torch.arange(num_steps)
        total = (losses * weights).sum() / weights.sum()
        if not torch.isfinite(total):
            raise FloatingPointError(
                f"the loss is {float(total)} at step {state.step}: try a smaller learning rate"
            )
        total.backward()
        torch.nn.utils.clip_grad_norm_(state.head.parameters(), _CLIP)
        for optimizer in state.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        state.step += 1
        facts = {"loss": [round(x, 4) for x in losses.tolist()]}
        is_last = state.step == config.steps
        if is_last or state.step % config.evaluate_every == 0:
            with precision(device):
                facts["acceptance"] = evaluate(state, embeddings, output, held_out, config)
            state.history.append({"step": state.step, **facts})
        if is_last or state.step % config.checkpoint_every == 0:
            save(state, config, folder)
        tell("training", state.step, config.steps, facts)


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
    return [round(hits / max(1, reached), 4) for reached, hits in counts.tolist()]


def save(state: State, config: TrainConfig, folder: Path) -> Path:
    """Write a checkpoint, and only then remove those before the last. Raises OSError; older ones stay then."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(
        {
            "config": asdict(config),
            "head_config": state.head.config.to_dict(),
            "head": state.head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
            "ids": state.ids,
            "step": state.step,
            "history": state.history,
        },
        buffer,
    )
    path = folder / CHECKPOINT.format(state.step)
    write_atomically(path, buffer.getvalue())
    for old in checkpoints(folder)[:-_NUM_KEPT]:
        old.unlink()
    return path


def checkpoints(folder: Path) -> list[Path]:
    """Those of a folder, oldest first."""
    return sorted(folder.glob(CHECKPOINT.replace("{:07d}", "*")))


def load(folder: Path, config: TrainConfig, tell: Callable[[str], None]) -> State | None:
    """The last good checkpoint; None where there is none at all.

    Raises:
        CheckpointError: none can be read, or the training was another.

    """
    paths = checkpoints(folder)
    for path in reversed(paths):
        try:
            saved = torch.load(path, weights_only=True)
            head_config = dict(saved["head_config"])
            head = Eagle3Head(Eagle3Config(**{**head_config, "layers": tuple(head_config["layers"])}))
            head.load_state_dict(saved["head"])
            state = State(head, _optimizers(head, config), saved["ids"], saved["step"], saved["history"])
            for optimizer, values in zip(state.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(values)
            was = saved["config"]
        except Exception as error:  # a damaged file fails in many ways
            tell(f"{path} is damaged ({type(error).__name__}): trying the one before")
            continue
        _check_same(was, config, path)
        return state
    if paths:
        raise CheckpointError(
            f"{folder}: none of its {len(paths)} checkpoints can be read: remove them to start over"
        )
    return None


def _check_same(was: dict[str, Any], config: TrainConfig, path: Path) -> None:
    now = asdict(config)
    changed = [key for key in now if was.get(key) != now[key] and not key.endswith("_every")]
    if changed:
        raise CheckpointError(
            f"{path} belongs to a training with other settings "
            f"({', '.join(f'{key}: {was.get(key)!r}, not {now[key]!r}' for key in changed)}): "
            "use the same, or another folder"
        )
