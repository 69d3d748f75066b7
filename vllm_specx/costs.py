"""From the options to what a tuner knows of step times when it starts."""

from collections.abc import Sequence
from pathlib import Path

from vllm_specx.config import KEY, ConfigError, SpecxConfig
from vllm_specx.tuner import CostModel, CostTable, CostTableError


def make_cost_model(options: SpecxConfig, sizes: Sequence[int] | None = None) -> CostModel:
    """Return a model of step times, started from the table that the options name, if they do.

    Args:
        options: `costs` is read.
        sizes: token counts to which steps are padded (CUDA graphs), if any.

    Raises:
        ConfigError: the table cannot be used.

    """
    return CostModel(load_cost_table(options), sizes=sizes)


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
