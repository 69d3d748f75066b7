"""Which EAGLE-3 head a name in --speculative-config means, and whether it fits the target. Imports no vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from vllm_specx.config import MAX_SPECULATIVE_TOKENS, ConfigError

ADAPTIVE: Final = "vllm_specx.AdaptiveEagle3Proposer"
HYBRID: Final = "vllm_specx.HybridProposer"
BUNDLED: Final = Path(__file__).resolve().parent.parent / "drafters" / "heads"
PLUGIN_MISSING: Final = (
    "this name stands for vLLM's method eagle3, and only the plug-in of vllm-specx knows it: VLLM_PLUGINS keeps vLLM "
    "from loading it, add specx to it"
)
_ARCHITECTURE: Final = "LlamaForCausalLMEagle3"
_NAME: Final = "_specx_name"
_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt")


def split_name(model: Any) -> tuple[str, str] | None:
    """Return (class, head) of "vllm_specx.Class" or "vllm_specx.Class:HEAD"; None if it names neither class."""
    if not isinstance(model, str):
        return None
    name, _, head = model.partition(":")
    return (name, head) if name in (ADAPTIVE, HYBRID) else None


def name_of(speculative_config: Any) -> str | None:
    """The class of ours that a SpeculativeConfig of method eagle3 stands for, if it does."""
    name: str | None = getattr(speculative_config, _NAME, None)
    return name


def set_name(speculative_config: Any, name: str) -> None:
    """Say that a SpeculativeConfig of method eagle3 stands for a class of ours."""
    speculative_config.__dict__[_NAME] = name  # it takes no attributes but its own


def find_head(name: str, head: str, target: Any, num_tokens: int | None = None) -> str:
    """Return the folder (or hub name) of the head.

    Args:
        name: the class that was named.
        head: what followed it; empty: a head of ours that fits the target.
        target: vLLM's ModelConfig of the target.
        num_tokens: most draft tokens, if that is known.

    Raises:
        ConfigError: there is none, or it does not fit.

    """
    if head:
        folder = Path(head).expanduser()
        if folder.exists():
            check_head(folder, target, num_tokens)
            return str(folder)
        return head  # a name of the hub: vLLM says whether it exists
    folder = find_bundled(
        "EAGLE-3 head", _ARCHITECTURE, target, f"name one as '{name}:FOLDER'; `specx train eagle3` makes one"
    )
    check_head(folder, target, num_tokens)
    return str(folder)


def find_bundled(what: str, architecture: str, target: Any, hint: str) -> Path:
    """Return the folder of what we bring for a target.

    Args:
        what, hint: for the message if there is none.
        architecture: of its config.json.
        target: vLLM's ModelConfig of the target.

    Raises:
        ConfigError: there is none.

    """
    config = target.hf_text_config
    wanted = [config.hidden_size, config.vocab_size, config.num_hidden_layers]
    for path in sorted(BUNDLED.glob("*/config.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        fits = found.get("target", {})
        sizes = [fits.get(size) for size in ("hidden_size", "vocab_size", "num_hidden_layers")]
        if found.get("architectures") == [architecture] and sizes == wanted:
            return path.parent
    raise ConfigError(
        f"vllm-specx brings no {what} for {target.model} (hidden size, vocabulary, layers: {wanted}): {hint}"
    )


def check_head(folder: Path, target: Any, num_tokens: int | None = None) -> None:
    """Refuse, before an engine starts, a head that could not work with the target.

    Raises:
        ConfigError: it is incomplete, or its sizes are those of another target.

    """
    where = f"EAGLE-3 head {folder}"
    try:
        head = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: no readable config.json: {error}") from error
    if not isinstance(head, dict):
        raise ConfigError(f"{where}: config.json is not an object")
    if not any(list(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ConfigError(f"{where}: no weights ({', '.join(_WEIGHTS)})")
    architectures = _part(head, "architectures", list, where)
    if not any("Eagle3" in str(name) for name in architectures):
        raise ConfigError(f"{where}: architectures {architectures} name no EAGLE-3 head")
    config = target.hf_text_config
    pairs = (
        ("hidden size", head.get("target_hidden_size", head.get("hidden_size")), config.hidden_size),
        ("vocabulary", head.get("vocab_size"), config.vocab_size),
    )
    for what, found, wanted in pairs:
        if found is not None and found != wanted:
            raise ConfigError(f"{where} has {what} {found}, the target {target.model} has {wanted}")
    layers = _part(_part(head, "eagle_config", dict, where), "eagle_aux_hidden_state_layer_ids", list, where)
    if beyond := [n for n in layers if not isinstance(n, int) or not 0 <= n <= config.num_hidden_layers]:
        raise ConfigError(
            f"{where} reads layers {beyond}, the target {target.model} has {config.num_hidden_layers} layers"
        )
    positions = head.get("max_position_embeddings")
    most = MAX_SPECULATIVE_TOKENS
    if isinstance(positions, int):
        most = max(0, min(most, positions - 2))
    if num_tokens is not None and not 1 <= num_tokens <= most:
        raise ConfigError(
            f"{where}: num_speculative_tokens must be within [1, {most}] (vLLM verifies at most "
            f"{MAX_SPECULATIVE_TOKENS}, the head has {positions} positions), got {num_tokens}"
        )
    for path in folder.glob("*.safetensors"):
        _check_weights(path, where)


def _part(head: dict[str, Any], name: str, kind: type[Any], where: str) -> Any:
    """An entry of config.json, empty where there is none. Raises ConfigError where it is of another kind."""
    found = head.get(name)
    if found is not None and not isinstance(found, kind):
        raise ConfigError(
            f"{where}: {name} in config.json must be a {kind.__name__}, got {type(found).__name__}"
        )
    return found or kind()


def _check_weights(path: Path, where: str) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{where}: {path.name} is damaged: {error}") from error
    if not any(name.endswith("fc.weight") for name in names):
        raise ConfigError(f"{where}: {path.name} has no tensor fc.weight: not an EAGLE-3 head")
