"""The training loop of any draft head: steps, held-out acceptance, checkpoints, resumption."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from drafters.recordings import Conversation, write_atomically

CHECKPOINT = "checkpoint-{:07d}.pt"
STEP_DECAY = 0.8  # weight of a draft token relative to the one before
_NUM_KEPT = 2
_WARM_UP = 0.02  # share of the steps
_CLIP = 1.0

# what, step, number of steps, facts
Tell = Callable[[str, int, int, dict[str, Any]], None]


class CheckpointError(ValueError):
    """No checkpoint of the folder can be read, or it belongs to another training. The message says which."""


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """What every training is fixed by, beside its data and target."""

    steps: int
    batch: int  # conversations
    learning_rate: float
    draft_vocab_size: int
    seed: int
    evaluate_every: int
    checkpoint_every: int


@dataclass
class State:
    """A training under way: everything a checkpoint holds."""

    head: Any  # a module with `config`, which has `to_dict`
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


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine to a twentieth."""
    warm = max(1, round(_WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def product_dtype(device: torch.device) -> torch.dtype:
    """What matrix products are fastest in: float32 on a CPU that has no instructions for bf16."""
    is_fast = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if is_fast else torch.float32


def precision(device: torch.device) -> AbstractContextManager[Any]:
    """Matrix products in `product_dtype`, sums and parameters in float32."""
    context: AbstractContextManager[Any] = torch.autocast(
        device.type, dtype=torch.bfloat16, enabled=product_dtype(device) == torch.bfloat16
    )
    return context


def run(
    state: State,
    losses_of_step: Callable[[int], torch.Tensor],
    evaluate: Callable[[], list[float]],
    config: LoopConfig,
    folder: Path,
    tell: Tell,
) -> None:
    """Train to the last step, from wherever `state` is.

    Args:
        state: a new training, or one from `load`; changed in place.
        losses_of_step: the loss of each draft token, float32 (draft tokens,), on the next batch.
        evaluate: acceptance of each draft token on held-out conversations.
        config: the same as when the training began.
        folder: where checkpoints go.
        tell: called after each step and evaluation.

    Raises:
        OSError: a checkpoint cannot be written.
        FloatingPointError: the loss is not finite.

    """
    device = next(state.head.parameters()).device
    while state.step < config.steps:
        factor = learning_rate_factor(state.step, config.steps)
        for optimizer in state.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("full_lr", group["lr"]) * factor
        with precision(device):
            losses = losses_of_step(state.step)
        weights = STEP_DECAY ** torch.arange(len(losses))
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
        facts: dict[str, Any] = {"loss": [round(x, 4) for x in losses.tolist()]}
        is_last = state.step == config.steps
        if is_last or state.step % config.evaluate_every == 0:
            with precision(device):
                facts["acceptance"] = evaluate()
            state.history.append({"step": state.step, **facts})
        if is_last or state.step % config.checkpoint_every == 0:
            save(state, config, folder)
        tell("training", state.step, config.steps, facts)


def rates(counts: torch.Tensor) -> list[float]:
    """Acceptance of each draft token, given that it was reached, from (reached, accepted) of each: int64 (n, 2)."""
    return [round(hits / max(1, reached), 4) for reached, hits in counts.tolist()]


def save(state: State, config: LoopConfig, folder: Path) -> Path:
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


def load(
    folder: Path,
    config: LoopConfig,
    make_head: Callable[[Mapping[str, Any]], Any],
    make_optimizers: Callable[[Any], list[torch.optim.Optimizer]],
    tell: Callable[[str], None],
) -> State | None:
    """The last good checkpoint; None where there is none at all.

    Args:
        folder: where checkpoints are.
        config: must be that of the training.
        make_head: makes a head from its `config.to_dict()`.
        make_optimizers: makes its optimizers.
        tell: told of damaged files.

    Raises:
        CheckpointError: none can be read, or the training was another.

    """
    paths = checkpoints(folder)
    for path in reversed(paths):
        try:
            saved = torch.load(path, weights_only=True)
            head = make_head(saved["head_config"])
            head.load_state_dict(saved["head"])
            state = State(head, make_optimizers(head), saved["ids"], saved["step"], saved["history"])
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


def _check_same(was: dict[str, Any], config: LoopConfig, path: Path) -> None:
    now = asdict(config)
    changed = [key for key in now if was.get(key) != now[key] and not key.endswith("_every")]
    if changed:
        raise CheckpointError(
            f"{path} belongs to a training with other settings "
            f"({', '.join(f'{key}: {was.get(key)!r}, not {now[key]!r}' for key in changed)}): "
            "use the same, or another folder"
        )
