"""What a head needs of its target: sizes, embeddings, output matrix and last norm, read from the model's folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_EMBEDDINGS = "model.embed_tokens.weight"
_OUTPUT = "lm_head.weight"
_NORM = "model.norm.weight"


class TargetError(ValueError):
    """The target is no Llama-type model, or its weights cannot be read. The message says which."""


@dataclass(frozen=True)
class Target:
    """A Llama-type target.

    embeddings: (vocab, hidden); output: (vocab, hidden), the same tensor where they are tied; norm: (hidden,).
    """

    config: dict[str, Any]
    embeddings: torch.Tensor
    output: torch.Tensor
    norm: torch.Tensor

    @classmethod
    def load(cls, folder: Path) -> Target:
        """Raises TargetError."""
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TargetError(f"{folder}: no readable config.json: {error}") from error
        needed = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
        missing = [key for key in needed if key not in config]
        if missing or not any("CausalLM" in name for name in config.get("architectures") or ()):
            raise TargetError(
                f"{folder}: not a Llama-type causal model ({', '.join(missing) or config.get('architectures')})"
            )
        found = _read(folder, (_EMBEDDINGS, _OUTPUT, _NORM))
        for name in (_EMBEDDINGS, _NORM):
            if name not in found:
                raise TargetError(f"{folder}: no tensor {name!r}: not a Llama-type model, or a quantised one")
        return cls(config, found[_EMBEDDINGS], found.get(_OUTPUT, found[_EMBEDDINGS]), found[_NORM])


def _read(folder: Path, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError, safe_open

    found: dict[str, torch.Tensor] = {}
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise TargetError(f"{folder}: no *.safetensors in it")
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                for name in set(file.keys()) & set(names):
                    found[name] = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise TargetError(f"{path}: not readable: {error}") from error
    return found
