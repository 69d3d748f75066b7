"""Workloads from trace files."""

from collections.abc import Sequence
from pathlib import Path

from vllm_specx.bench.errors import BenchError
from vllm_specx.regret.cells import Workload
from vllm_specx.replay import load_traces


def load_workloads(paths: Sequence[Path], tokenizer: Path, limit: int | None) -> list[Workload]:
    """Read and tokenise trace files, each a workload that is named after its file.

    Raises:
        BenchError: a file that cannot be used, or two of one name.

    """
    if limit is not None and limit < 1:
        raise BenchError(f"--limit must be at least 1, got {limit}")
    names = [path.stem for path in paths]
    if len(set(names)) != len(names):
        raise BenchError(f"--traces: two files of one name: {', '.join(sorted(names))}")
    return [Workload(path.stem, tuple(load_traces(path, tokenizer)[:limit])) for path in paths]
