"""Heads as files: our own folder, and the layouts of published ones.

Ours: `config.json` with MedusaConfig's fields and `model.safetensors` with `weight.L` (heads, in, out) and `bias.L`
(heads, 1, out) of each layer, `ids` int64 (draft_vocab,) if the draft vocabulary is a reduced one, and `output`.
Published: state dictionaries `H.L.linear.weight`, `H.L.linear.bias`, `H.LAYERS.weight` (FasterDecoding's, as
`medusa_lm_head.pt` or safetensors), or `blocks.H.layers.L.weight`, `lm_heads.H.weight` (vLLM's until 0.32). Pickles are
read with `weights_only`, so that they can hold tensors and nothing that runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as brief
from typing import Any, Final

import torch

from drafters.medusa.model import MedusaConfig, MedusaHeads
from drafters.recordings import write_atomically

WEIGHTS: Final = "model.safetensors"
ARCHITECTURE: Final = "SpecxMedusaHeads"
MAX_HEADS: Final = 64
_PUBLISHED: Final = (
    (re.compile(r"(?:medusa_heads?\.)?(\d{1,6})\.(\d{1,6})\.linear\.(weight|bias)$"), "block"),
    (re.compile(r"blocks\.(\d{1,6})\.layers\.(\d{1,6})\.(weight|bias)$"), "block"),
    (re.compile(r"(?:medusa_heads?\.)?(\d{1,6})\.(\d{1,6})\.weight$"), "output"),
    (re.compile(r"lm_heads\.(\d{1,6})\.weight()$"), "output"),
)
_MOST: Final = 1 << 31  # of any size


class HeadsError(ValueError):
    """A folder holds no heads, damaged ones, or ones that do not fit the target. The message says which."""


def export(heads: MedusaHeads, ids: torch.Tensor | None, folder: Path, about: Mapping[str, Any]) -> None:
    """Write a folder of our own format, bf16. ids: int64 (draft_vocab,). about: what config.json says beside sizes.

    Raises OSError.
    """
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: value.detach().to(torch.bfloat16).contiguous() for name, value in heads.state_dict().items()
    }
    if ids is not None:
        tensors["ids"] = ids
    write_atomically(folder / WEIGHTS, save(tensors))
    config = {"architectures": [ARCHITECTURE], **heads.config.to_dict(), **about}
    write_atomically(folder / "config.json", json.dumps(config, indent=1).encode() + b"\n")


def load(path: Path, device: str = "cpu") -> tuple[MedusaHeads, torch.Tensor | None]:
    """Read heads from a folder, or from one file of published ones.

    Args:
        path: the folder or file.
        device: where weights go; "meta": nowhere, their sizes are read and checked alone.

    Returns:
        the heads, and the target's ids of their vocabulary, int64 (draft_vocab,); None: all of them.

    Raises:
        HeadsError: see there.

    """
    if not path.exists():
        raise HeadsError(f"Medusa heads {path}: no such folder or file")
    files = [path] if path.is_file() else _files(path)
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        tensors.update(_read(file, device))
    if any(name.startswith("weight.") for name in tensors):
        return _own(tensors, path)
    return _published(tensors, path), None


def _files(folder: Path) -> list[Path]:
    for pattern in ("*.safetensors", "medusa_lm_head.pt", "*.pt", "*.bin"):
        if found := sorted(folder.glob(pattern)):
            return found
    raise HeadsError(f"Medusa heads {folder}: no *.safetensors, *.pt or *.bin in it")


def _read(path: Path, device: str) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                found: dict[str, torch.Tensor] = {
                    name: torch.empty(file.get_slice(name).get_shape(), device="meta")
                    if device == "meta" and name != "ids"
                    else file.get_tensor(name)
                    for name in file.keys()  # noqa: SIM118 (it is no dictionary)
                }
        except (OSError, SafetensorError) as error:
            raise HeadsError(f"Medusa heads {path}: damaged: {error}") from error
        return found
    try:
        loaded = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # a pickle that is damaged, or does more than hold tensors
        raise HeadsError(
            f"Medusa heads {path}: not a file of tensors alone ({type(error).__name__}); a pickle that could run code "
            "is not loaded"
        ) from error
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise HeadsError(f"Medusa heads {path}: not a dictionary of tensors")
    return loaded


def _own(tensors: dict[str, torch.Tensor], path: Path) -> tuple[MedusaHeads, torch.Tensor | None]:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        config = MedusaConfig(
            **{name: _size(name, config[name]) for name in MedusaConfig.__dataclass_fields__}
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise HeadsError(f"Medusa heads {path}: no usable config.json: {error}") from error
    ids = tensors.pop("ids", None)
    if not 1 <= config.num_heads <= MAX_HEADS or not 1 <= config.num_layers <= len(tensors):
        raise HeadsError(
            f"Medusa heads {path}: {config.num_heads} heads of {config.num_layers} layers; allowed are 1 to "
            f"{MAX_HEADS} heads of 1 layer or more, all of them in the file"
        )
    if ids is not None and (ids.dtype != torch.int64 or ids.ndim != 1):
        raise HeadsError(f"Medusa heads {path}: ids are no row of whole numbers")
    num_ids = config.vocab_size if ids is None else len(ids)
    if num_ids != config.draft_vocab_size or (
        ids is not None and not 0 <= int(ids.min()) <= int(ids.max()) < config.vocab_size
    ):
        raise HeadsError(f"Medusa heads {path}: ids are not {config.draft_vocab_size} of the vocabulary")
    heads = _filled(config, tensors, path)
    return heads, ids


def _published(tensors: dict[str, torch.Tensor], path: Path) -> MedusaHeads:
    blocks: dict[tuple[int, int, str], torch.Tensor] = {}
    outputs: dict[int, torch.Tensor] = {}
    for name, value in tensors.items():
        for pattern, kind in _PUBLISHED:
            if match := pattern.match(name):
                head, layer, what = match.groups() if kind == "block" else (match[1], 0, "")
                if kind == "block":
                    blocks[int(head), int(layer), str(what)] = value
                else:
                    outputs[int(head)] = value
                break
        else:
            raise HeadsError(f"Medusa heads {path}: unknown tensor {name!r}")
    num_heads = 1 + max((head for head, _, _ in blocks), default=-1)
    num_layers = 1 + max((layer for _, layer, _ in blocks), default=-1)
    # Names are unlike one another: as many as are wanted are the ones that are wanted.
    if (
        not blocks
        or num_heads > MAX_HEADS
        or len(blocks) != 2 * num_heads * num_layers
        or outputs.keys() != set(range(num_heads))
    ):
        raise HeadsError(
            f"Medusa heads {path}: incomplete: a head needs a weight and a bias for each layer, and an output matrix"
        )
    if any(value.ndim != 2 for value in outputs.values()) or any(
        value.ndim != (2 if what == "weight" else 1) for (_, _, what), value in blocks.items()
    ):
        raise HeadsError(f"Medusa heads {path}: weights that are no matrices, or biases that are no rows")
    hidden, vocab = blocks[0, 0, "weight"].shape[0], outputs[0].shape[0]
    config = MedusaConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        draft_vocab_size=vocab,
        num_heads=num_heads,
        num_layers=num_layers,
        has_output=True,
    )
    try:
        stacked = {"output": torch.stack([outputs[h].T for h in range(num_heads)])}
        for layer in range(num_layers):
            for what in ("weight", "bias"):
                rows = [blocks[h, layer, what] for h in range(num_heads)]
                stacked[f"{what}.{layer}"] = torch.stack([r.T if r.ndim == 2 else r[None] for r in rows])
    except RuntimeError as error:
        raise HeadsError(f"Medusa heads {path}: heads of different sizes: {error}") from error
    return _filled(config, stacked, path)


def _size(name: str, value: Any) -> Any:
    """A field of MedusaConfig. Raises ValueError."""
    is_flag = name in ("token_input", "has_output")
    if type(value) is not (bool if is_flag else int) or not 0 <= value <= _MOST:
        raise ValueError(f"{name} must be {'true or false' if is_flag else 'a size'}, got {brief(value)}")
    return value


def _filled(config: MedusaConfig, tensors: dict[str, torch.Tensor], path: Path) -> MedusaHeads:
    if odd := [name for name, value in tensors.items() if not value.is_floating_point()]:
        raise HeadsError(f"Medusa heads {path}: {odd[0]} holds no weights")
    try:
        with torch.device("meta"):
            heads = MedusaHeads(config)
    except RuntimeError as error:  # more than a tensor can hold
        raise HeadsError(f"Medusa heads {path}: {error}") from error
    wanted = {name: tuple(value.shape) for name, value in heads.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    if found != wanted:
        raise HeadsError(f"Medusa heads {path}: tensors {found} are not those of its sizes, {wanted}")
    heads.load_state_dict(tensors, assign=True)
    heads.requires_grad_(False)
    return heads
