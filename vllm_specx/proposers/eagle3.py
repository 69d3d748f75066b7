"""`vllm_specx.AdaptiveEagle3Proposer`: the name in --speculative-config for EAGLE-3 with a length chosen every step."""

from typing import Any

from vllm_specx.config import ConfigError
from vllm_specx.heads import PLUGIN_MISSING


class AdaptiveEagle3Proposer:
    """Stands for vLLM's own EAGLE-3 drafter driven by `AdaptiveScheduler`; the plug-in replaces the name by these.

    Raises:
        ConfigError: always; vLLM makes one only where the plug-in was not loaded.

    """

    def __init__(self, vllm_config: Any) -> None:
        raise ConfigError(PLUGIN_MISSING)
