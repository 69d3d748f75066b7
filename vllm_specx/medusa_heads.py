"""Which Medusa heads an engine uses, and whether they fit its target. Imports no vLLM, and torch only to read heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from vllm_specx.config import KEY, ConfigError, SpecxConfig
from vllm_specx.heads import find_bundled

NAME: Final = "vllm_specx.MedusaProposer"
_ARCHITECTURE: Final = "SpecxMedusaHeads"
_SIZES: Final = ("tensor_parallel_size", "pipeline_parallel_size")


def find(options: SpecxConfig, model_config: Any) -> Path:
    """The folder or file of the heads: the one that was named, else bundled ones that fit the target.

    Raises:
        ConfigError: there are none.

    """
    if options.medusa_heads:
        return Path(options.medusa_heads).expanduser()
    return find_bundled(
        "Medusa heads",
        _ARCHITECTURE,
        model_config,
        f"name a folder in {KEY}.medusa_heads; `specx train medusa` makes one",
    )


def check(vllm_config: Any) -> None:
    """Refuse, before an engine starts, heads and layouts that could not work.

    Raises:
        ConfigError: see there.

    """
    for size in _SIZES:
        if (found := getattr(vllm_config.parallel_config, size)) > 1:
            raise ConfigError(
                f"{NAME} needs the whole output matrix in one worker: {size} must be 1, got {found}"
            )
    if vllm_config.model_config is not None:
        load(vllm_config, "meta")


def load(vllm_config: Any, device: str = "cpu") -> tuple[Any, Any]:
    """Return the heads and the ids of their vocabulary; see `drafters.medusa.load`.

    Raises:
        ConfigError: there are none, they are damaged, or they do not fit the target or the number of draft tokens.

    """
    from drafters.medusa import HeadsError
    from drafters.medusa import load as load_heads

    model_config = vllm_config.model_config
    path = find(SpecxConfig.from_vllm(vllm_config), model_config)
    try:
        heads, ids = load_heads(path, device)
    except HeadsError as error:
        raise ConfigError(str(error)) from error
    config, target = heads.config, model_config.hf_text_config
    for what, found, wanted in (
        ("hidden size", config.hidden_size, target.hidden_size),
        ("vocabulary", config.vocab_size, target.vocab_size),
    ):
        if found != wanted:
            raise ConfigError(
                f"Medusa heads {path} have {what} {found}, the target {model_config.model} has {wanted}"
            )
    num_tokens = vllm_config.speculative_config.num_speculative_tokens
    if num_tokens > config.num_heads:
        raise ConfigError(
            f"Medusa heads {path}: a draft has one token for each head, so num_speculative_tokens must be within "
            f"[1, {config.num_heads}], got {num_tokens}"
        )
    return heads, ids
