"""Cost tables named on a command line."""

from pathlib import Path

from vllm_specx.bench.errors import BenchError
from vllm_specx.tuner import CostTable, CostTableError


def load_costs(path: Path) -> CostTable:
    """Read a cost table. Raises BenchError."""
    try:
        return CostTable.load(path)
    except CostTableError as error:
        raise BenchError(
            f"--costs {path}: {error}" if str(path) not in str(error) else f"--costs: {error}"
        ) from error
    except OSError as error:
        raise BenchError(f"--costs {path}: {error.strerror or error}") from error
