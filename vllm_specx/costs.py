"""From the options to what a tuner knows of step times when it starts."""

from pathlib import Path
from typing import Any

from vllm_specx.config import KEY, ConfigError, SpecxConfig
from vllm_specx.tuner import CostModel, CostTable, CostTableError


def make_cost_model(options: SpecxConfig, vllm_config: Any) -> CostModel:
    """Return a model of step times, started from the table that the options name, if they do.

    Args:
        options: `costs` is read.
        vllm_config: the engine's, for the sizes to which CUDA graphs pad its steps.

    Raises:
        ConfigError: the table cannot be used.

    """
    return CostModel(load_cost_table(options), sizes=_graph_sizes(vllm_config))


def _graph_sizes(vllm_config: Any) -> list[int] | None:
    compilation = vllm_config.compilation_config
    mode = compilation.cudagraph_mode
    if mode is None or not mode.has_full_cudagraphs():
        return None
    return sorted(compilation.cudagraph_capture_sizes or ()) or None


def load_cost_table(options: SpecxConfig) -> CostTable | None:
    """Return the table that the option `costs` names; None if it names none.

    Raises:
        ConfigError: it cannot be used.

    """
    if not options.costs:
        return None
    path = Path(options.costs).expanduser()
    try:
        return CostTable.load(path)
    except CostTableError as error:
        reason = str(error)
    except OSError as error:
        reason = f"{path}: {error.strerror or error}"
    raise ConfigError(f"{KEY}.costs: {reason}; `specx calibrate` makes such a table")
