"""Who a replica is: which outputs and which step times of others are of use to it."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Final

_SHAPE: Final = (
    "architectures",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
)


def model_of(model_config: Any) -> str:
    """The name that clients know the model by, and a hash of its shape.

    Not its path, which may be another one on every machine. Replicas of one model may differ in quantisation.
    """
    shape = {name: getattr(model_config.hf_text_config, name, None) for name in _SHAPE}
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode()).hexdigest()
    return f"{model_config.served_model_name} {digest[:12]}"


def hardware_of(vllm_config: Any, sizes: Any) -> str:
    """What step times depend on, beside the model: the device, how many, the data type, and graph sizes."""
    from vllm.platforms import current_platform

    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    device = current_platform.get_device_name()
    if current_platform.is_cpu():
        from vllm_specx.bench.provenance import cpu_model

        device = f"{cpu_model()} ({os.cpu_count()} cores)"
    stairs = hashlib.sha256(json.dumps([float(size) for size in sizes]).encode()).hexdigest()[:8]
    return (
        f"{device}, tensor parallel {parallel.tensor_parallel_size}, pipeline parallel "
        f"{parallel.pipeline_parallel_size}, {model.dtype}, {model.quantization}, sizes {stairs}"
    )
