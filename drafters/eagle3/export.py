"""A head as files: the folder that vLLM loads as method eagle3 (and `speculators` converts), and its checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from drafters.eagle3.model import Eagle3Config, Eagle3Head
from drafters.recordings import write_atomically

ARCHITECTURE = "LlamaForCausalLMEagle3"
WEIGHTS = "model.safetensors"


class HeadError(ValueError):
    """A head's folder is incomplete or damaged, or does not fit its target. The message says what was expected."""


def export(head: Eagle3Head, ids: torch.Tensor, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write config.json and the weights. ids: int64 (draft_vocab,), ascending. Raises OSError."""
    from safetensors.torch import save

    config = head.config
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().to(dtype).contiguous() for name, value in head.state_dict().items()}
    if len(ids) < config.vocab_size:  # vLLM takes no map to a whole vocabulary
        t2d = torch.zeros(config.vocab_size, dtype=torch.bool)
        t2d[ids] = True
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = t2d
    write_atomically(folder / WEIGHTS, save(tensors))
    write_atomically(
        folder / "config.json", json.dumps(vllm_config(config, dtype), indent=1).encode() + b"\n"
    )


def vllm_config(config: Eagle3Config, dtype: torch.dtype) -> dict[str, Any]:
    """The config.json of a head."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "dtype": str(dtype).removeprefix("torch."),
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "max_position_embeddings": config.max_position_embeddings,
        "fc_norm": True,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "target": {
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "num_hidden_layers": config.num_target_layers,
        },
        "eagle_config": {
            "use_aux_hidden_state": True,
            "fc_norm": True,
            "eagle_aux_hidden_state_layer_ids": list(config.layers),
        },
    }
