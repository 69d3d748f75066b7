"""Other targets and drafts: the demo model's first layers, itself in 8 bits, and a tiny one that is made up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

TINY = {
    "model_type": "qwen2",
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def tiny_mtp(folder: Path) -> Path:
    """MiMo, a Qwen2 with one module that predicts a further token: the configuration, for made-up weights."""
    folder.mkdir(parents=True)
    config = TINY | {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _copy_tokenizer(model: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    for path in model.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, folder)


def first_layers(model: Path, folder: Path, num_layers: int) -> Path:
    """The model without its upper layers."""
    from safetensors.torch import load_file, save_file

    _copy_tokenizer(model, folder)
    config = json.loads((model / "config.json").read_text()) | {"num_hidden_layers": num_layers}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        name: tensor
        for name, tensor in load_file(model / "model.safetensors").items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < num_layers
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def int8(model: Path, folder: Path) -> Path:
    """The model with int8 weights (a scale for each output) and activations (a scale for each token)."""
    import torch
    from safetensors.torch import load_file, save_file

    _copy_tokenizer(model, folder)
    number = {"num_bits": 8, "type": "int", "symmetric": True}
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": number | {"strategy": "channel", "dynamic": False},
                "input_activations": number | {"strategy": "token", "dynamic": True},
            }
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            weight = tensor.float()
            scale = weight.abs().amax(dim=1, keepdim=True) / 127
            tensors[name] = (weight / scale).round().clamp(-127, 127).to(torch.int8)
            tensors[f"{name}_scale"] = scale
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder
