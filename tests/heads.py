"""A tiny target and what it said, for tests of draft heads (torch)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from drafters.recordings import Conversation

HIDDEN, VOCAB, LAYERS = 16, 40, (1, 2, 3)
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}


def write_target(folder: Path) -> Path:
    """A folder with what a head needs of a target: sizes, embeddings (tied) and last norm."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(7)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(
        {
            "model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=generator),
            "model.norm.weight": torch.ones(HIDDEN),
        },
        folder / "model.safetensors",
    )
    return folder


def conversations(number: int, embeddings: torch.Tensor, seed: int = 0) -> list[Conversation]:
    """Walks that go up by one, modulo the vocabulary: a head that learns anything learns to say the next one."""
    random = np.random.default_rng(seed)
    result = []
    for _ in range(number):
        length, answer = int(random.integers(9, 20)), int(random.integers(2, 5))
        token_ids = ((int(random.integers(VOCAB)) + np.arange(length)) % VOCAB).astype(np.int32)
        own = embeddings[torch.from_numpy(token_ids).long()]
        following = embeddings[torch.from_numpy((token_ids + 1) % VOCAB).long()]
        states = torch.cat([own, following, own + following], dim=-1).to(torch.bfloat16)
        finals = (4 * following).to(torch.bfloat16)
        states[-1] = 0
        finals[-1] = 0
        result.append(Conversation(token_ids, answer, states, finals))
    return result
